"""How a command begins and ends as a process: its streams, an interrupt, its exit status.

Standard output may be a terminal without UTF-8, a pipe whose reader leaves, a full disk, or closed.
None of these is worth a traceback.
"""

from __future__ import annotations

import codecs
import contextlib
import errno
import io
import os
import sys
from collections.abc import Callable

__all__ = ["CLOSED", "INTERRUPTED", "serve"]

INTERRUPTED = 128 + 2  # as a shell reports SIGINT
CLOSED = 128 + 13  # as a shell reports SIGPIPE

# What standard output says when nobody can take more of it.
_LOST = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
# One character each, so that columns stay columns.
_PLAIN = dict(
    zip("−…⌈⌉⌊⌋·→×≤≥αβγδµ√±─│", "-.[][].>x<>abgdu/~-|", strict=True)  # noqa: RUF001
)


def serve(name: str, run: Callable[[], int]) -> int:
    """Run a command with streams that it can rely on; gives the exit status.

    ``name`` begins the one line on standard error where standard output cannot be written: status
    2 then, 130 after Ctrl-C, 141 where the reader of standard output has left (``| head``).
    """
    _streams()
    try:
        status = run()
        sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        _forget()
        return CLOSED
    except OSError as error:
        if error.errno not in _LOST or error.filename is not None:
            raise
        _forget()
        print(f"{name}: standard output cannot be written: {error.strerror}", file=sys.stderr)
        return 2


def _streams() -> None:
    """Give a closed stream somewhere to go, and one without UTF-8 characters that it has.

    The lowest numbers go to whoever opens first: a closed standard output would become a socket or
    a result file, and a library that prints would print there.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            # Open for as long as the process lives, and for those that it starts.
            stream = open(os.devnull, mode, encoding="utf-8")  # noqa: PTH123, SIM115
            os.set_inheritable(stream.fileno(), True)
            setattr(sys, name, stream)
    codecs.register_error("busbar-plain", _plain)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="busbar-plain")


def _plain(error: UnicodeError) -> tuple[str, int]:
    """Characters that an encoding lacks, as others that look like them, or as question marks."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end]
    return "".join(_PLAIN.get(character, "?") for character in text), error.end


def _forget() -> None:
    """What is still buffered has nowhere to go; the interpreter would complain at its end."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
