"""The share of time in which a thread was runnable but had no core, by Linux's counters."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

# The share of a row's time from which on the row says so.
_NOTED = 0.1


class CoreWait:
    """Counts from its making on; ``schedstat`` stands in for the thread's file in tests.

    The file has nanoseconds on a core, nanoseconds ready without one, and time slices (Linux,
    Documentation/scheduler/sched-stats.rst).
    """

    def __init__(self, schedstat: Path = Path("/proc/thread-self/schedstat")) -> None:
        self._path = schedstat
        self._waited, self._start = self._read(), time.monotonic()

    def _read(self) -> float | None:
        """Seconds so far; None where the kernel does not tell."""
        try:
            return int(self._path.read_text().split()[1]) / 1e9
        except (OSError, IndexError, ValueError):
            return None

    def share(self) -> float:
        """The share of the time so far; 0 where the kernel does not tell."""
        now, waited = time.monotonic(), self._read()
        if waited is None or self._waited is None or now <= self._start:
            return 0.0
        return min(1.0, max(0.0, (waited - self._waited) / (now - self._start)))


def noted(shares: Sequence[float]) -> str:
    """The note of a row that names the rank with a large share of waiting.

    Empty where none is.
    """
    return ", ".join(f"rank {r} {share:.0%}" for r, share in enumerate(shares) if share >= _NOTED)
