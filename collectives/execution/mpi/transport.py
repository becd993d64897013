"""Two-sided MPI: persistent requests, made and bound before anything is timed.

Both sides cut a long message that is to be added into the same segments. A segment is then still in
cache when it is added, while the next one arrives.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from functools import partial

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
from collectives.execution.program import Local, Program, ProgramStep, Receive, Span
from collectives.execution.transport import (
    Action,
    Array,
    Buffers,
    Counted,
    LibraryCall,
    Reach,
    Transport,
)
from collectives.execution.world import Json
from collectives.schedule.ops import Op

# Half of a common L2: two segments of staging and the vector's own share of them stay in cache.
SEGMENT_BYTES = 512 * 1024
# Of an average its division, say: where the extension makes the other rows' calls, a row says so.
_THROUGH_PYTHON: Mapping[str, Json] = {"called": "through Python"}
TAGS = 32768  # MPI promises tags below this


class MpiTransport(Transport):
    """See `Transport` for the methods. ``reached``: ranks reach into memory that it allocates."""

    name = "mpi"
    has_library = True
    has_nonblocking = True

    def __init__(
        self, world: MpiWorld, segment: int = SEGMENT_BYTES, *, reached: bool = False
    ) -> None:
        self._world, self._segment = world, segment
        self._windows = ReachedMemory(world) if reached else None
        self.library_executor = "python" if native.load() is None else "native"
        self.said: Mapping[str, Json] = {}

    def allocate(self, nbytes: int) -> NDArray[np.uint8]:
        """Plain host memory, or a window's, which all ranks take together."""
        if self._windows is not None:
            return self._windows.allocate(nbytes)
        return np.empty(nbytes, np.uint8)

    def trim(self) -> None:
        """Give back the windows that no rank holds. All ranks call this together."""
        if self._windows is not None:
            self._windows.trim()

    def staging(self, program: Program, itemsize: int) -> int:
        """Bytes that arriving messages wait in before they are added."""
        return sum(
            min(2 * self._segment, r.span.size * itemsize) if not r.late else r.span.size * itemsize
            for step in program.steps
            for r in step.receives
            if r.other is not None
        )

    def prepare(self, program: Program, buffers: Buffers, op: Op | None) -> Action:
        """See `Transport.prepare`."""
        return self._bound(_Binder(self._world, self._segment, buffers, op).action(program))

    def one_sided(self, program: Program, buffers: Buffers, how: Reach) -> Action:
        """See `Transport.one_sided`."""
        if self._windows is None:
            return super().one_sided(program, buffers, how)
        return one_sided(self._world, self._windows, program, buffers, how)

    def close(self) -> None:
        """Give windows back."""
        if self._windows is not None:
            self._windows.close()

    def library(self, call: LibraryCall) -> Action:
        """MPI's own collective. Raises Unsupported where MPI has no such type or collective."""
        calls = library_calls(self._world, call)
        if call.nonblocking:
            return _Begun(self._world, calls)
        return self._bound(bind_calls(self._world, calls))

    def _bound(self, action: PersistentCalls) -> PersistentCalls:
        through_python = native.load() is not None and not isinstance(action, NativeCalls)
        self.said = _THROUGH_PYTHON if through_python else {}
        return action


class _Begun(Counted):
    """The library's collective in its non-blocking form; see `Action` for the methods."""

    def __init__(self, world: MpiWorld, calls: list[Call]) -> None:
        super().__init__(0, 0)
        self._before, self._begin, self._after = nonblocking(world, calls)

    def __call__(self) -> None:
        self.over(lambda: None)

    def over(self, work: Call) -> None:
        """See `Action.over`."""
        self._runs += 1
        for call in self._before:
            call()
        request = self._begin()
        work()
        request.Wait()
        for call in self._after:
            call()

    def close(self) -> None:
        """Nothing is held."""


