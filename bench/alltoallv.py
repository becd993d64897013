"""Measure alltoallv: ``mpirun -n 16 python -m bench.alltoallv``."""

from bench.doors import door

if __name__ == "__main__":
    door("alltoallv")
