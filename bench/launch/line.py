"""A socket from a rank to the starter of its run: progress, results so far, and the end.

The socket closes when its process ends, however it ends, so the starter always notices. Messages
are JSON, one per line. Under a plain ``mpirun`` there is no starter and no socket, and sending does
nothing. An alarm then ends ranks that hang in MPI's start or end. A thread could not do that, since
MPI holds the interpreter's lock there.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import threading
from collections.abc import Mapping
from contextlib import suppress

#: Names the starter's socket in its ranks' environment.
VARIABLE = "BUSBAR_STARTER"
# How long the last words may take where nobody hears them.
_LAST_S = 1.0
# What ranks that share cores take to start or to end is no row's: at least so many seconds, and so
# many for each rank that a core has.
_BEGIN_S, _EACH_S = 15.0, 2.0


class Phase:
    """Where a rank is in its run."""

    STARTING, ROWS, ENDING = "starting", "rows", "ending"


def patience(timeout: float | None, ranks: int) -> float | None:
    """Seconds that starting, or ending, may take where a row may take ``timeout``."""
    if timeout is None:
        return None
    return max(timeout, _BEGIN_S + _EACH_S * ranks / len(os.sched_getaffinity(0)))


def address(name: str) -> str:
    """The socket of a name: an abstract one, of which nothing is left on any disk."""
    return f"\0busbar-{name}"


def process(end: socket.socket) -> int | None:
    """The process at the other end of such a socket; None where it is another user's."""
    packed = end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, user, _ = struct.unpack("3i", packed)
    return int(pid) if user == os.geteuid() else None


class Hotline:
    """One end of the line; telling never fails, and never waits for an answer."""

    def __init__(self, end: socket.socket | None = None) -> None:
        self._end, self._lock, self._heard = end, threading.Lock(), b""
        #: Seconds that starting and ending may take, each; None for as long as they like.
        self.limit: float | None = None
        #: The exit status that `leave` tells, where nobody has given another.
        self.status = 0

    @classmethod
    def open(cls, rank: int | None, env: Mapping[str, str] = os.environ) -> Hotline:
        """The line of a rank that a starter waits for; an idle one for any other process."""
        if rank is None or not env.get(VARIABLE):
            return cls()
        end = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            end.connect(address(env[VARIABLE]))
        except OSError:  # whoever started us is gone
            end.close()
            return cls()
        line = cls(end)
        line.tell(rank=rank, pid=os.getpid())
        return line

    @property
    def here(self) -> bool:
        """Whether somebody listens."""
        return self._end is not None

    def tell(self, **words: object) -> None:
        """Tell the starter something."""
        self._send(json.dumps(words).encode() + b"\n")

    def stage(self, name: str) -> None:
        """Report the phase that begins now, one of `Phase`."""
        self.tell(stage=name)
        if self.limit is not None and self._end is None:
            signal.setitimer(signal.ITIMER_REAL, 0 if name == Phase.ROWS else self.limit)

    def record(self, lines: bytes) -> None:
        """Hand a row on, as lines of a record file: it can then be reported without this rank."""
        self._send(b"".join(b'{"record":' + line + b"}\n" for line in lines.splitlines()))

    def leave(self, status: int | None = None) -> None:
        """This rank ends by its own will, with an exit status; the first one told counts."""
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
        """For ``select``."""
        assert self._end is not None
        return self._end.fileno()

    def heard(self) -> str | None:
        """Why the starter wants the run to end, once `fileno` is readable; None for no word yet."""
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
        self._heard += data
        first, found, _ = self._heard.partition(b"\n")
        return first.decode(errors="replace") if found else None

    def _send(self, data: bytes) -> None:
        with self._lock:
            if self._end is None:
                return
            with suppress(OSError):
                self._end.sendall(data)
