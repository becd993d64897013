"""Measure alltoall: ``mpirun -n 16 python -m bench.alltoall``."""

from bench.doors import door

if __name__ == "__main__":
    door("alltoall")