class _Binder:
    """Turns a program into calls: requests made, views sliced, staging taken."""

    def __init__(self, world: MpiWorld, segment: int, buffers: Buffers, op: Op | None) -> None:
        self._world, self._mpi, self._comm = world, world.mpi, world.comm
        self._segment, self._buffers = segment, buffers
        self._add = np.add if op is None else op.ufunc
        self._sent = self._received = 0
        # Both ends number their pieces in the same way, step by step: MPI may start the requests of
        # a list in any order, and a stream posts its later pieces late.
        self._tags: Counter[tuple[str, int]] = Counter()

    def action(self, program: Program) -> PersistentCalls:
        steps = [self._step(step) for step in program.steps]
        calls = [call for step in steps for call in step.calls]
        return bind_calls(self._world, calls, (self._sent, self._received), steps)

    def _view(self, span: Span) -> Array:
        return self._buffers[span.buffer][span.start : span.stop]

    def _local(self, move: Local) -> Call:
        target, source = self._view(move.span), self._view(move.source)
        if move.reduce:
            return partial(self._add, target, source, target)
        return partial(np.copyto, target, source)

    def _cut(self, view: Array, reduce: bool) -> list[Array]:
        """The pieces that a message travels in; both ends cut alike."""
        step = max(1, self._segment // view.itemsize)
        if not reduce or len(view) <= step:
            return [view]
        return [view[i : i + step] for i in range(0, len(view), step)]

    def _tag(self, way: str, peer: int) -> int:
        self._tags[way, peer] += 1
        return self._tags[way, peer] % TAGS

    def _send(self, view: Array, peer: int) -> BoundMessage:
        self._sent += view.nbytes
        tag = self._tag("to", peer)
        request = self._comm.Send_init([view.view(np.uint8), self._mpi.BYTE], peer, tag)
        return BoundMessage(request, "to", peer, view.nbytes)

    def _receive(self, view: Array, peer: int) -> BoundMessage:
        self._received += view.nbytes
        tag = self._tag("from", peer)
        request = self._comm.Recv_init([view.view(np.uint8), self._mpi.BYTE], peer, tag)
        return BoundMessage(request, "from", peer, view.nbytes)

    def _step(self, step: ProgramStep) -> BoundStep:
        self._tags.clear()
        # Receives that can all be posted at the step's start.
        first: list[BoundMessage] = []
        adds: list[Call] = []  # what is done when everything has arrived
        streams: list[Call] = []  # long messages, added segment by segment as they arrive
        for receive in step.receives:
            view = self._view(receive.span)
            if receive.other is None:
                target = view
                if receive.late:
                    target = np.empty_like(view)
                    adds.append(partial(np.copyto, view, target))
                first.append(self._receive(target, receive.peer))
            elif not receive.late and view.nbytes > self._segment:
                # One after the other: two additions into one slot keep their order, and the first
                # may be the one that brings in the rank's own share.
                streams += self._stream(receive, view)
            else:
                staging = np.empty_like(view)
                pieces = self._cut(staging, True)
                first += [self._receive(piece, receive.peer) for piece in pieces]
                adds.append(partial(self._add, self._view(receive.other), staging, view))
        # Each its next rank's first: if all sent to rank 0 first, its port would be full and the
        # others idle. Between two ranks the order stays.
        rank, size = self._comm.rank, self._comm.size
        sends = [
            self._send(piece, send.peer)
            for send in sorted(step.sends, key=lambda send: (send.peer - rank) % size)
            for piece in self._cut(self._view(send.span), send.reduce)
        ]
        messages = first + sends
        calls = [
            *(self._local(move) for move in step.before),
            *requests(self._mpi, messages, waits=False),
            *streams,
            *requests(self._mpi, messages, waits=True),
            *adds,
            *(self._local(move) for move in step.after),
        ]
        return BoundStep(self._mpi, step.number, calls)

    def _stream(self, receive: Receive, view: Array) -> Iterator[Call]:
        """A long message, received and added segment by segment through two buffers."""
        assert receive.other is not None
        targets, others = self._cut(view, True), self._cut(self._view(receive.other), True)
        staging = [np.empty_like(targets[0]) for _ in range(2)]
        pieces = [staging[i % 2][: len(t)] for i, t in enumerate(targets)]
        messages = [self._receive(piece, receive.peer) for piece in pieces]
        for message in messages[:2]:
            yield from requests(self._mpi, [message], waits=False)
        for i, (other, piece, target) in enumerate(zip(others, pieces, targets, strict=True)):
            yield from requests(self._mpi, messages[i : i + 1], waits=True)
            yield partial(self._add, other, piece, target)
            yield from requests(self._mpi, messages[i + 2 : i + 3], waits=False)
