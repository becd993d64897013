"""Run a command as a process: set up its streams, and turn errors into messages and exit statuses.

Standard output may be a terminal without UTF-8, a pipe whose reader has exited, a full disk, or
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

# Errors of writing that mean that no more can be written to standard output.
_LOST = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
# Replacements of one character each, so that columns stay aligned.
_PLAIN = dict(
    zip("−…⌈⌉⌊⌋·→×≤≥αβγδµ√±─│", "-.[][].>x<>abgdu/~-|", strict=True)  # noqa: RUF001
)


class OutputClosed(BusbarError):
    """The reader of standard output has exited (``| head``). No message is printed."""

    exit_status = CLOSED


class OutputLost(BusbarError):
    """Standard output cannot be written, because its disk is full or fails."""


def load(target: str) -> Any:
    """Import a module and return its attribute, given as ``module:name``."""
    from importlib import import_module

    module, _, name = target.partition(":")
    return getattr(import_module(module), name)


def serve(name: str, run: Callable[[], int]) -> int:
    """Run a command with safe standard streams; returns its exit status (`busbar.status`).

    A `BusbarError` is printed to standard error, as one line that begins with ``name``.
    """
    try:
        _streams()
        with plain_streams(), output():
            try:
                status = run()
            except SystemExit as end:  # argparse has printed the help or the version
                status = end.code if isinstance(end.code, int) else GOOD if not end.code else BAD
            sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        with contextlib.suppress(BusbarError), output():
            sys.stdout.flush()
        note_interrupted(name)
        return INTERRUPTED
    except OutputClosed:
        return CLOSED
    except BusbarError as error:
        return report_error(name, error)


def note_interrupted(name: str) -> None:
    """Confirm Ctrl-C on a terminal; anywhere else the exit status says it."""
    if sys.stderr is not None and sys.stderr.isatty():
        with contextlib.suppress(OSError):
            print(f"{name}: interrupted", file=sys.stderr, flush=True)


def report_error(name: str, error: BusbarError) -> int:
    """Print an error on the launcher's rank 0; returns the exit status on all ranks.

    A launcher kills all ranks when the first one exits with a bad status. The other ranks therefore
    wait until they are killed or some time has passed, so that rank 0 can print.
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
    """A context that raises OutputClosed or OutputLost if standard output cannot be written."""
    try:
        yield
    except OSError as error:
        lost = error.errno in _LOST and error.filename is None
        if not lost and not isinstance(error, BrokenPipeError):
            raise
        # Buffered text is dropped; otherwise the interpreter would print an error when it exits.
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not lost:
            raise OutputClosed("standard output was closed") from None
        raise OutputLost(f"standard output cannot be written: {error.strerror}") from None


def _streams() -> None:
    """Open /dev/null for closed streams; replace characters that a stream's encoding lacks.

    If a stream is closed, the next file that is opened gets its file descriptor. A library that
    prints would then print into a socket or a result file.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            # The file stays open until this process exits; child processes inherit it.
            stream = open(os.devnull, mode, encoding="utf-8")  # noqa: PTH123, SIM115
            os.set_inheritable(stream.fileno(), True)
            setattr(sys, name, stream)
    codecs.register_error("busbar-plain", _plain)
    for one in (sys.stdout, sys.stderr):
        if isinstance(one, io.TextIOWrapper):
            one.reconfigure(errors="busbar-plain")


def _plain(error: UnicodeError) -> tuple[str, int]:
    """An error handler for encoding: similar characters for those that the encoding lacks, or ?."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end]
    return "".join(_PLAIN.get(character, "?") for character in text), error.end
