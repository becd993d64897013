"""Measurements between pairs of ranks, as data."""
