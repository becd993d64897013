"""What a schedule costs, counted from the schedule itself: steps, bytes, the busiest port."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from collectives.layout import Elements, Layout, Slots
from collectives.moves import Buffer
from collectives.schedule import Schedule
from collectives.spec import Collective

__all__ = ["Cost", "cost", "traffic"]


@dataclass(frozen=True)
class Cost:
    """Counts of a schedule. Volumes are in units of the collective's own total, n.

    ``steps``: steps in which ranks exchange something (moves inside a rank cost no latency).
    ``rounds``: messages one after the other if a rank's port carries one at a time each way; slots
    that lie side by side at both ends travel as one message.
    ``out`` and ``into``: what the busiest rank sends and the busiest rank receives.
    ``total``: everything that crosses between ranks. ``reduced``: the most that one rank adds.
    """

    steps: int
    rounds: int
    out: float
    into: float
    total: float
    reduced: float


def cost(schedule: Schedule, spec: Collective) -> Cost:
    """The cost of a collective's schedule, placed or in vector form, whose chunks are equal."""
    n = schedule.nranks
    sent, got, added = np.zeros(n), np.zeros(n), np.zeros(n)
    steps = rounds = 0
    for step in schedule.steps:
        every = step.moves()  # not kept: for thousands of ranks all steps at once would not fit
        m = every.remote()
        steps += len(m) > 0
        # A rank that sends once has nothing to join.
        once = len(m) == 0 or np.bincount(m.src).max() == 1
        one = m if once else m.joined()
        pairs = np.stack([one.src, one.dst])
        pairs = np.unique(pairs, axis=1) if schedule.packed else pairs
        messages = [np.bincount(end, minlength=n).max() for end in pairs]
        rounds += int(max(messages))
        sent += np.bincount(m.src, m.count, n)
        got += np.bincount(m.dst, m.count, n)
        r = every.where(every.reduce)
        added += np.bincount(r.dst, r.count, n)
    own = schedule.nchunks * spec.total(n) / max(1, spec.parts(n))
    volumes = (float(v) / max(1, own) for v in (sent.max(), got.max(), sent.sum(), added.max()))
    return Cost(steps, rounds, *volumes)


def traffic(
    schedule: Schedule, spec: Collective, elements: Elements, itemsize: int, root: int = 0
) -> NDArray[np.int64]:
    """Bytes that each rank sends and receives: shape (2, nranks).

    This is the schedule's own count, from the sizes of the chunks, with nothing rounded away; what
    a transport counts while running must equal it. ``elements``: as in `Layout.bounds`.
    ``schedule`` must be placed.
    """
    layout = Layout.of(schedule, spec, root)
    slots = Slots(layout)
    # Elements before every slot, and after the last of each buffer.
    bounds = [layout.bounds(r, b, elements) for b in Buffer for r in range(schedule.nranks)]
    before = np.concatenate(bounds)
    first = slots.first + np.arange(slots.first.size).reshape(slots.first.shape)
    total = np.zeros((2, schedule.nranks), np.int64)
    for step in schedule.steps:
        m = step.moves().remote()
        at = first[m.src_buffer, m.src] + m.src_chunk
        span = before[at + m.count] - before[at]
        np.add.at(total[0], m.src, span)
        np.add.at(total[1], m.dst, span)
    return total * itemsize
