"""Choose algorithms: ``python -m bench.tune --ranks 2,4 --transport mpi,shm -b 1K -e 16M``."""

import sys

from bench.tuning.cli import main
from collectives.process import serve

if __name__ == "__main__":
    sys.exit(serve("busbar", lambda: main(sys.argv[1:])))
