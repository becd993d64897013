"""Lowering puts copies off without changing what a schedule computes.

The judge is `naive` again; the schedules are drawn at random under the rules of a step, with local
copies, additions and messages mixed, and run among threads.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from busbar.errors import ScheduleError
from collectives.execution.inproc.transport import InprocTransport
from collectives.execution.inproc.world import InprocWorld, run
from collectives.execution.lower import lower
from collectives.execution.plan import Plan
from collectives.schedule.catalogue import build, spec
from collectives.schedule.layout import Layout
from collectives.schedule.moves import Buffer, Move, Slot
from collectives.schedule.ops import op
from collectives.schedule.schedule import Schedule
from tests.collectives.drawn import OVERLAP, fill, overlapping, right
from tests.conftest import examples

N, ELEMENTS = 2, 3

one_move = st.tuples(
    st.integers(0, N - 1),
    st.integers(0, N - 1),
    st.integers(0, 2),
    st.integers(0, 2),
    st.integers(0, 2),
    st.booleans(),
)


@examples(250)
@given(st.lists(st.lists(one_move, max_size=4), max_size=7), st.booleans())
def test_programs_compute_what_the_schedule_says(
    drawn: list[list[tuple[Any, ...]]], in_place: bool
) -> None:
    """Whatever the mix of copies, additions and messages, outputs are the naive reading's."""
    schedule, before, after = overlapping(N, drawn, in_place)

    def body(world: InprocWorld) -> bool:
        memory = np.full(3 * ELEMENTS, -1, np.int64)
        source = memory[: 2 * ELEMENTS] if in_place else np.full(2 * ELEMENTS, -1, np.int64)
        target = memory[ELEMENTS:] if in_place else np.full(2 * ELEMENTS, -1, np.int64)
        fill(world.rank, source, before, ELEMENTS, in_place)
        with Plan(
            schedule,
            OVERLAP,
            InprocTransport(world),
            world.rank,
            source,
            target,
            op("sum"),
            ELEMENTS,
            in_place=in_place,
        ) as plan:
            world.barrier()
            plan()
        return right(world.rank, target, after, ELEMENTS)

    try:
        results = run(N, body, deadline=20)
    except ScheduleError as error:
        # The one mix that lowering refuses, by its name.
        assert "put it in a step of its own" in str(error)
        return
    assert all(results)


def test_an_addition_reads_its_operand_before_a_message_overwrites_it() -> None:
    """out[0] should become scratch[0] + message while another message replaces scratch[0]."""
    into, out, room = Slot(Buffer.IN, 0), Slot(Buffer.OUT, 0), Slot(Buffer.SCRATCH, 0)
    steps = [
        [Move(1, 0, into, room)],
        [Move(0, 0, room, out)],
        [Move(1, 0, into, room), Move(1, 0, into, out, True)],
        [Move(0, 0, room, out, True)],
    ]
    schedule = Schedule.of(2, 1, steps, scratch=1)
    layout = Layout.of(schedule, spec("allreduce"))
    step = next(s for s in lower(schedule, layout, 0, 4).steps if len(s.receives) == 2)
    assert [r.other.buffer for r in step.receives if r.other] == [Buffer.OUT]
    assert step.before, "the copy that was put off must happen before the message arrives"


@pytest.mark.parametrize(
    ("collective", "name"),
    [("allreduce", "ring"), ("reduce_scatter", "ring"), ("alltoall", "direct")],
)
def test_no_copy_of_the_whole_input(collective: str, name: str) -> None:
    """Out of place only what a rank has for itself may be copied: the rest is sent from ``in``."""
    what = spec(collective)
    schedule = build(collective, name, 4)
    layout = Layout.of(schedule, what)
    for rank in range(4):
        program = lower(schedule, layout, rank, 12)
        copied = sum(c.span.size for s in program.steps for c in (*s.before, *s.after))
        assert copied <= (12 if collective == "alltoall" else 0)
        scratch = program.elements[Buffer.SCRATCH]
        assert scratch <= (24 if collective == "reduce_scatter" else 0)


def test_vector_form_is_refused() -> None:
    """What is not placed names no buffers, so it cannot be lowered."""
    schedule = Schedule(2, 1, ())
    with pytest.raises(ScheduleError, match="place it first"):
        lower(schedule, Layout.of(schedule, spec("allreduce")), 0, 1)
