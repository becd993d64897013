"""A step's messages bound to persistent requests: run at once, or told of one by one in a trace."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from collectives.execution.transport import Tell, TracedMessage

Call = Callable[[], Any]


class BoundMessage(NamedTuple):
    """A persistent request, and what it moves."""

    request: Any
    way: str
    peer: int
    nbytes: int

    def told(self, tell: Tell, step: int, start: float) -> None:
        """It has ended now."""
        tell(TracedMessage(self.way, self.peer, self.nbytes, step, start, time.perf_counter()))


class BoundStep(NamedTuple):
    """A step: what is done before, messages that begin together, streams, and what is done then."""

    mpi: Any
    number: int
    before: list[Call]
    messages: list[BoundMessage]
    streams: list[PiecedMessage]
    then: list[Call]

    def calls(self) -> list[Call]:
        """The step as calls without arguments."""
        start, wait = self.mpi.Prequest.Startall, self.mpi.Request.Waitall
        everything = [one.request for one in self.messages]
        if not self.streams and len(everything) <= 2:
            starts: list[Call] = [one.Start for one in everything]
            return [*self.before, *starts, *(one.Wait for one in everything), *self.then]
        # Streams are drained one after the other: two additions into one slot keep their order,
        # and the first may be the one that brings in the rank's own share.
        begin: list[Call] = [partial(start, everything)] if everything else []
        end: list[Call] = [partial(wait, everything)] if everything else []
        return [*self.before, *begin, *(one.run for one in self.streams), *end, *self.then]

    def traced(self, tell: Tell) -> None:
        """The step once, each message told of when it ends."""
        for call in self.before:
            call()
        start, left = time.perf_counter(), list(self.messages)
        if left:
            self.mpi.Prequest.Startall([one.request for one in left])
        for stream in self.streams:
            stream.traced(tell, self.number)
        while left:
            ended = self.mpi.Request.Waitany([one.request for one in left])
            left.pop(ended).told(tell, self.number, start)
        for call in self.then:
            call()


class PiecedMessage:
    """A long message that is added segment by segment as it arrives, through two buffers."""

    def __init__(self, messages: list[BoundMessage], adds: list[Call]) -> None:
        self._messages, requests = messages, [one.request for one in messages]
        self._first = requests[:2]
        starts: list[Call] = [r.Start for r in requests[2:]] + [nothing, nothing]
        waits = [request.Wait for request in requests]
        self._pieces = list(zip(waits, adds, starts, strict=True))

    def run(self) -> None:
        """Receive and add all of it."""
        for request in self._first:
            request.Start()
        for wait, add, start_next in self._pieces:
            wait()
            add()
            start_next()

    def traced(self, tell: Tell, step: int) -> None:
        """Receive and add all of it; a segment's time is from when its buffer was free."""
        starts = [time.perf_counter()] * len(self._first)
        for request in self._first:
            request.Start()
        pieces = zip(self._messages, self._pieces, strict=True)
        for n, (message, (wait, add, start_next)) in enumerate(pieces):
            wait()
            message.told(tell, step, starts[n])
            add()
            starts.append(time.perf_counter())
            start_next()


def nothing() -> None:
    """After the last segments no buffer waits to be filled."""
