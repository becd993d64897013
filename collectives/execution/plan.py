"""A schedule bound to one rank's buffers on one transport, built before the clock starts."""

from __future__ import annotations

from types import TracebackType

from collectives.execution.lower import lower
from collectives.execution.program import Program
from collectives.execution.transport import (
    Action,
    Array,
    Buffers,
    Spans,
    Start,
    Tell,
    Transport,
    Wrapper,
)
from collectives.schedule.layout import Elements, Layout
from collectives.schedule.moves import Buffer
from collectives.schedule.ops import Op, scale
from collectives.schedule.schedule import Schedule
from collectives.schedule.spec import Collective


def memory(program: Program, transport: Transport, itemsize: int, in_place: bool) -> int:
    """Bytes that a plan needs on its rank: buffers, scratch and the transport's staging."""
    own = program.elements[Buffer.IN], program.elements[Buffer.OUT]
    buffers = max(own) if in_place else sum(own)
    return (buffers + program.elements[Buffer.SCRATCH]) * itemsize + transport.staging(
        program, itemsize
    )


class Plan(Wrapper):
    """A schedule bound to buffers. Run it with ``plan()``; a context manager that closes it.

    ``source`` and ``target`` are the caller's ``in`` and ``out`` (in place the same memory).
    Scratch is allocated here. ``op`` is None for collectives that do not reduce. ``program``: the
    rank's program, if the schedule is already lowered. ``action``: the action that the transport
    prepared.
    """

    def __init__(
        self,
        schedule: Schedule,
        spec: Collective,
        transport: Transport,
        rank: int,
        source: Array,
        target: Array,
        op: Op | None,
        elements: Elements,
        *,
        root: int = 0,
        in_place: bool = False,
        program: Program | None = None,
    ) -> None:
        if program is None:
            layout = Layout.of(schedule, spec, root)
            program = lower(schedule, layout, rank, elements, in_place=in_place)
        dtype = target.dtype if target.size else source.dtype
        raw = transport.allocate(program.elements[Buffer.SCRATCH] * dtype.itemsize)
        buffers: Buffers = {
            Buffer.IN: source,
            Buffer.OUT: target,
            Buffer.SCRATCH: raw.view(dtype),
        }
        self.program = program
        self._target, self._nranks = target, schedule.nranks
        self.action: Action = transport.prepare(program, buffers, op)
        # The average is divided here unless the transport's action does it.
        self._mean = op is not None and op.mean and not self.action.divides

    def __call__(self) -> None:
        """Run the collective once."""
        self.action()
        if self._mean:
            scale(self._target, self._nranks)

    def traced(self, tell: Tell) -> None:
        """Run once, and call ``tell`` with each message, see `Action.traced`."""
        self.action.traced(tell)
        if self._mean:
            scale(self._target, self._nranks)

    def spans(self, n: int, start: Start) -> Spans:
        """Run n iterations; returns when each began and ended, see `Action.spans`.

        They are timed from Python if an average is divided here.
        """
        return super().spans(n, start) if self._mean else self.action.spans(n, start)

    def __enter__(self) -> Plan:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
