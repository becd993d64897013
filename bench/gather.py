"""Measure gather: ``mpirun -n 16 python -m bench.gather``."""

from bench.doors import door

if __name__ == "__main__":
    door("gather")
