"""Trials of differences: two commands interleaved, and the self-check of the tool."""
