"""One folder per collective, one file per algorithm; algorithms are found by these names."""
