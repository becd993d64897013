"""Measure hypercube: ``mpirun -n 16 busbar hypercube``."""

from busbar.door import leave

if __name__ == "__main__":
    leave("busbar", "bench.launch.control_socket:command", "hypercube")
