"""One-sided programs: the messages of one step as puts or gets."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from busbar.errors import Unsupported
from collectives.execution.program import Program, Span
from collectives.execution.transport import OneSidedAccess
from collectives.execution.world import World
from collectives.schedule.moves import Buffer


class RemoteAccess(NamedTuple):
    """This rank's elements (``own``), and those that ``peer`` exposes (``start`` to ``stop``)."""

    peer: int
    own: Span
    start: int
    stop: int


class OneSidedProgram:
    """The remote accesses of one rank in a one-sided program. All ranks create it together.

    ``exposed``: the buffer that other ranks access: the output for put, the input for get. Raises
    Unsupported for programs of several steps or with additions.
    """

    def __init__(self, world: World, program: Program, how: OneSidedAccess) -> None:
        steps = program.steps
        if len(steps) > 1 or any(r.other or r.late for step in steps for r in step.receives):
            raise Unsupported(f"{how.way} carries out one step of plain messages")
        sends = [(send.peer, send.span) for step in steps for send in step.sends]
        receives = [(one.peer, one.span) for step in steps for one in step.receives]
        self.put, self.times = how.way == "put", how.times
        self.exposed = Buffer.OUT if self.put else Buffer.IN
        own_spans, reached = (sends, receives) if self.put else (receives, sends)
        everyone = world.gather([[peer, span.start, span.stop] for peer, span in reached])
        self.accesses: list[RemoteAccess] = []
        nth: Counter[int] = Counter()
        for peer, own in own_spans:
            # The n-th message between two ranks is the n-th at both ends.
            to_me = [(start, stop) for rank, start, stop in everyone[peer] if rank == world.rank]
            self.accesses.append(RemoteAccess(peer, own, *to_me[nth[peer]]))
            nth[peer] += 1
        self.elements = sum(span.size for _, span in sends), sum(span.size for _, span in receives)

    @property
    def peers(self) -> list[int]:
        """The ranks whose memory this rank accesses."""
        return list(dict.fromkeys(access.peer for access in self.accesses))

    def moved(self, itemsize: int) -> tuple[int, int]:
        """Bytes that an iteration sends and receives."""
        sent, received = (count * itemsize * self.times for count in self.elements)
        return sent, received
