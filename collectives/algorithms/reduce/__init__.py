"""Reduce: the root ends with the reduction of all vectors."""
