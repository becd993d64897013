"""The control socket between a rank and the process that started it (`bench.launch.ranks`).

A rank sends its progress, its rows and its exit status; the starter sends the reason if the run
must end. The socket closes when its process ends, however it ends, so the starter always notices.
Messages are JSON, one per line. Under a plain ``mpirun`` there is no starter and no socket, and
sending does nothing. Then an alarm signal ends ranks that hang in MPI's start or end. A thread
could not do that, since MPI holds the interpreter's lock there.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import socket
import struct
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress

from busbar.launchers import launched
from busbar.process import load
from busbar.status import INTERRUPTED, RANK_LOST

#: The variable with the socket's name in the ranks' environment.
VARIABLE = "BUSBAR_STARTER"
# Seconds that sending the exit status may take.
_LAST_S = 1.0
# Seconds that starting or ending may take at the least, and more for each rank that a core has, and
# for each rank of the run: that is no time of a row.
_BEGIN_S, _EACH_S, _EVERY_S = 15.0, 2.0, 0.02


class Phase:
    """The phases of a rank's run."""

    STARTING, ROWS, ENDING = "starting", "rows", "ending"


def patience(timeout: float | None, ranks: int, size: int = 0) -> float | None:
    """Seconds that starting, or ending, may take if a row may take ``timeout``.

    ``ranks``: on this host; ``size``: on all hosts.
    """
    if timeout is None:
        return None
    shared = _EACH_S * ranks / len(os.sched_getaffinity(0))
    return max(timeout, _BEGIN_S + shared + _EVERY_S * size)


def address(name: str) -> str:
    """The address of an abstract socket, which leaves nothing on any disk."""
    return f"\0busbar-{name}"


def process(end: socket.socket) -> int | None:
    """The process at the other end of a socket; None if it belongs to another user."""
    packed = end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, user, _ = struct.unpack("3i", packed)
    return int(pid) if user == os.geteuid() else None


class ControlSocket:
    """A rank's end of the socket. Sending never fails and never waits for an answer."""

    def __init__(self, end: socket.socket | None = None) -> None:
        self._end, self._lock, self._received = end, threading.Lock(), b""
        #: Seconds that starting and ending may take, each; None for as long as they like.
        self.limit: float | None = None
        #: The exit status that `leave` sends without another.
        self.status = 0

    @classmethod
    def open(cls, rank: int | None, env: Mapping[str, str] = os.environ) -> ControlSocket:
        """Connect a rank to its starter; without a starter the result sends nothing."""
        if rank is None or not env.get(VARIABLE):
            return cls()
        end = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            end.connect(address(env[VARIABLE]))
        except OSError:  # the starter is gone
            end.close()
            return cls()
        line = cls(end)
        line.send(rank=rank, pid=os.getpid())
        return line

    @property
    def connected(self) -> bool:
        """True if there is a starter."""
        return self._end is not None

    def send(self, **values: object) -> None:
        """Send values to the starter."""
        self._send(json.dumps(values).encode() + b"\n")

    def stage(self, name: str) -> None:
        """Report the phase that begins now, one of `Phase`."""
        self.send(stage=name)
        if self.limit is not None and self._end is None:
            signal.setitimer(signal.ITIMER_REAL, 0 if name == Phase.ROWS else self.limit)

    def record(self, lines: bytes) -> None:
        """Send a row, as lines of a record file, so that it can be reported without this rank."""
        self._send(b"".join(b'{"record":' + line + b"}\n" for line in lines.splitlines()))

    def leave(self, status: int | None = None) -> None:
        """Send that this rank ends, with an exit status; only the first call sends."""
        with self._lock:
            end, self._end = self._end, None
        if end is None:
            return
        word = json.dumps({"left": self.status if status is None else status})
        with suppress(OSError):
            end.settimeout(_LAST_S)
            end.sendall(word.encode() + b"\n")
        # Stays open: its end is that of the process.
        self._closing = end

    def fileno(self) -> int:
        """The file descriptor, for ``select``."""
        assert self._end is not None
        return self._end.fileno()

    def stop_request(self) -> str | None:
        """Why the run must end, once `fileno` is readable; None without a complete message."""
        if self._end is None:
            return None
        try:
            data = self._end.recv(4096, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return None
        except OSError:
            data = b""
        if not data:
            return "whoever started this run is gone"
        self._received += data
        first, end_of_line, _ = self._received.partition(b"\n")
        return first.decode(errors="replace") if end_of_line else None

    def _send(self, data: bytes) -> None:
        with self._lock:
            if self._end is None:
                return
            with suppress(OSError):
                self._end.sendall(data)


def command(argv: Sequence[str]) -> int:
    """Run a benchmark, see `bench.cli.main.command`, which is imported after the socket is open."""
    return joined("bench.cli.main:command", argv)


def step(argv: Sequence[str]) -> int:
    """Measure training steps, see `bench.steps.main.main`."""
    return joined("bench.steps.main:main", argv)


def joined(target: str, argv: Sequence[str]) -> int:
    """Call ``module:function`` with the arguments and this rank's control socket.

    Returns the exit status.
    """
    sign = launched()
    line = ControlSocket.open(None if sign is None else sign.rank)
    if line.connected:  # after MPI's own end, which is registered later: till then it can be lost
        atexit.register(line.leave)
    line.status = RANK_LOST  # the status if an exception is not handled
    try:
        line.status = int(load(target)(argv, line))
    except KeyboardInterrupt:
        line.status = INTERRUPTED
        raise
    return line.status
