"""What was measured between pairs of ranks, as data."""
