"""Measure broadcast: ``mpirun -n 16 python -m bench.broadcast``."""

from bench.doors import door

if __name__ == "__main__":
    door("broadcast")
