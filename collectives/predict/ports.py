"""The time of a schedule from the costs of links: columnar, for many sizes at once.

A LogGP-like model (Alexandrov et al. 1995) of the executors. Every rank goes through its steps in
order and waits for its own messages only; there is no barrier. A message starts once both its ranks
have reached its step. A rank has one port each way. Of several messages in a step the first costs
its whole time, and each further one what it adds (`LinkCosts.further`), in the schedule's order.
Additions belong to the receiving port. Where caches matter, data that a rank has written in this
collective costs more to send than its input, and an addition costs more if others read the sum.
Copies inside a rank are free, since `collectives.execution.lower` removes most of them. Links are
not shared: the contention of many pairs is in the costs if they were measured that way, and
otherwise in the simulator.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from collectives.predict.caches import Caches
from collectives.predict.machine import LinkCosts, PlacedRanks
from collectives.predict.shm import Host, rates
from collectives.schedule.moves import Moves
from collectives.schedule.schedule import Schedule
from collectives.schedule.spec import Collective, Unit

Amounts = NDArray[np.float64]
Numbers = NDArray[np.int64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class Priced:
    """A machine with a link for each of its classes; ``start`` and ``cores`` as in `Costs`."""

    machine: PlacedRanks
    links: Sequence[LinkCosts]
    start: float = 0.0
    cores: tuple[int, ...] = ()

    @cached_property
    def host(self) -> Host | None:
        """The predictor that follows schedules pass by pass, for costs of shared memory."""
        known = rates(self.links)
        return Host(self.machine, known, self.cores) if known else None


def seconds(
    schedule: Schedule,
    spec: Collective,
    priced: Priced,
    sizes: Sequence[int],
    *,
    itemsize: int = 4,
    root: int = 0,
    in_place: bool = False,
) -> Amounts:
    """Predicted seconds of a schedule at each size of the collective, shape (sizes,).

    ``sizes`` are those of the size column (bytes); ``itemsize``: bytes of an element, as chunks are
    whole elements. Parts of all-to-all-v are taken as equal. ``root`` and ``in_place`` matter where
    ranks share memory, whose executor is followed pass by pass (`collectives.predict.shm`).
    """
    if priced.host is not None:
        return priced.start + priced.host.seconds(
            schedule, spec, sizes, itemsize=itemsize, root=root, in_place=in_place
        )
    chunks, caches = _Chunks(schedule, spec, sizes, itemsize), Caches(schedule)
    # One column as long as all ranks are equally far.
    ready: Amounts = np.zeros((len(sizes), 1))
    for step in schedule.steps:
        m = step.moves().remote()
        if not len(m):
            continue
        level = _level(m, schedule.nranks, chunks, caches, priced) if ready.shape[1] == 1 else None
        if level is None:
            wide = np.broadcast_to(ready, (len(sizes), schedule.nranks))
            ready = _after(m.joined(), schedule.packed, chunks, caches, priced, wide)
            if ready.max() == ready.min() or (ready == ready[:, :1]).all():
                ready = ready[:, :1]
        else:
            ready = ready + level
        caches.note(m)
    return np.asarray(priced.start + ready.max(axis=1))


class _Chunks:
    """The bytes of a schedule's chunks at each of several sizes of the collective."""

    def __init__(
        self, schedule: Schedule, spec: Collective, sizes: Sequence[int], itemsize: int
    ) -> None:
        n = schedule.nranks
        each = [spec.size(n, size, itemsize).elements for size in sizes]
        if spec.unit is Unit.NOTHING:
            each = [1] * len(sizes)
        self._itemsize = itemsize
        self._elements = np.array(each, float)[:, None]
        self._split = max(1, schedule.nchunks // max(1, spec.parts(n)))
        self.equal = all(one % self._split == 0 for one in each)

    def bytes(self, m: Moves) -> Amounts:
        """Bytes of moves, shape (sizes, moves), with chunks as in `Layout.bounds`."""
        if self.equal:
            return self.same(m.count)
        return (self._bound(m.src_chunk + m.count) - self._bound(m.src_chunk)) * self._itemsize

    def same(self, count: NDArray[np.int32]) -> Amounts:
        """Bytes of so many chunks where all chunks are equal, shape (sizes, counts)."""
        return np.asarray(count * (self._elements / self._split) * self._itemsize)

    def _bound(self, chunk: NDArray[np.int32]) -> Amounts:
        """The element at which a chunk begins."""
        part, piece = np.divmod(chunk.astype(np.int64), self._split)
        return np.asarray(part * self._elements + np.floor(piece * self._elements / self._split))


def _level(
    m: Moves, nranks: int, chunks: _Chunks, caches: Caches, priced: Priced
) -> Amounts | None:
    """Seconds of a step in which every rank sends and receives one message, all alike; else None.

    Such are the steps of rings, and what makes them cheap to follow for thousands of ranks.
    """
    src, dst = m.src, m.dst
    if len(m) != nranks or not chunks.equal or (m.count != m.count[0]).any():
        return None
    if (np.bincount(src, minlength=nranks) != 1).any():
        return None
    if (np.bincount(dst, minlength=nranks) != 1).any() or (m.reduce != m.reduce[0]).any():
        return None
    kinds = priced.machine.links(src.astype(np.int64), dst.astype(np.int64))
    fresh, shared = caches.fresh(m), caches.shared(m)
    if any((flags != flags[0]).any() for flags in (kinds, fresh, shared)):
        return None
    link, nbytes = priced.links[int(kinds[0])], chunks.same(m.count[:1])
    alone = link.alone(nbytes, np.ones(1, bool), fresh[:1])
    return alone + link.added(nbytes, shared[:1]) if m.reduce[0] else alone


def _after(
    m: Moves, packed: bool, chunks: _Chunks, caches: Caches, priced: Priced, ready: Amounts
) -> Amounts:
    """When ranks complete the step, from when they enter it: shape (sizes, ranks)."""
    src, dst = m.src.astype(np.int64), m.dst.astype(np.int64)
    nbytes = chunks.bytes(m)
    adds, fresh, shared = m.reduce, caches.fresh(m), caches.shared(m)
    if packed:
        first = np.flatnonzero(np.diff(src, prepend=-1) | np.diff(dst, prepend=-1))
        nbytes = np.add.reduceat(nbytes, first, axis=1)
        src, dst = src[first], dst[first]
        adds, fresh, shared = (np.logical_or.reduceat(x, first) for x in (adds, fresh, shared))
    n = ready.shape[1]
    out, into = np.bincount(src, minlength=n), np.bincount(dst, minlength=n)
    both = (into[src] > 0) | (out[dst] > 0)
    alone, further, added = _costs(priced, src, dst, nbytes, both, adds, fresh, shared)
    begin = np.maximum(ready[:, src], ready[:, dst])
    done: Amounts = ready.copy()
    for end, count, cost in ((src, out, further), (dst, into, further + added)):
        if count.max() == 1:
            done[:, end] = np.maximum(done[:, end], begin + alone + cost - further)
        else:
            _queue(end, begin, alone - further, cost, done)
    return done


def _costs(
    priced: Priced,
    src: Numbers,
    dst: Numbers,
    nbytes: Amounts,
    both: Flags,
    adds: Flags,
    fresh: Flags,
    shared: Flags,
) -> tuple[Amounts, Amounts, Amounts]:
    """Seconds of messages alone, as further ones, of their additions: each (sizes, messages)."""
    kinds = priced.machine.links(src, dst)
    found = np.zeros((3, *nbytes.shape))
    for kind in np.unique(kinds):
        at = np.flatnonzero(kinds == kind)
        link, some = priced.links[int(kind)], nbytes[:, at]
        found[0][:, at] = link.alone(some, both[at], fresh[at])
        found[1][:, at] = link.further(some, both[at], fresh[at])
        if adds[at].any():
            found[2][:, at] = np.where(adds[at], link.added(some, shared[at]), 0.0)
    return found[0], found[1], found[2]


def _queue(end: Numbers, begin: Amounts, lead: Amounts, cost: Amounts, done: Amounts) -> None:
    """Serve the ports with several messages: one begins when it can and those before are done."""
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
    finish += np.maximum.reduceat(lead[:, order], first, axis=1)
    port = ranks[first]
    done[:, port] = np.maximum(done[:, port], finish)
