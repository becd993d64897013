"""Two-sided MPI: persistent requests, created before anything is timed.

Both sides cut a long message that is to be added into the same segments. A segment is then still in
cache when it is added, while the next one arrives.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

import native
from collectives.execution.mpi.calls import (
    BoundMessage,
    BoundStep,
    Call,
    NativeCalls,
    PersistentCalls,
    bind_calls,
    requests,
)
from collectives.execution.mpi.library import library_calls, nonblocking
from collectives.execution.mpi.windows import ReachedMemory, one_sided
from collectives.execution.mpi.world import MpiWorld
from collectives.execution.program import Local, Program, ProgramStep, Receive, Send, Span
from collectives.execution.transport import (
    Action,
    Array,
    Buffers,
    Counted,
    LibraryCall,
    OneSidedAccess,
    Transport,
    host_memory,
    staging_for,
)
from collectives.execution.world import Json
from collectives.schedule.ops import Op

# Half of a usual L2 cache: two segments of staging and their part of the vector fit into it.
SEGMENT_BYTES = 512 * 1024
IN_FLIGHT = 2
# For a row that Python calls (to divide an average, say) while the extension calls other rows.
_THROUGH_PYTHON: Mapping[str, Json] = {"called": "through Python"}
TAGS = 32768  # MPI promises tags below this
# Longer messages are sent in pieces, because before MPI 4 an int counts their bytes.
MOST_BYTES = 1 << 30


@dataclass(frozen=True)
class Segments:
    """How messages that are to be added are cut into segments.

    ``nbytes``: bytes of a segment; 0: messages are not cut. ``in_flight``: segments of a message
    that are received at once, each into a buffer of its own.
    """

    nbytes: int = SEGMENT_BYTES
    in_flight: int = IN_FLIGHT

    def elements(self, array: Array) -> int:
        """Elements of one segment of an array, at least 1."""
        return max(1, (self.nbytes or array.nbytes) // array.itemsize)

    def remark(self) -> Mapping[str, Json]:
        """The settings for a record; empty if they are the default."""
        remark = {"segment_bytes": self.nbytes, "in_flight": self.in_flight}
        return {} if self == DEFAULT else remark

    def staging(self, program: Program, itemsize: int, near: Collection[int] = ()) -> int:
        """Bytes of staging for messages that cannot be received into their target.

        These are messages whose target a send of the same step still reads, and messages that are
        added, unless they come from a rank in ``near``.
        """
        most = self.nbytes * self.in_flight or sys.maxsize
        return sum(
            r.span.size * itemsize if r.late else min(most, r.span.size * itemsize)
            for step in program.steps
            for r in step.receives
            if r.late or (r.other is not None and r.peer not in near)
        )


DEFAULT = Segments()


class MpiTransport(Transport):
    """The transport that sends host memory by MPI; see `Transport` for the methods.

    ``reached``: allocate windows (MPI_Win), for put and get.
    """

    name = "mpi"
    has_library = True
    has_nonblocking = True

    def __init__(
        self, world: MpiWorld, segments: Segments = DEFAULT, *, reached: bool = False
    ) -> None:
        self._world, self._segments = world, segments
        self._windows = ReachedMemory(world) if reached else None
        self.library_executor = "python" if native.load() is None else "native"
        self.action_facts: Mapping[str, Json] = {}

    def allocate(self, nbytes: int) -> NDArray[np.uint8]:
        """Host memory. With windows, all ranks call this together."""
        if self._windows is not None:
            return self._windows.allocate(nbytes)
        return host_memory(nbytes)

    def trim(self) -> None:
        """Free windows that no rank uses. All ranks call this together."""
        if self._windows is not None:
            self._windows.trim()

    def staging(self, program: Program, itemsize: int) -> int:
        """Bytes of staging for messages that are added, or whose target the step's sends read."""
        return self._segments.staging(program, itemsize)

    def prepare(self, program: Program, buffers: Buffers, op: Op | None) -> Action:
        """Bind one rank's program to its buffers, see `Transport.prepare`."""
        binder = Binder(self._world, self._segments, buffers, op)
        steps = binder.steps(program)
        calls = [call for step in steps for call in step.calls]
        moved = binder.sent, binder.received
        action = self._bound(bind_calls(self._world, calls, moved, steps))
        self.action_facts = {**self.action_facts, **self._segments.remark()}
        return action

    def one_sided(self, program: Program, buffers: Buffers, how: OneSidedAccess) -> Action:
        """Bind a program of one step as MPI_Put or MPI_Get, see `Transport.one_sided`."""
        if self._windows is None:
            return super().one_sided(program, buffers, how)
        return one_sided(self._world, self._windows, program, buffers, how)

    def close(self) -> None:
        """Free the windows."""
        if self._windows is not None:
            self._windows.close()

    def library(self, call: LibraryCall) -> Action:
        """MPI's own collective. Raises Unsupported if MPI has no such type or collective."""
        calls = library_calls(self._world, call)
        if call.nonblocking:
            return _Begun(self._world, calls)
        return self._bound(bind_calls(self._world, calls))

    def _bound(self, action: PersistentCalls) -> PersistentCalls:
        through_python = native.load() is not None and not isinstance(action, NativeCalls)
        self.action_facts = _THROUGH_PYTHON if through_python else {}
        return action


