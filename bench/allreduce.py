"""Measure all-reduce: ``mpirun -n 16 python -m bench.allreduce``."""

from bench.doors import door

if __name__ == "__main__":
    door("allreduce")
