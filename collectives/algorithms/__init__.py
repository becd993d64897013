"""One folder a collective, one file an algorithm, found by its name."""
