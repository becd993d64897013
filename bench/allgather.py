"""Measure allgather: ``mpirun -n 16 busbar allgather``."""

from busbar.door import leave

if __name__ == "__main__":
    leave("busbar", "bench.launch.control_socket:command", "allgather")
