"""Servers and learners joined by Unix sockets: a learner may be killed, and another may join.

A socket closes when its process ends, however it ends. Both ends accept only processes of their own
user. Server 0 numbers a learner that joins by itself.
"""

from __future__ import annotations

import json
import select
import socket
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.launch import child
from bench.launch.control_socket import process
from bench.steps.server.ends import NOTHING, Arrival, MessageKind, ServerEnd, header
from bench.steps.server.hooks import Vector
from bench.steps.server.wire import LONGEST, PATIENCE_S, address, fill, head, memory
from busbar.errors import RankFailure


class _Line:
    """A server's line to one learner."""

    def __init__(self, end: socket.socket, pid: int) -> None:
        end.setblocking(False)
        self.end, self.pid, self.learner = end, pid, -1
        self.out: deque[memoryview] = deque()
        #: Why it is given up.
        self.why = "was lost"

    def flush(self) -> None:
        """Send what can be sent without waiting. Raises OSError where nobody is there."""
        while self.out:
            try:
                sent = self.end.send(self.out[0])
            except BlockingIOError:
                return
            if sent == len(self.out[0]):
                self.out.popleft()
            else:
                self.out[0] = self.out[0][sent:]


class SocketServer(ServerEnd):
    """See `ServerEnd`. ``about``: what a learner is told of the run, with its number."""

    def __init__(self, name: str, server: int, about: Mapping[str, Any]) -> None:
        super().__init__()
        self.name, self._about = name, about
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(address(name, server))
        self._listener.listen(1024)
        self._lines: dict[int, _Line] = {}  # by their files' numbers
        self._learners: dict[int, _Line] = {}
        # Learners that join later are numbered after those that the run began with.
        self._next = int(about["learners"])
        self._early: list[Arrival] = []
        self._buffer = NOTHING
        self._stopped = child.StoppedProcesses()
        # Headers that have come, the earliest of which is next.
        self._headed: list[tuple[float, _Line, int, int, int]] = []

    def gather(self, learners: int, look: Callable[[], None]) -> None:
        """Wait until so many learners are here; ``look`` raises where they will not come."""
        came, early = 0, list[Arrival]()
        while came < learners:
            look()
            arrival = self.receive(0.25)
            if arrival is None:
                continue
            if arrival.learner >= learners:
                early.append(arrival)
            elif arrival.kind == MessageKind.JOIN:
                came += 1
            else:
                raise RankFailure(f"learner {arrival.learner} was lost before it began")
        self._early = early

    def receive(self, seconds: float) -> Arrival | None:
        """See `ServerEnd.receive`."""
        if self._early:
            return self._early.pop(0)
        until = time.perf_counter() + seconds
        self._look(0.0)
        while not self._headed:
            rest = until - time.perf_counter()
            if rest <= 0:
                return None
            self._look(rest)
        self._headed.sort(key=lambda one: one[0])
        sent, line, kind, version, nbytes = self._headed.pop(0)
        began = time.perf_counter()
        if kind == MessageKind.FAILED and nbytes < 0:
            return Arrival(kind, line.learner, 0, began, began, _gone(line))
        if len(self._buffer) < nbytes:
            self._buffer = np.empty(nbytes, np.uint8)
        data = self._buffer[:nbytes]
        try:
            fill(line.end, memory(data))
        except (EOFError, OSError):
            self._lose(line)
            return self.receive(0.0)
        if kind == MessageKind.JOIN:
            line.learner = version
            self._learners[version] = line
        self.bytes_in += nbytes
        return Arrival(kind, line.learner, version, sent, began, data)

    def close(self) -> None:
        """See `ServerEnd.close`."""
        for line in self._lines.values():
            with suppress(OSError):
                line.end.settimeout(PATIENCE_S)
                for data in line.out:
                    line.end.sendall(data)
            line.end.close()
        self._listener.close()

    # -- what comes

    def _look(self, seconds: float) -> None:
        """Wait so long for an event; then accept callers, read headers and send what waits.

        A learner that stays stopped is lost: it answers nobody, and its socket stays open.
        """
        overdue = self._stopped.overdue(line.pid for line in self._lines.values())
        for line in [line for line in self._lines.values() if line.pid in overdue]:
            self._lose(line)
        busy = {one[1].end.fileno() for one in self._headed}
        reading = [self._listener.fileno(), *(n for n in self._lines if n not in busy)]
        writing = [n for n, line in self._lines.items() if line.out]
        before = time.perf_counter()
        readable, writable, _ = select.select(reading, writing, [], seconds)
        self.idle += time.perf_counter() - before
        for number in writable:
            with suppress(OSError):  # its end is read, too
                self._lines[number].flush()
        for number in readable:
            if number == self._listener.fileno():
                self._accept()
            elif number in self._lines:
                self._head(self._lines[number])

    def _accept(self) -> None:
        end, _ = self._listener.accept()
        pid = process(end)
        if pid is None:
            end.close()
        else:
            self._lines[end.fileno()] = _Line(end, pid)

    def _head(self, line: _Line) -> None:
        try:
            kind, version, nbytes, sent, _ = head(line.end)
        except (EOFError, OSError):
            self._lose(line)
            return
        if kind == MessageKind.HELLO:
            self._describe(line, version)
        elif not 0 <= nbytes <= _most(kind, self._about):
            self._lose(line)
        else:
            self._headed.append((sent, line, kind, version, nbytes))

    def _describe(self, line: _Line, number: int) -> None:
        """Answer what the run is; a learner without a number gets one."""
        if number < 0:
            number, self._next = self._next, self._next + 1
        text = json.dumps({**self._about, "number": number}).encode()
        line.out += [memoryview(header(MessageKind.HELLO, 0, len(text))), memoryview(text)]
        with suppress(OSError):
            line.flush()

    def _lose(self, line: _Line) -> None:
        """Give up a line whose process is gone, or breaks the rules of messages."""
        if child.stopped(line.pid):
            line.why = "is stopped"
        self._lines.pop(line.end.fileno(), None)
        line.end.close()
        self._headed = [one for one in self._headed if one[1] is not line]
        if self._learners.pop(line.learner, None) is not None:
            self._headed.append((time.perf_counter(), line, MessageKind.FAILED, 0, -1))

    # -- what goes

    def put(
        self, learners: Sequence[int], kind: int, version: int, data: Vector, cause: float
    ) -> None:
        """See `ServerEnd.put`."""
        data = data.copy()
        begins = memoryview(header(kind, version, data.nbytes, cause))
        for learner in learners:
            line = self._learners.get(learner)
            if line is None:
                continue
            line.out.append(begins)
            if data.nbytes:
                line.out.append(memory(data))
            with suppress(OSError):
                line.flush()
            self.bytes_out += data.nbytes


def _gone(line: _Line) -> NDArray[np.uint8]:
    return np.frombuffer(f"(pid {line.pid}) {line.why}".encode(), np.uint8)


def _most(kind: int, about: Mapping[str, Any]) -> int:
    """The bytes that a message of that kind may have."""
    return int(about["bytes"]) if kind == MessageKind.GRADIENT else LONGEST
