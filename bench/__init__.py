"""Measures collectives: sweeps, timing, checks of results, and the command lines."""
