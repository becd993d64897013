"""One file a collective, one constant each: what a schedule must achieve."""
