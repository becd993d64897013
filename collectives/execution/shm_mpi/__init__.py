"""The transport for several hosts: shared memory on a host, MPI between hosts."""
