"""One node's ranks over memory that all of them map: what the shm transport is made of."""
