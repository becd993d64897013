"""``python -m bench`` lists the benchmarks; ``python -m bench NAME`` runs one, or ``all``."""

from busbar.door import leave

if __name__ == "__main__":
    leave("busbar", "bench.launch.control_socket:command")
