"""Questions about rows: which is faster, which rank is slow, what time was to be expected."""
