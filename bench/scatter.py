"""Measure scatter: ``mpirun -n 16 python -m bench.scatter``."""

from bench.main import door

if __name__ == "__main__":
    door("scatter")
