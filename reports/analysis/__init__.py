"""Questions about rows: which is faster, which rank is slow, which time was expected."""
