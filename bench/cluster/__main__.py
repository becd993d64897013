"""``python -m bench.cluster``: run a command over hosts and links emulated on this machine."""

import sys

from busbar.process import serve


def _main() -> int:
    from bench.cluster.main import main

    return main(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(serve("busbar", _main))
