"""One run on one rank: memory, rows, times, checks, records."""
