"""Broadcast: every rank ends with the vector of the root."""
