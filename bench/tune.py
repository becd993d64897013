"""Choose algorithms: ``python -m bench.tune --ranks 2,4 --transport mpi,shm -b 1K -e 16M``."""

import sys

from bench.tuning.cli import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
