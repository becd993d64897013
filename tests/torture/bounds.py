"""The bounds of one case: CPU seconds of this process, and bytes beyond those that it has."""

from __future__ import annotations

import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType


class TooLong(BaseException):
    """A case took more CPU time than it may. No parser catches it as an error of its own."""


def _virtual_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return pages * resource.getpagesize()


@contextmanager
def bounded(seconds: float, nbytes: int) -> Iterator[None]:
    """Raise TooLong past ``seconds`` of CPU, MemoryError past ``nbytes`` more than there are now.

    CPU time makes no failures on a busy machine. A call into C raises when it returns. Bytes are
    bounded where /proc says how many this process has.
    """

    def late(signum: int, frame: FrameType | None) -> None:
        raise TooLong(f"more than {seconds:g} s of CPU")

    before = signal.signal(signal.SIGPROF, late)
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    try:
        if Path("/proc/self/statm").exists():
            resource.setrlimit(resource.RLIMIT_AS, (_virtual_bytes() + nbytes, hard))
        signal.setitimer(signal.ITIMER_PROF, seconds)
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        signal.signal(signal.SIGPROF, before)
