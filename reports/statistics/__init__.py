"""Statistics of times: intervals, tests, change points, stability. Pure; no I/O."""
