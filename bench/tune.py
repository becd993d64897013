"""Choose algorithms: ``python -m bench.tune --ranks 2,4 --transport mpi,shm -b 1K -e 16M``."""

from busbar.door import leave

if __name__ == "__main__":
    leave("busbar", "busbar.cli:main", "tune")
