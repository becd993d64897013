"""Measure reduce_scatter: ``mpirun -n 16 python -m bench.reduce_scatter``."""

from busbar.door import leave

if __name__ == "__main__":
    leave("busbar", "bench.launch.rank:command", "reduce_scatter")
