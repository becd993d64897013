"""Timing of pairs of ranks, for ``python -m topology measure``."""
