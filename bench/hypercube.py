"""Measure hypercube: ``mpirun -n 16 python -m bench.hypercube``."""

from bench.doors import door

if __name__ == "__main__":
    door("hypercube")
