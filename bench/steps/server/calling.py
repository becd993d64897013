"""A learner as a separate process, which connects to the servers of a run at any time."""

from __future__ import annotations

import json
import select
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np

from bench.launch.control_socket import process
from bench.steps.server.ends import Answer, LearnerEnd, MessageKind, header
from bench.steps.server.hooks import Vector
from bench.steps.server.wire import LONGEST, address, fill, head, memory
from busbar.errors import RankFailure, Unavailable


class SocketLearner(LearnerEnd):
    """See `LearnerEnd`."""

    def __init__(
        self, ends: Sequence[socket.socket], number: int, weights: Vector, places: Sequence[slice]
    ) -> None:
        super().__init__(weights, places)
        self._ends = ends
        self._over = set[int]()
        for end in ends:
            end.sendall(header(MessageKind.JOIN, number, 0))

    def push(self, server: int, version: int, gradient: Vector) -> None:
        """See `LearnerEnd.push`."""
        data = np.ascontiguousarray(gradient).view(np.uint8)
        with _lost(server):
            self._ends[server].sendall(header(MessageKind.GRADIENT, version, data.nbytes))
            self._ends[server].sendall(memory(data))

    def wait(self, seconds: float | None) -> Answer | None:
        """See `LearnerEnd.wait`."""
        ends = [end for server, end in enumerate(self._ends) if server not in self._over]
        readable, _, _ = select.select(ends, [], [], seconds)
        if not readable:
            return None
        server = self._ends.index(readable[0])
        with _lost(server):
            kind, version, nbytes, sent, cause = head(readable[0])
            if kind == MessageKind.STOP:
                self._over.add(server)
                return Answer(server, None, sent, cause)
            part = self.part(server)
            if nbytes != part.nbytes:
                raise RankFailure(f"server {server} sent {nbytes} bytes, not {part.nbytes}")
            fill(readable[0], memory(part))
        return Answer(server, version, sent, cause)

    def say(self, kind: int, text: str = "") -> None:
        """See `LearnerEnd.say`."""
        data = text.encode()[:LONGEST]
        for end in self._ends:
            with suppress(OSError):
                end.sendall(header(kind, 0, len(data)) + data)

    def close(self) -> None:
        """See `LearnerEnd.close`."""
        for end in self._ends:
            end.close()


@contextmanager
def _lost(server: int) -> Iterator[None]:
    """Inside, a server that is gone is a RankFailure with its number."""
    try:
        yield
    except (OSError, EOFError):
        raise RankFailure(f"server {server} is gone") from None


def call(name: str, number: int = -1) -> tuple[dict[str, Any], list[socket.socket]]:
    """Call the servers of a run; gives what they say of it, and the lines to them.

    ``number``: this learner's, where the run began with it. Raises Unavailable where there is no
    such run, or it is another user's.
    """
    ends = [_connect(name, 0)]
    try:
        ends[0].sendall(header(MessageKind.HELLO, number, 0))
        nbytes = head(ends[0]).nbytes
        if not 0 < nbytes <= LONGEST:
            raise EOFError
        text = bytearray(nbytes)
        fill(ends[0], memoryview(text))
        about = dict(json.loads(text))
    except (EOFError, OSError, ValueError):
        raise Unavailable(f"the run {name!r} has ended") from None
    ends += [_connect(name, server) for server in range(1, int(about["servers"]))]
    return about, ends


def _connect(name: str, server: int) -> socket.socket:
    end = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with suppress(OSError):
        end.connect(address(name, server))
        if process(end) is not None:
            return end
    end.close()
    raise Unavailable(
        f"no run {name!r} of yours on this host takes learners; it prints its name at first"
    )
