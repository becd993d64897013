"""What a schedule costs, counted from the schedule itself: steps, bytes, the busiest port."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from collectives.schedule.layout import Elements, Layout, carried_elements
from collectives.schedule.moves import Moves
from collectives.schedule.schedule import Schedule, Step, runs_of
from collectives.schedule.spec import Collective

Ranks = NDArray[np.int32] | NDArray[np.int64]
# Up to so many ranks, pairs of ranks are counted in a table.
_TABLED = 4096


@dataclass(frozen=True)
class Cost:
    """Counts of a schedule. Volumes are in units of the collective's own total, N.

    ``steps``: steps in which ranks exchange messages (moves inside a rank cost no latency).
    ``rounds``: messages one after the other if a rank's port carries one at a time in each
    direction; slots that are adjacent at both ends travel as one message. ``out`` and ``into``:
    volume that the busiest rank sends, and that the busiest rank receives. ``total``: volume
    between all ranks. ``reduced``: the most that one rank adds. ``port``: sum over steps of the
    volume at the busiest port, which sends and receives at once: 2(P - 1) for a parameter server
    on P ranks, 2(P - 1)/P for a ring.
    """

    steps: int
    rounds: int
    out: float
    into: float
    total: float
    reduced: float
    port: float


def cost(schedule: Schedule, spec: Collective) -> Cost:
    """The cost of a collective's schedule, placed or in vector form, whose chunks are equal."""
    n = schedule.nranks
    sent, got, added = np.zeros(n), np.zeros(n), np.zeros(n)
    steps, rounds, port = 0, 0, 0.0
    # How often steps of one signature occur. Slots may be joined into one message in one step and
    # not in another, so steps with several moves per pair are counted one by one.
    repeats: dict[Hashable, int] = Counter()
    for first, count, _ in runs_of(schedule.steps):
        repeats[first.signature] += count
    counted: set[Hashable] = set()
    for step in _uncounted(schedule.steps, counted):
        every = step.moves()  # not kept: for thousands of ranks all steps at once would not fit
        m = every.remote()
        alone = _alone(m, n)
        times = 1
        if alone and step.signature is not None:
            counted.add(step.signature)
            times = repeats[step.signature]
        pairs = _messages(m, n, schedule.packed, alone)
        messages = [np.bincount(end, minlength=n).max() for end in pairs]
        steps += times * (len(m) > 0)
        rounds += times * int(max(messages))
        ways = [np.bincount(end, m.count, n) for end in (m.src, m.dst)]
        sent += times * ways[0]
        got += times * ways[1]
        port += times * max(float(way.max()) for way in ways)
        r = every.where(every.reduce)
        added += times * np.bincount(r.dst, r.count, n)
    own = schedule.nchunks * spec.total(n) / max(1, spec.parts(n))
    counts = (sent.max(), got.max(), sent.sum(), added.max(), port)
    return Cost(steps, rounds, *(float(count) / max(1, own) for count in counts))


def _uncounted(steps: Sequence[Step], counted: set[Hashable]) -> Iterator[Step]:
    """The steps whose signatures are not in ``counted``, which may grow meanwhile."""
    for _, _, run in runs_of(steps):
        for step in run:
            if step.signature in counted:
                break
            yield step


def _alone(m: Moves, n: int) -> bool:
    """True if every pair of ranks has at most one move in the step, so that no moves are joined."""
    if len(m) == 0 or np.bincount(m.src).max() == 1:
        return True
    return n <= _TABLED and int(np.bincount(m.pairs(n)).max()) == 1


def _messages(m: Moves, n: int, packed: bool, alone: bool) -> tuple[Ranks, Ranks]:
    if packed and not alone:
        src, dst = np.divmod(np.unique(m.pairs(n)), n)
        return src, dst
    one = m if alone else m.joined()
    return one.src, one.dst


def traffic(
    schedule: Schedule, spec: Collective, elements: Elements, itemsize: int, root: int = 0
) -> NDArray[np.int64]:
    """Bytes that each rank sends and receives: shape (2, nranks).

    Counted from the schedule and the exact sizes of the chunks; the count of a transport at run
    time must equal it. ``elements``: as in `Layout.bounds`. ``schedule`` must be placed.
    """
    carried = carried_elements(Layout.of(schedule, spec, root), elements)
    total = np.zeros((2, schedule.nranks), np.int64)
    for step in schedule.steps:
        m = step.moves().remote()
        span = carried(m)
        np.add.at(total[0], m.src, span)
        np.add.at(total[1], m.dst, span)
    return total * itemsize
