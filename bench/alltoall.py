"""Measure alltoall: ``mpirun -n 16 python -m bench.alltoall``."""

from bench.main import door

if __name__ == "__main__":
    door("alltoall")
