"""The program of each rank of a launch: a guard process, and a child process that measures.

Results are lines on standard output, which every launcher forwards, so that hosts need not share a
file system. The guard does not import MPI. It reports how its rank ended, with the last line of the
rank's standard error, under any launcher. It also kills a rank that is stopped, or that has not
ended by its deadline. When the launcher's process on this host ends, the kernel kills the guard,
and then the rank.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from socket import gethostname

from bench.qualify.task import MARK, MOST_TEXT, Task
from busbar.host import boot
from busbar.launchers import launched
from busbar.status import RANK_LOST

# Seconds: between two checks of the rank, the same after it has closed its standard error, and
# until a stopped rank is killed.
_LOOK_S, _SHORT_S, _STOPPED_S = 0.5, 0.01, 3.0
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def send(event: str, **values: object) -> None:
    """Write a line about this rank in one piece, so that lines of several ranks do not mix."""
    sign = launched()
    line = {"event": event, "rank": sign.rank if sign else 0, "host": gethostname(), **values}
    os.write(1, f"\n{MARK}{json.dumps(line)}\n".encode())


def main(argv: Sequence[str]) -> int:
    """Run one rank of a launch. Returns its exit status."""
    task = Task.parse(argv)
    _end_with_parent()
    send("begun", boot=boot())
    reader, writer = os.pipe()
    parent, rank = os.getpid(), os.fork()
    if rank:
        os.close(writer)
        return _guard(rank, reader, task.seconds)
    _end_with_parent(parent)
    os.dup2(writer, 2)
    try:
        from bench.qualify.measures import measure

        measure(task, send)
    except BaseException:  # noqa: BLE001 - MPI's own end would wait for ranks that may have failed as well
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    return 0


def _end_with_parent(parent: int = 0) -> None:
    """Let the kernel kill this process when its parent ends; ``parent``: its pid, 0 for any."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if parent and os.getppid() != parent:
        os._exit(RANK_LOST)


def _guard(rank: int, errors: int, seconds: float) -> int:
    """Wait for the rank and report how it ended. Returns its exit status as a shell would."""
    until, last, stopped_at = time.monotonic() + seconds, b"", 0.0
    detail, is_open = "", True
    while True:
        if is_open and select.select([errors], [], [], _LOOK_S)[0]:
            data = os.read(errors, 1 << 16)
            is_open = bool(data)
            # The last line that is not blank.
            lines = [line for line in (last + data).splitlines(keepends=True) if line.strip()]
            last = lines[-1][-(1 << 12) :] if lines else last
        elif not is_open:  # the rank ends now, or has closed its standard error
            time.sleep(_SHORT_S)
        ended, status = os.waitpid(rank, os.WNOHANG | os.WUNTRACED | os.WCONTINUED)
        now = time.monotonic()
        if ended and os.WIFSTOPPED(status):
            stopped_at = now
        elif ended and os.WIFCONTINUED(status):
            stopped_at = 0.0
        elif ended:
            break
        if stopped_at and now > stopped_at + _STOPPED_S:
            detail = "stopped"
        elif now > until:
            detail = "late"
        if detail:
            os.kill(rank, signal.SIGKILL)
            _, status = os.waitpid(rank, 0)
            break
    code = os.waitstatus_to_exitcode(status)
    if code or detail:
        text = last.decode(errors="replace").strip()[-MOST_TEXT:]
        send(detail or "ended", status=code if code >= 0 else 128 - code, detail=text)
    return RANK_LOST if code < 0 else code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
