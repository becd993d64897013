"""Runs a launcher, and ends it with all processes that it has started: ``holder WORD…``.

Launchers start remote shells in sessions of their own, which survive when the launcher is killed.
This process adopts all orphans among its descendants. It ends them when the launcher has ended, or
when it receives SIGTERM. The kernel sends SIGTERM, too, if the parent process is killed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from types import FrameType

from bench.launch.child import below, orphans, owned, shell
from busbar.status import MISSING

#: Seconds that a launcher has to end its ranks before it is killed.
GRACE_S = 3


def main(argv: Sequence[str]) -> int:
    """Run the launcher. Returns its exit status as a shell would."""
    stopping: list[int] = []
    process: subprocess.Popen[bytes] | None = None

    def stop(number: int, frame: FrameType | None) -> None:
        stopping.append(number)
        if process is None:
            return
        if number == signal.SIGALRM:
            _kill(below(os.getpid()))
        else:
            process.send_signal(signal.SIGTERM)
            signal.alarm(GRACE_S)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGALRM):
        signal.signal(number, stop)
    with orphans():
        if stopping:
            return shell(-stopping[0])
        try:
            process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, **owned(signal.SIGTERM))
        except OSError as error:
            print(f"{argv[0]}: cannot be started: {error.strerror}", file=sys.stderr)
            return MISSING
        if stopping:
            stop(signal.SIGTERM, None)
        status = process.wait()
        signal.alarm(0)
        _kill_all()
    return shell(-stopping[0] if stopping else status)


def _kill_all() -> None:
    """Kill all descendants, repeatedly, as they may have started others meanwhile."""
    while alive := below(os.getpid()):
        _kill(alive)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(-1, 0)


def _kill(pids: Sequence[int]) -> None:
    for pid in pids:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
