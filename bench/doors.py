"""The door of every benchmark: light, so that whatever goes wrong behind it ends in good order."""

from __future__ import annotations

import sys
from typing import NoReturn

from busbar.process import serve

__all__ = ["door"]


def door(collective: str) -> NoReturn:
    """Run the benchmark of a collective with this process's arguments, and leave."""

    def run() -> int:
        from bench.cli.main import main

        return main(collective, sys.argv[1:])

    sys.exit(serve("busbar", run))
