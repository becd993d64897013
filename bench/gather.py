"""Measure gather: ``mpirun -n 16 python -m bench.gather``."""

from busbar.door import leave

if __name__ == "__main__":
    leave("busbar", "bench.launch.control_socket:command", "gather")
