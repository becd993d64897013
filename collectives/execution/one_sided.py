"""One-sided programs: puts and gets, and the calls that carry them out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from busbar.errors import Unsupported
from collectives.execution.program import Program, Span
from collectives.execution.transport import Counted, Reach
from collectives.execution.world import World
from collectives.schedule.moves import Buffer


class RemoteAccess(NamedTuple):
    """Elements of this rank, and of the buffer that ``peer`` exposes."""

    peer: int
    own: Span
    start: int
    stop: int


class Reaching:
    """One rank's part of a one-sided program. All ranks create it together.

    ``exposed``: the buffer that others reach into: where data arrives with put, where it comes from
    with get. Raises Unsupported for programs of several steps, and where something is added.
    """

    def __init__(self, world: World, program: Program, how: Reach) -> None:
        steps = program.steps
        if len(steps) > 1 or any(r.other or r.late for step in steps for r in step.receives):
            raise Unsupported(f"{how.way} carries out one step of plain messages")
        sends = [(send.peer, send.span) for step in steps for send in step.sends]
        receives = [(one.peer, one.span) for step in steps for one in step.receives]
        self.put, self.times = how.way == "put", how.times
        self.exposed = Buffer.OUT if self.put else Buffer.IN
        mine, reached = (sends, receives) if self.put else (receives, sends)
        everyone = world.gather([[peer, span.start, span.stop] for peer, span in reached])
        self.accesses: list[RemoteAccess] = []
        nth: Counter[int] = Counter()
        for peer, own in mine:
            # The n-th message between two ranks is the n-th at both ends.
            to_me = [(start, stop) for rank, start, stop in everyone[peer] if rank == world.rank]
            self.accesses.append(RemoteAccess(peer, own, *to_me[nth[peer]]))
            nth[peer] += 1
        self.elements = sum(span.size for _, span in sends), sum(span.size for _, span in receives)

    @property
    def peers(self) -> list[int]:
        """The ranks whose memory this rank accesses."""
        return list(dict.fromkeys(access.peer for access in self.accesses))


class OneSided(Counted):
    """Calls that carry one rank's accesses out; see `Action`."""

    def __init__(self, what: Reaching, itemsize: int, calls: Sequence[Callable[[], Any]]) -> None:
        super().__init__(*(count * itemsize * what.times for count in what.elements))
        self._calls, self._times = list(calls), what.times

    def __call__(self) -> None:
        """Reach into the memory of others, so many times in a row."""
        self._runs += 1
        calls = self._calls
        for _ in range(self._times):
            for call in calls:
                call()

    def close(self) -> None:
        """Let go of other ranks' memory."""
        self._calls = []
