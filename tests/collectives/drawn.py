"""Schedules drawn at random under the rules of a step: copies, additions and messages mixed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from collectives.schedule.layout import Layout
from collectives.schedule.moves import Buffer, Move, Slot
from collectives.schedule.schedule import Schedule
from collectives.schedule.spec import Collective
from tests.collectives.cases import aliases, filled, naive

# Every rank has and wants two parts of three, so that in and out overlap in one part in place.
OVERLAP = Collective(
    "overlap",
    "",
    lambda n: 3,
    lambda n, rank, root: (0, 1),
    lambda n, rank, root: (1, 2),
    lambda n: 1.0,
    reduces=True,
)
SLOT = {Buffer.IN: (0, 1), Buffer.OUT: (1, 2), Buffer.SCRATCH: (0, 1, 2)}
HOLDERS = {c: [(b, s.index(c)) for b, s in SLOT.items() if c in s] for c in range(3)}

Drawn = Sequence[Sequence[Sequence[Any]]]
"""Of each step moves as (sender, receiver, part, two numbers that choose slots, whether added)."""


def _obeys(step: list[Move], state: Any, alias: Any, in_place: bool) -> bool:
    """Whether a step keeps the rules: nothing undefined read, no plain write that clashes."""
    reads, plain, added = [], [], []
    for m in step:
        src = (m.src, int(m.from_slot.buffer), m.from_slot.chunk)
        dst = (m.dst, int(m.to_slot.buffer), m.to_slot.chunk)
        src, dst = alias.get(src, src), alias.get(dst, dst)
        if src == dst or state.get(src) is None or (m.reduce and state.get(dst) is None):
            return False
        if m.to_slot.buffer is Buffer.IN and not in_place:
            return False
        reads.append(src)
        (added if m.reduce else plain).append(dst)
    return len(set(plain)) == len(plain) and not set(plain) & {*reads, *added}


def overlapping(n: int, drawn: Drawn, in_place: bool) -> tuple[Schedule, Any, Any]:
    """A schedule among n ranks of those drawn moves that keep the rules, with its start and end."""
    layout = Layout.of(Schedule.of(n, 3, [], scratch=3), OVERLAP)
    alias = aliases(layout) if in_place else {}
    before = filled(layout, alias)
    state, steps = before, []
    for moves in drawn:
        step: list[Move] = []
        for src, dst, chunk, i, j, reduce in moves:
            homes = HOLDERS[chunk]
            a, b = homes[i % len(homes)], homes[j % len(homes)]
            more = [*step, Move(src, dst, Slot(*a), Slot(*b), bool(reduce))]
            step = more if _obeys(more, state, alias, in_place) else step
        state = naive(Schedule.of(n, 3, [step], scratch=3), layout, state, alias=alias)
        steps.append(step)
    return Schedule.of(n, 3, steps, scratch=3), before, state


def fill(rank: int, source: Any, before: Any, elements: int, in_place: bool) -> None:
    """Fill a rank's ``in``, every part with its one number."""
    alias = aliases(Layout.of(Schedule.of(rank + 1, 3, [], scratch=3), OVERLAP)) if in_place else {}
    for i in range(2):
        slot = (rank, int(Buffer.IN), i)
        source[i * elements : (i + 1) * elements] = before[alias.get(slot, slot)]


def right(rank: int, target: Any, after: Any, elements: int) -> bool:
    """Whether a rank's ``out`` is what the naive reading says, where it says anything."""
    for i in range(2):
        value = after.get((rank, int(Buffer.OUT), i))
        if value is not None and (target[i * elements : (i + 1) * elements] != value).any():
            return False
    return True
