"""MPI: between hosts' memories, and between GPU buffers."""
