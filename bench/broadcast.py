"""Measure broadcast: ``mpirun -n 16 python -m bench.broadcast``."""

from bench.main import door

if __name__ == "__main__":
    door("broadcast")
