"""Measure reduce_scatter: ``mpirun -n 16 python -m bench.reduce_scatter``."""

from bench.doors import door

if __name__ == "__main__":
    door("reduce_scatter")
