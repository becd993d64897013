"""The command line of a benchmark, as data."""
