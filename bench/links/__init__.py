"""Timing of pairs of ranks, for ``busbar topology measure``."""
