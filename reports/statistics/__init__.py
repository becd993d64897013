"""Statistics of series of times. Pure; no I/O."""
