"""Rank 0's standard output and standard error: results on the one, progress on the other."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING

from collectives.errors import BusbarError

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

__all__ = ["Screen"]


class OutputClosedError(BusbarError):
    """Whoever read standard output has gone (``| head``)."""

    exit_status = 141  # as a shell reports SIGPIPE


class OutputLostError(BusbarError):
    """Standard output cannot be written: the disk that it goes to is full."""


def _write(lines: Iterable[str]) -> None:
    if sys.stdout is None:  # closed by whoever started us: `>&-`
        return
    try:
        for line in lines:
            print(line)
        sys.stdout.flush()
    except OSError as error:
        # What is still buffered has nowhere to go; the interpreter would complain at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            raise OutputClosedError("standard output was closed; the run ends here") from None
        what = f"standard output cannot be written: {error.strerror}"
        raise OutputLostError(f"{what}; the run ends here") from None


class Screen:
    """Prints on rank 0 only, whole lines, flushed; usable from the watching thread as well."""

    def __init__(self, rank: int) -> None:
        self._speaks = rank == 0
        self._lock = threading.Lock()
        self._progress: Progress | None = None
        self._task: TaskID | None = None

    def lines(self, lines: Iterable[str]) -> None:
        """Results."""
        if not self._speaks:
            return
        with self._lock:
            # Rows go to standard output untouched, so the display steps aside for them.
            if self._progress is not None:
                self._progress.stop()
            _write(lines)
            if self._progress is not None:
                self._progress.start()

    def note(self, text: str) -> None:
        """Something to know that is no result."""
        if self._speaks:
            with self._lock:
                print(text, file=sys.stderr, flush=True)

    def start(self, rows: int) -> None:
        """Show progress over so many placements of rows, when a person is looking."""
        if not (self._speaks and sys.stderr.isatty()):
            return
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
        )

        # Refreshed by hand: a refreshing thread would share this rank's core with the benchmark.
        self._progress = Progress(
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.description}"),
            console=Console(stderr=True),
            transient=True,
            auto_refresh=False,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._task = self._progress.add_task("", total=rows)
        self._progress.start()

    def advance(self, doing: str) -> None:
        """One placement is done; ``doing`` comes next."""
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, advance=1, description=doing, refresh=True)

    def close(self) -> None:
        """Take the progress display away."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None
