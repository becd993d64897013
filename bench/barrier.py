"""Measure barrier: ``mpirun -n 16 python -m bench.barrier``."""

from bench.main import door

if __name__ == "__main__":
    door("barrier")
