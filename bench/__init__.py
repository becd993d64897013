"""How long it takes: sweep, measure, verify, and the command lines."""
