"""All-reduce: every rank ends with the reduction of all vectors."""
