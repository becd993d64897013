"""Scatter: every rank ends with its part of the root's vector."""
