"""One node's ranks over memory that all of them map."""
