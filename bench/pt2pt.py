"""Measure pairs of ranks: ``mpirun -n 2 python -m bench.pt2pt``."""

from busbar.door import leave

if __name__ == "__main__":
    leave("busbar", "bench.launch.control_socket:command", "pt2pt")
