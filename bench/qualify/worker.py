"""What a launch runs as each of its ranks: a guard, and below it the process that measures.

Results come back as lines on standard output, which every launcher forwards: hosts need not share
a file system. The guard imports no MPI. It sends how its rank ended, with the last line of the
rank's standard error, whichever launcher started it, and it ends a rank that is stopped or too
late. When the launcher's process on this host ends, the kernel ends the guard, and then the rank.
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
from typing import NamedTuple

from busbar.host import boot
from busbar.launchers import launched
from busbar.status import RANK_LOST

#: A line of ours begins so; `bench.qualify.lines` reads them.
MARK = "busbar-qualify "
#: Longest text of a fact or of a line of standard error that is sent.
MOST_TEXT = 300
# Seconds between two looks at the rank, and after which a rank that stays stopped is ended.
_LOOK_S, _STOPPED_S = 0.5, 3.0
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


class Task(NamedTuple):
    """What the ranks of a launch do: the words of the worker's command line.

    ``repeats`` of each measure with vectors of ``nbytes``; ``seconds`` after which the rank is
    ended; ``hosts``: how many hosts the launch has; ``transport`` as `--transport` of a benchmark.
    """

    stage: str
    hosts: int
    nbytes: int
    repeats: int
    seconds: float
    transport: str

    def words(self) -> list[str]:
        """The command line of the worker; see `parse`."""
        return [str(value) for value in self]

    @classmethod
    def parse(cls, words: Sequence[str]) -> Task:
        """The task of a command line that `words` made."""
        stage, hosts, nbytes, repeats, seconds, transport = words
        return cls(stage, int(hosts), int(nbytes), int(repeats), float(seconds), transport)


def send(event: str, **values: object) -> None:
    """Write a line about this rank in one piece, so that lines of several ranks do not mix."""
    sign = launched()
    line = {"event": event, "rank": sign.rank if sign else 0, "host": gethostname(), **values}
    os.write(1, f"\n{MARK}{json.dumps(line)}\n".encode())


def main(argv: Sequence[str]) -> int:
    """Run one rank of a launch; returns its exit status."""
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
    """Have the kernel kill this process when its parent ends; ``parent``: 0 for any."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if parent and os.getppid() != parent:
        os._exit(RANK_LOST)


def _guard(rank: int, errors: int, seconds: float) -> int:
    """Wait for the rank and send how it ended; returns its exit status as a shell counts it."""
    until, last, stopped_at = time.monotonic() + seconds, b"", 0.0
    detail = ""
    while True:
        readable, _, _ = select.select([errors], [], [], _LOOK_S)
        data = os.read(errors, 1 << 16) if readable else b""
        last = _last_line(last, data)
        # The pipe ends with the rank, unless a process below it lives on.
        options = 0 if readable and not data else os.WNOHANG
        ended, status = os.waitpid(rank, options | os.WUNTRACED)
        now = time.monotonic()
        if ended and os.WIFSTOPPED(status):
            stopped_at = now
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


def _last_line(last: bytes, data: bytes) -> bytes:
    """The last line that is not blank of a text that comes in pieces."""
    lines = [line for line in (last + data).splitlines(keepends=True) if line.strip()]
    return lines[-1][-(1 << 12) :] if lines else last


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
