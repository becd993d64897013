"""Several hosts with several ranks each: shared memory on a host, MPI between hosts."""
