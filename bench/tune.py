"""Choose algorithms: ``python -m bench.tune --ranks 2,4 --transport mpi,shm -b 1K -e 16M``."""

import sys

from busbar.process import serve


def _main() -> int:
    from bench.tuning.cli import main

    return main(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(serve("busbar", _main))
