"""Measure allgather: ``mpirun -n 16 python -m bench.allgather``."""

from bench.doors import door

if __name__ == "__main__":
    door("allgather")
