"""Reduce-scatter: rank r ends with the r-th part of the reduction."""