class _Begun(Counted):
    """The library's collective in its non-blocking form; see `Action` for the methods."""

    def __init__(self, world: MpiWorld, calls: list[Call]) -> None:
        super().__init__(0, 0)
        self._before, self._begin, self._after = nonblocking(world, calls)

    def __call__(self) -> None:
        self.over(lambda: None)

    def over(self, work: Call) -> None:
        self._runs += 1
        for call in self._before:
            call()
        request = self._begin()
        work()
        request.Wait()
        for call in self._after:
            call()

    def close(self) -> None:
        """Do nothing; no resources are held."""


class Phase(IntEnum):
    """When a message is added: read from a neighbour, by segments, or after it has arrived."""

    PULLS = 0
    STREAMS = 1
    ADDS = 2


@dataclass
class StepWork:
    """The calls of a step by phase; ``messages`` are started together.

    ``pulls`` and ``streams`` run while messages travel, ``adds`` after their arrival. ``late``
    calls write memory that the step's own sends read, so they run after these.
    """

    step: ProgramStep
    before: list[Call] = field(default_factory=list)
    messages: list[BoundMessage] = field(default_factory=list)
    pulls: list[Call] = field(default_factory=list)
    streams: list[Call] = field(default_factory=list)
    adds: list[Call] = field(default_factory=list)
    late: list[Call] = field(default_factory=list)
    after: list[Call] = field(default_factory=list)

    def calls(self, mpi: Any) -> list[Call]:
        """All calls, in the order of execution."""
        return [
            *self.before,
            *requests(mpi, self.messages, waits=False),
            *self.pulls,
            *self.streams,
            *requests(mpi, self.messages, waits=True),
            *self.adds,
            *self.late,
            *self.after,
        ]


