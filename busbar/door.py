# PYTHON_ARGCOMPLETE_OK
"""The first, light module that a command loads: from here on an interrupt causes no traceback."""

from __future__ import annotations

import sys

from busbar.status import INTERRUPTED

TYPE_CHECKING = False  # as typing has it, which takes longer to load than this
if TYPE_CHECKING:
    from typing import NoReturn


def leave(name: str, target: str, *words: str) -> NoReturn:
    """Run a command with ``words`` and this process's arguments, then exit with its status.

    ``name``: prefix of its errors. ``target``: its function as ``module:function``. It is loaded
    here and not earlier, so that failures while loading are handled too.
    """
    try:
        from busbar.process import serve

        status = serve(name, lambda: _opened(target, [*words, *sys.argv[1:]]))
    except KeyboardInterrupt:  # before `serve` could see to it, or after
        status = INTERRUPTED
    from signal import SIG_DFL, SIGINT, signal

    signal(SIGINT, SIG_DFL)  # the interpreter's own end has only tracebacks for an interrupt
    sys.exit(status)


def _opened(target: str, words: list[str]) -> int:
    from busbar.process import load
    from busbar.rooms import check_rooms

    check_rooms()
    return int(load(target)(words))


def busbar() -> NoReturn:
    """The console script."""
    leave("busbar", "busbar.cli:main")
