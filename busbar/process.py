"""How a command begins and ends as a process: streams, an interrupt, errors, exit status.

Standard output may be a terminal without UTF-8, a pipe whose reader has left, a full disk, or
closed. None of these causes a traceback.
"""

from __future__ import annotations

import codecs
import contextlib
import errno
import io
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

from busbar.errors import BusbarError
from busbar.status import BAD, CLOSED, GOOD, INTERRUPTED
from busbar.terminal import make_printable, plain_streams

# Errors of writing that mean: standard output takes no more.
_LOST = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
# One character each, so that columns stay columns.
_PLAIN = dict(
    zip("−…⌈⌉⌊⌋·→×≤≥αβγδµ√±─│", "-.[][].>x<>abgdu/~-|", strict=True)  # noqa: RUF001
)


class OutputClosed(BusbarError):
    """The reader of standard output has left (``| head``); this needs no message."""

    exit_status = CLOSED


class OutputLost(BusbarError):
    """Standard output cannot be written: the disk that it goes to is full."""


def load(target: str) -> Any:
    """Import and return ``module:name``, so that a command can name what it runs as text."""
    from importlib import import_module

    module, _, name = target.partition(":")
    return getattr(import_module(module), name)


def serve(name: str, run: Callable[[], int]) -> int:
    """Run a command with streams that it can rely on; gives the exit status, see `busbar.status`.

    An error of ours is one line on standard error that begins with ``name``.
    """
    try:
        _streams()
        with plain_streams(), output():
            try:
                status = run()
            except SystemExit as end:  # argparse has printed what was asked for
                status = end.code if isinstance(end.code, int) else GOOD if not end.code else BAD
            sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        with contextlib.suppress(BusbarError), output():
            sys.stdout.flush()
        return INTERRUPTED
    except OutputClosed:
        return CLOSED
    except BusbarError as error:
        return report_error(name, error)


def report_error(name: str, error: BusbarError) -> int:
    """Say why a command ends, on the launcher's rank 0 alone; gives the exit status.

    A launcher ends all ranks at the first bad status of one. A silent rank therefore stays until
    it is ended or some time has passed: it must not cut off the one that speaks.
    """
    import time

    from busbar.launchers import launched

    sign = launched()
    if sign is None or sign.rank == 0:
        print(f"{name}: {make_printable(str(error))}", file=sys.stderr, flush=True)
    else:
        time.sleep(sign.grace_s)
    return error.exit_status


@contextlib.contextmanager
def output() -> Iterator[None]:
    """Printing inside this context raises OutputClosed or OutputLost if standard output fails."""
    try:
        yield
    except OSError as error:
        lost = error.errno in _LOST and error.filename is None
        if not lost and not isinstance(error, BrokenPipeError):
            raise
        # What is still buffered has nowhere to go; the interpreter would complain at its end.
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not lost:
            raise OutputClosed("standard output was closed") from None
        raise OutputLost(f"standard output cannot be written: {error.strerror}") from None


def _streams() -> None:
    """Open /dev/null for closed streams; replace characters that a stream's encoding lacks.

    The next file that is opened gets the number of a closed stream: a library that prints would
    print into a socket or a result file.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            # Open for as long as the process lives, and for those that it starts.
            stream = open(os.devnull, mode, encoding="utf-8")  # noqa: PTH123, SIM115
            os.set_inheritable(stream.fileno(), True)
            setattr(sys, name, stream)
    codecs.register_error("busbar-plain", _plain)
    for one in (sys.stdout, sys.stderr):
        if isinstance(one, io.TextIOWrapper):
            one.reconfigure(errors="busbar-plain")


def _plain(error: UnicodeError) -> tuple[str, int]:
    """Replace characters that an encoding lacks by similar ones, or by question marks."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end]
    return "".join(_PLAIN.get(character, "?") for character in text), error.end
