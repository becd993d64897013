"""A server's end to learners of two kinds: MPI's ranks, and processes that call a socket.

So a process outside MPI can join ranks that go on after a loss.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from bench.steps.server.ends import Arrival, ServerEnd
from bench.steps.server.hooks import Vector
from bench.steps.server.messages import MpiServer
from bench.steps.server.sockets import SocketServer

# The server sleeps so long between two looks at both.
_LOOK_S = 100e-6


class OpenServer(ServerEnd):
    """See `ServerEnd`. Learners from number ``first`` on are callers."""

    def __init__(self, ranks: MpiServer, callers: SocketServer, first: int) -> None:
        super().__init__()
        self._ranks, self._callers, self._first = ranks, callers, first

    def receive(self, seconds: float) -> Arrival | None:
        """See `ServerEnd.receive`."""
        until = time.perf_counter() + seconds
        while True:
            arrival = self._callers.receive(0.0) or self._ranks.receive(0.0)
            now = time.perf_counter()
            if arrival is not None:
                self.bytes_in += arrival.data.nbytes
                return arrival
            if now >= until:
                return None
            time.sleep(_LOOK_S)
            self.idle += time.perf_counter() - now

    def put(
        self, learners: Sequence[int], kind: int, version: int, data: Vector, cause: float
    ) -> None:
        """See `ServerEnd.put`."""
        ranks = [one for one in learners if one < self._first]
        callers = [one for one in learners if one >= self._first]
        both: tuple[tuple[ServerEnd, list[int]], ...] = (
            (self._ranks, ranks),
            (self._callers, callers),
        )
        for end, some in both:
            if some:
                end.put(some, kind, version, data, cause)
        self.bytes_out += data.nbytes * len(learners)

    def close(self) -> None:
        """See `ServerEnd.close`."""
        self._callers.close()
        self._ranks.close()