class Binder:
    """Binds a program: creates requests, slices views, and allocates staging."""

    def __init__(
        self, world: MpiWorld, segments: Segments, buffers: Buffers, op: Op | None
    ) -> None:
        self._mpi, self._comm = world.mpi, world.comm
        self._segments, self._buffers = segments, buffers
        self._add = np.add if op is None else op.ufunc
        self.sent = self.received = 0
        # Both ends number the pieces of a step alike, for tags: MPI may start the requests of a
        # list in any order, and a stream posts its later pieces late.
        self._tags: Counter[tuple[str, int]] = Counter()
        self._placed: list[tuple[Span, Phase]] = []  # the step's messages to be added, so far

    def steps(self, program: Program) -> list[BoundStep]:
        """Bind each step of the program."""
        return [
            BoundStep(self._mpi, step.number, self._work(step).calls(self._mpi))
            for step in program.steps
        ]

    def _view(self, span: Span) -> Array:
        return self._buffers[span.buffer][span.start : span.stop]

    def _local(self, move: Local) -> Call:
        target, source = self._view(move.span), self._view(move.source)
        if move.reduce:
            return partial(self._add, target, source, target)
        return partial(np.copyto, target, source)

    def _joined(self, receive: Receive, staging: Array) -> Call:
        """A call that copies or adds a staged message to its span."""
        view = self._view(receive.span)
        if receive.other is None:
            return partial(np.copyto, view, staging)
        return partial(self._add, self._view(receive.other), staging, view)

    def _cut(self, view: Array, reduce: bool) -> list[Array]:
        """The pieces in which a message is sent; both ends cut it alike."""
        step = max(1, MOST_BYTES // view.itemsize)
        if reduce:
            step = min(step, self._segments.elements(view))
        if len(view) <= step:
            return [view]
        return [view[i : i + step] for i in range(0, len(view), step)]

    def _tag(self, way: str, peer: int) -> int:
        self._tags[way, peer] += 1
        return self._tags[way, peer] % TAGS

    def _send(self, view: Array, peer: int) -> BoundMessage:
        self.sent += view.nbytes
        tag = self._tag("to", peer)
        request = self._comm.Send_init([view.view(np.uint8), self._mpi.BYTE], peer, tag)
        return BoundMessage(request, "to", peer, view.nbytes)

    def _receive(self, view: Array, peer: int) -> BoundMessage:
        self.received += view.nbytes
        tag = self._tag("from", peer)
        request = self._comm.Recv_init([view.view(np.uint8), self._mpi.BYTE], peer, tag)
        return BoundMessage(request, "from", peer, view.nbytes)

    def _work(self, step: ProgramStep) -> StepWork:
        self._tags.clear()
        self._placed.clear()
        work = StepWork(step, [self._local(move) for move in step.before])
        for receive in step.receives:
            self._arrange(receive, work)
        # Start with the next rank's message: if all ranks sent to rank 0 first, its port would be
        # busy and others idle. The order between two ranks stays.
        rank, size = self._comm.rank, self._comm.size
        work.messages += [
            self._send(piece, send.peer)
            for send in sorted(self._sends(step), key=lambda send: (send.peer - rank) % size)
            for piece in self._cut(self._view(send.span), send.reduce)
        ]
        work.after = [self._local(move) for move in step.after]
        return work

    def _sends(self, step: ProgramStep) -> Sequence[Send]:
        """The step's messages that are sent over MPI."""
        return step.sends

    def _arrange(self, receive: Receive, work: StepWork) -> None:
        """Add a received message to its step's calls."""
        view, reduce = self._view(receive.span), receive.other is not None
        if not receive.late and not reduce:
            work.messages += [self._receive(p, receive.peer) for p in self._cut(view, reduce)]
        elif not receive.late and self._phase(receive, self._usual(view)) == Phase.STREAMS:
            work.streams += self._stream(receive, view)
        else:
            staging = staging_for(view)
            pieces = self._cut(staging, reduce)
            work.messages += [self._receive(piece, receive.peer) for piece in pieces]
            (work.late if receive.late else work.adds).append(self._joined(receive, staging))

    def _usual(self, view: Array) -> Phase:
        """The phase of a message to be added: long ones are added while they arrive."""
        return Phase.STREAMS if len(view) > self._segments.elements(view) else Phase.ADDS

    def _phase(self, receive: Receive, earliest: Phase) -> Phase:
        """The phase in which a message is added, not before an earlier one to the same elements.

        The earlier one may be the one that brings in the rank's own share.
        """
        before = (phase for span, phase in self._placed if span.meets(receive.span))
        phase = max([earliest, *before])
        self._placed.append((receive.span, phase))
        return phase

    def _stream(self, receive: Receive, view: Array) -> Iterator[Call]:
        """Receive and add a long message by segments, with a buffer for each in flight."""
        assert receive.other is not None
        targets, others = self._cut(view, True), self._cut(self._view(receive.other), True)
        n = min(self._segments.in_flight, len(targets))
        staging = [staging_for(targets[0]) for _ in range(n)]
        pieces = [staging[i % n][: len(t)] for i, t in enumerate(targets)]
        messages = [self._receive(piece, receive.peer) for piece in pieces]
        for message in messages[:n]:
            yield from requests(self._mpi, [message], waits=False)
        for i, (other, piece, target) in enumerate(zip(others, pieces, targets, strict=True)):
            yield from requests(self._mpi, messages[i : i + 1], waits=True)
            yield partial(self._add, other, piece, target)
            yield from requests(self._mpi, messages[i + n : i + n + 1], waits=False)
