"""Gather: the root ends with all parts."""
