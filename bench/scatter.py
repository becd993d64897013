"""Measure scatter: ``mpirun -n 16 python -m bench.scatter``."""

from bench.doors import door

if __name__ == "__main__":
    door("scatter")
