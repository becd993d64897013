"""Launchers, and the runs that we start with them."""
