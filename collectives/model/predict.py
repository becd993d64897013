"""The time of a schedule from the costs of links: columnar, for many sizes at once.

A LogGP-like reckoning (Alexandrov et al. 1995) of what executors do. Every rank goes through its steps
in order and nothing but its own messages holds it up: there is no barrier. A message moves once both
its ranks have come to its step. A rank has one port each way; of several messages in a step, the first
costs its whole time, each further one what it adds (`Link.further`), in the schedule's order.
Additions belong to the receiving port. Copies inside a rank are taken as free: `collectives.lower`
does away with most of them. Links are not shared; what many pairs at once do to each other is in the
costs when they were measured so, and is otherwise the simulator's business.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from collectives.model.costs import Link
from collectives.model.machine import Machine
from collectives.moves import Moves
from collectives.schedule import Schedule
from collectives.spec import Collective, Unit

__all__ = ["Priced", "seconds"]

Numbers = NDArray[np.float64]
Index = NDArray[np.int64]


@dataclass(frozen=True)
class Priced:
    """A machine with a link for each of its classes; ``start`` as in `Costs`."""

    machine: Machine
    links: Sequence[Link]
    start: float = 0.0


def seconds(
    schedule: Schedule,
    spec: Collective,
    priced: Priced,
    sizes: Sequence[int],
    *,
    itemsize: int = 4,
) -> Numbers:
    """Predicted seconds of a schedule at each size of the collective, shape (sizes,).

    ``sizes`` are those of the size column (bytes); ``itemsize``: bytes of an element, as chunks are
    whole elements. Parts of all-to-all-v are taken as equal.
    """
    ready = np.zeros((len(sizes), schedule.nranks))
    bound = partial(_bound, _elements(schedule, spec, sizes, itemsize), _split(schedule, spec))
    for step in schedule.steps:
        m = step.moves().remote().joined()
        if len(m):
            ready = _after(m, schedule.packed, bound, itemsize, priced, ready)
    return np.asarray(priced.start + ready.max(axis=1, initial=0.0))


def _elements(schedule: Schedule, spec: Collective, sizes: Sequence[int], itemsize: int) -> Numbers:
    """Elements of a part at each size, a column."""
    if spec.unit is Unit.NOTHING:
        return np.ones((len(sizes), 1))
    each = [spec.size(schedule.nranks, size, itemsize).elements for size in sizes]
    return np.array(each, float)[:, None]


def _split(schedule: Schedule, spec: Collective) -> int:
    return max(1, schedule.nchunks // max(1, spec.parts(schedule.nranks)))


def _bound(elements: Numbers, split: int, chunk: NDArray[np.int32]) -> Numbers:
    """Where a chunk begins, in elements, as `Layout.bounds` shares parts: shape (sizes, moves)."""
    part, piece = np.divmod(chunk.astype(np.int64), split)
    where: Numbers = np.asarray(part * elements + np.floor(piece * elements / split))
    return where


def _after(
    m: Moves,
    packed: bool,
    bound: partial[Numbers],
    itemsize: int,
    priced: Priced,
    ready: Numbers,
) -> Numbers:
    """When each rank has done the step, from when it came to it: shape (sizes, ranks)."""
    src, dst = m.src.astype(np.int64), m.dst.astype(np.int64)
    nbytes = (bound(m.src_chunk + m.count) - bound(m.src_chunk)) * itemsize
    adds = m.reduce
    if packed:
        first = np.flatnonzero(np.diff(src, prepend=-1) | np.diff(dst, prepend=-1))
        nbytes = np.add.reduceat(nbytes, first, axis=1)
        src, dst, adds = src[first], dst[first], np.logical_or.reduceat(adds, first)
    n = ready.shape[1]
    out, into = np.bincount(src, minlength=n), np.bincount(dst, minlength=n)
    both = (into[src] > 0) | (out[dst] > 0)
    alone, further, added = _costs(priced, src, dst, nbytes, both, adds)
    begin = np.maximum(ready[:, src], ready[:, dst])
    done = ready.copy()
    for end, count, cost in ((src, out, further), (dst, into, further + added)):
        if count.max() == 1:
            done[:, end] = np.maximum(done[:, end], begin + alone + cost - further)
        else:
            _queue(end, begin, alone - further, np.broadcast_to(cost, begin.shape), done)
    return done


def _costs(
    priced: Priced,
    src: Index,
    dst: Index,
    nbytes: Numbers,
    both: NDArray[np.bool_],
    adds: NDArray[np.bool_],
) -> tuple[Numbers, Numbers, Numbers]:
    """Seconds of messages alone, as further ones, and of their additions.

    Each of shape (sizes, messages), or (sizes, 1) where all messages are alike.
    """
    kinds = priced.machine.links(src, dst)
    alike = [np.unique(x).size == 1 for x in (kinds, both, adds)]
    if all(alike) and (nbytes == nbytes[:, :1]).all():
        # As in a ring: every message is like every other, so one stands for all.
        link, one = priced.links[int(kinds[0])], nbytes[:, :1]
        added = link.added(one) if adds[0] else np.zeros_like(one)
        return link.alone(one, both[:1]), link.further(one, both[:1]), added
    found = np.zeros((3, *nbytes.shape))
    for kind in np.unique(kinds):
        for twice in (False, True):
            at = np.flatnonzero((kinds == kind) & (both == twice))
            if not len(at):
                continue
            link, some = priced.links[int(kind)], nbytes[:, at]
            flags = np.full(some.shape, twice)
            found[0][:, at] = link.alone(some, flags)
            found[1][:, at] = link.further(some, flags)
            found[2][:, at] = np.where(adds[at], link.added(some), 0.0)
    return found[0], found[1], found[2]


def _queue(end: Index, begin: Numbers, lead: Numbers, cost: Numbers, done: Numbers) -> None:
    """Ports with several messages: each is served when it can begin and those before it are done."""
    order = np.argsort(end, kind="stable")
    ranks = end[order]
    first = np.flatnonzero(np.diff(ranks, prepend=-1))
    served = cost[:, order]
    # From each message to its port's last: the sum of what they take.
    total = np.cumsum(served[:, ::-1], axis=1)[:, ::-1]
    last = np.append(first[1:], len(ranks))
    behind = np.where(last < len(ranks), total[:, np.minimum(last, len(ranks) - 1)], 0.0)
    length = np.diff(np.append(first, len(ranks)))
    rest = total - np.repeat(behind, length, axis=1)
    finish = np.maximum.reduceat(begin[:, order] + rest, first, axis=1)
    finish += np.maximum.reduceat(np.broadcast_to(lead, begin.shape)[:, order], first, axis=1)
    port = ranks[first]
    done[:, port] = np.maximum(done[:, port], finish)
