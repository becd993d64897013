"""All-gather: every rank ends with all parts."""
