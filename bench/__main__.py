"""``python -m bench`` lists the benchmarks, ``python -m bench NAME`` runs one, ``all`` every one."""

import sys

from busbar.process import serve


def _main() -> int:
    from bench.cli.main import listing, main, speaks

    if len(sys.argv) < 2 or sys.argv[1] in ("-h", "--help"):
        if speaks():
            print("\n".join(listing()))
        return 0
    return main(sys.argv[1], sys.argv[2:])


if __name__ == "__main__":
    sys.exit(serve("busbar", _main))
