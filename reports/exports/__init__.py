"""Records and rows, written."""
