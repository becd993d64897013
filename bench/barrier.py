"""Measure barrier: ``mpirun -n 16 python -m bench.barrier``."""

from bench.doors import door

if __name__ == "__main__":
    door("barrier")
