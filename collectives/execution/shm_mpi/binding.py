"""A rank's program as one list of calls: messages on a host in shared memory, others over MPI.

A message between two ranks of a host has no buffer. Each rank has two words in shared memory. The
sender's word *ready* is the number of steps whose messages are ready; the receiver waits for it and
copies or adds from the sender's memory. The receiver's word *taken* is the number of steps of which
it has read all messages; the sender waits for it before it changes memory that was to be read, and
at the end of the iteration.

There is no deadlock, because every wait is for something earlier in this order of (step, phase):
the memory that a step changes is free (1), messages ready and MPI's requests started (2), messages
of the host read and streams over MPI added (3), MPI's requests complete (4), additions and the last
messages of the host (5), *taken* raised (6), *taken* awaited and late additions (7). Phase 1 waits
for phase 6 of earlier steps; 3 waits for phase 2 of the same step, and in a stream for what the
sender started in phase 2; 4 waits for phases 2 and 3; 5 for phase 2; 7 for phase 6.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import numpy as np

from collectives.execution.mpi.calls import BoundStep, Call, Flag, Pull, progress
from collectives.execution.mpi.transport import Binder, Phase, Segments, StepWork
from collectives.execution.mpi.world import MpiWorld
from collectives.execution.program import Program, ProgramStep, Receive, Send
from collectives.execution.transport import Array, Buffers, staging_for
from collectives.schedule.ops import Op


@dataclass(frozen=True)
class Neighbours:
    """The other ranks of a rank's host, and the memory that they share for a plan.

    ``ready`` and ``taken``: addresses of the words of all ranks of the host. ``period``: greater
    than the number of any step. ``messages``: by sender, the memory of all its messages to this
    rank, as bytes and in order.
    """

    ready: Mapping[int, int]
    taken: Mapping[int, int]
    period: int
    messages: Mapping[int, Iterator[Array]]


@dataclass(frozen=True)
class _Unread:
    """Memory of a message that its receiver has not read yet, as addresses."""

    peer: int
    step: int
    begin: int
    end: int


class HostBinder(Binder):
    """Binds a program; the module's docstring has the protocol.

    ``shared_sent``: the part of ``sent`` that stays on the host. After each segment that is read,
    MPI can make progress.
    """

    def __init__(
        self, world: MpiWorld, segments: Segments, buffers: Buffers, op: Op | None, near: Neighbours
    ) -> None:
        super().__init__(world, segments, buffers, op)
        self._rank, self._near, self._unread = world.rank, near, list[_Unread]()
        self.shared_sent = 0

    def steps(self, program: Program) -> list[BoundStep]:
        """The calls of each step; the last step ends when this host's ranks have read everything.

        See `Binder.steps`.
        """
        steps = super().steps(program)
        if self._unread:
            steps[-1].calls.extend(self._until_read(self._unread))
        return steps

    def _work(self, step: ProgramStep) -> StepWork:
        shared = [send for send in step.sends if send.peer in self._near.messages]
        work = super()._work(step)
        received = [self._view(one.span) for one in step.receives if not one.late]
        before = self._until_free([self._view(move.span) for move in step.before])
        before += [*work.before, *self._until_free(received)]
        if shared:
            before.append(self._flag(self._near.ready, step.number + 1))
        work.before = before
        self._note_sends(step.number, shared)
        if any(one.peer in self._near.messages for one in step.receives):
            last = any(isinstance(call, Pull) for call in (*work.streams, *work.adds))
            calls = work.adds if last else work.pulls
            calls.append(self._flag(self._near.taken, step.number + 1))
        changed = [self._view(one.span) for one in step.receives if one.late]
        changed += [self._view(move.span) for move in step.after]
        work.late = [*self._until_free(changed), *work.late]
        return work

    def _sends(self, step: ProgramStep) -> Sequence[Send]:
        return [send for send in step.sends if send.peer not in self._near.messages]

    def _arrange(self, receive: Receive, work: StepWork) -> None:
        if receive.peer not in self._near.messages:
            super()._arrange(receive, work)
            return
        view = self._view(receive.span)
        message = next(self._near.messages[receive.peer]).view(view.dtype)
        if receive.late:
            staging = staging_for(view)
            work.pulls.append(self._pull(work.step, receive.peer, message, staging, None))
            work.late.append(self._joined(receive, staging))
            return
        other = None if receive.other is None else self._view(receive.other)
        pull = self._pull(work.step, receive.peer, message, view, other)
        # Additions to the same elements keep their order, also with messages over MPI.
        phase = self._phase(receive, Phase.PULLS)
        (work.pulls, work.streams, work.adds)[phase].append(pull)

    def _pull(
        self, step: ProgramStep, peer: int, message: Array, target: Array, other: Array | None
    ) -> Pull:
        """Read a message by segments; MPI makes progress between two segments."""
        self.received += message.nbytes
        ready, most = self._near.ready[peer], self._segments.elements(target)
        calls: list[Call] = [Flag(True, ready, step.number + 1, self._near.period, peer)]
        for a, b in pairwise([*range(0, len(target), most), len(target)]):
            calls += [progress] if a else []
            if other is None:
                calls.append(partial(np.copyto, target[a:b], message[a:b]))
            else:
                calls.append(partial(self._add, other[a:b], message[a:b], target[a:b]))
        return Pull(calls, peer, message.nbytes)

    def _flag(self, words: Mapping[int, int], value: int) -> Flag:
        """Set this rank's own word."""
        return Flag(False, words[self._rank], value, self._near.period)

    def _note_sends(self, number: int, sends: Sequence[Send]) -> None:
        for send in sends:
            begin, end = _bounds(self._view(send.span))
            self._unread.append(_Unread(send.peer, number, begin, end))
            self.sent += end - begin
            self.shared_sent += end - begin

    def _until_free(self, views: Sequence[Array]) -> list[Call]:
        """Wait until memory that is to change now has been read."""
        bounds = [_bounds(view) for view in views]
        return self._until_read(
            [one for one in self._unread if any(a < one.end and one.begin < b for a, b in bounds)]
        )

    def _until_read(self, messages: Sequence[_Unread]) -> list[Call]:
        """Wait until messages have been read, and so all earlier ones to the same ranks."""
        last: dict[int, int] = {}
        for one in messages:
            last[one.peer] = max(one.step, last.get(one.peer, 0))
        self._unread = [one for one in self._unread if one.step > last.get(one.peer, -1)]
        taken, period = self._near.taken, self._near.period
        return [Flag(True, taken[peer], step + 1, period, peer) for peer, step in last.items()]


def _bounds(view: Array) -> tuple[int, int]:
    begin = int(view.ctypes.data)
    return begin, begin + view.nbytes
