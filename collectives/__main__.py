"""``python -m collectives``: schedules for people to see, prove and cost."""

import sys

from busbar.process import serve


def _main() -> int:
    from collectives.cli import main

    return main()


if __name__ == "__main__":
    sys.exit(serve("collectives", _main))
