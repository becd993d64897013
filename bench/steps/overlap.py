"""A second thread of a rank, which exchanges gradients while the first one computes.

It runs while the first thread sleeps or computes without the interpreter's lock. During a step only
this thread uses the ranks' communicators. Between steps it waits for work.
"""

from __future__ import annotations

import threading
from collections.abc import Callable


class Ready:
    """A count of the gradients that are ready: one thread sets it, another waits for it."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._count = 0

    @property
    def count(self) -> int:
        """The count now."""
        return self._count

    def mark(self, count: int) -> None:
        """So many are there."""
        with self._changed:
            self._count = count
            self._changed.notify_all()

    def await_(self, count: int) -> None:
        """Return when so many are there."""
        with self._changed:
            self._changed.wait_for(lambda: self._count >= count)


class Exchanger:
    """Runs one job at a time on a thread of its own; what it raises is raised by `wait`."""

    def __init__(self) -> None:
        self._job: Callable[[], None] | None = None
        self._begun, self._done = threading.Semaphore(0), threading.Semaphore(0)
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="exchange", daemon=True)
        self._thread.start()

    def begin(self, job: Callable[[], None]) -> None:
        """Start a job; the one before must have been waited for."""
        self._job = job
        self._begun.release()

    def wait(self) -> None:
        """Return when the job is done; raises what it has raised."""
        self._done.acquire()
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        while True:
            self._begun.acquire()
            if self._job is None:
                return
            try:
                self._job()
            except BaseException as error:  # noqa: BLE001  (carried to the waiting thread)
                self._error = error
            self._done.release()

    def close(self) -> None:
        """End the thread."""
        self._job = None
        self._begun.release()
