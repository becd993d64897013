"""Measure reduce: ``mpirun -n 16 python -m bench.reduce``."""

from bench.doors import door

if __name__ == "__main__":
    door("reduce")
