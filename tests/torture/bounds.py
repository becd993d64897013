"""What a single case may cost: seconds of this process's CPU, and bytes beyond what it has."""

from __future__ import annotations

import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType


class TooLong(BaseException):
    """A case took more CPU than it may; no parser may catch it as an error of its own."""


def _virtual_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return pages * resource.getpagesize()


@contextmanager
def bounded(seconds: float, nbytes: int) -> Iterator[None]:
    """Raise TooLong past that CPU time, MemoryError past that many bytes more than there are now.

    CPU time, so that a busy machine makes no failures. A call into C that does not return raises
    once it does. Bytes are bounded where /proc tells how many there are.
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
