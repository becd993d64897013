"""Runs of our own: launchers, and the processes that we start."""
