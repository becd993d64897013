"""Measure reduce_scatter: ``mpirun -n 16 python -m bench.reduce_scatter``."""

from busbar.door import leave

if __name__ == "__main__":
    leave("busbar", "bench.launch.control_socket:command", "reduce_scatter")
