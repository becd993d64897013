"""``python -m bench`` lists the benchmarks, ``python -m bench NAME`` runs one, ``all`` every one."""

import sys

from bench.main import ALL, listing, main, names
from collectives.process import serve


def _main() -> int:
    if len(sys.argv) < 2 or sys.argv[1] in ("-h", "--help"):
        print("\n".join(listing()))
        return 0
    if sys.argv[1] not in (*names(), ALL):
        print(
            f"busbar: no benchmark {sys.argv[1]!r}; there are: {', '.join([*names(), ALL])}",
            file=sys.stderr,
        )
        return 2
    return main(sys.argv[1], sys.argv[2:])


if __name__ == "__main__":
    sys.exit(serve("busbar", _main))
