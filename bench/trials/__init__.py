"""Trials of differences: comparisons of two commands, and the tool's self-check."""
