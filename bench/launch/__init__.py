"""Launchers, and the runs that this process starts with them."""
