# PYTHON_ARGCOMPLETE_OK
"""Entry points of commands. This small module is loaded first, so Ctrl-C causes no traceback."""

from __future__ import annotations

import sys

from busbar.aliases import ROOMS
from busbar.status import INTERRUPTED, MISSING

TYPE_CHECKING = False  # type checkers take it for True; typing itself is slow to import
if TYPE_CHECKING:
    from typing import NoReturn


def leave(name: str, target: str, *words: str) -> NoReturn:
    """Run a command with ``words`` and this process's arguments, then exit with its status.

    ``name``: prefix of the command's errors. ``target``: its function as ``module:function``, which
    is loaded here and not earlier, so that errors while loading are handled, too.
    """
    try:
        from busbar.process import serve

        status = serve(name, lambda: _opened(target, [*words, *sys.argv[1:]]))
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing == "busbar" or missing in ROOMS:
            raise  # an error of ours
        print(
            f"{name}: {sys.executable} has no {missing}: activate the environment that Busbar is"
            " installed in (make bench makes .venv), or install it there with pip install",
            file=sys.stderr,
        )
        status = MISSING
    except KeyboardInterrupt:  # raised before or after `serve`, which handles it itself
        status = INTERRUPTED
        if sys.stderr is not None and sys.stderr.isatty():
            print(f"{name}: interrupted", file=sys.stderr, flush=True)
    from signal import SIG_DFL, SIGINT, signal

    signal(SIGINT, SIG_DFL)  # while the interpreter exits, an interrupt would print a traceback
    sys.exit(status)


def _opened(target: str, words: list[str]) -> int:
    from busbar.process import load
    from busbar.rooms import check_rooms

    check_rooms()
    return int(load(target)(words))


def busbar() -> NoReturn:
    """Run the console script ``busbar``."""
    leave("busbar", "busbar.cli:main")
