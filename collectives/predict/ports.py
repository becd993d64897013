"""The time of a schedule from the costs of links: columnar, for many sizes at once.

A LogGP-like model (Alexandrov et al. 1995) of the executors. Every rank goes through its steps in
order and waits for its own messages only; there is no barrier. A message starts once both its ranks
have reached its step. The sender of an eager message does not wait: it continues once it has posted
the message, and a receiver that comes later finds the message there. A rank has one port in each
direction. Of several messages in a step the first costs its whole time, and each further one what
it adds (`LinkCosts.further`), in the schedule's order. Additions belong to the receiving port. If
caches matter, data that a rank has written in this collective costs more to send than its input,
and an addition costs more if others read the sum. Copies inside a rank are free, since
`collectives.execution.lower` removes most of them. Links are not shared: the contention of many
pairs is in the costs if they were measured that way, and otherwise in the simulator.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from collectives.predict.caches import Caches
from collectives.predict.interface import CollectivePredictor, Operation, schedule_refusal
from collectives.predict.machine import Amounts, Flags, Machine, Numbers, RankClasses
from collectives.schedule.moves import Moves
from collectives.schedule.schedule import Schedule
from collectives.schedule.spec import Collective, Unit


class PortPredictor(CollectivePredictor):
    """Predicts schedules from link costs; covers every schedule, also for thousands of ranks."""

    name = "ports"

    def refusal(self, operation: Operation) -> str:
        """Why this operation cannot be predicted, or "" if it can."""
        if self.machine.classes is None:
            return "the machine has no costs of links"
        return schedule_refusal(operation)

    def _seconds(self, operation: Operation, sizes: Sequence[int]) -> Amounts:
        schedule, machine = operation.schedule, self.machine
        chunks = _Chunks(schedule, operation.spec, sizes, operation.itemsize)
        caches = Caches(schedule)
        # One column while all ranks have the same time.
        ready: Amounts = np.zeros((len(sizes), 1))
        paths = _Paths(schedule.nranks)
        for step in schedule.steps:
            m = step.moves().remote()
            if not len(m):
                continue
            level = None
            if ready.shape[1] == 1:
                level = _level(m, schedule.nranks, chunks, caches, machine)
            if machine.start:
                paths.note(m, every=level is not None)
            if level is None:
                wide = np.broadcast_to(ready, (len(sizes), schedule.nranks))
                ready = _after(m.joined(), schedule.packed, chunks, caches, machine, wide)
                if ready.max() == ready.min() or (ready == ready[:, :1]).all():
                    ready = ready[:, :1]
            else:
                ready = ready + level
            caches.note(m)
        # Without a cycle no rank waits for a rank that starts late, so the start does not count.
        alone = schedule.nranks == 1
        start = machine.start if machine.start and (alone or paths.circular()) else 0.0
        return np.asarray(start + ready.max(axis=1))


class _Paths:
    """Whether a schedule's data can return to a rank that it has left."""

    def __init__(self, nranks: int) -> None:
        self._nranks, self._circular = nranks, False
        self._pairs: set[tuple[int, int]] = set()

    def note(self, m: Moves, *, every: bool) -> None:
        """Add the messages of a step; ``every``: in this step all ranks send and receive."""
        self._circular |= every
        if not self._circular:
            self._pairs.update(zip(m.src.tolist(), m.dst.tolist(), strict=True))

    def circular(self) -> bool:
        """True if there is a cycle: repeatedly removing ranks that receive nothing leaves some."""
        if self._circular:
            return True
        after: dict[int, list[int]] = {}
        senders = Counter(dst for _, dst in self._pairs)
        for src, dst in self._pairs:
            after.setdefault(src, []).append(dst)
        free = [rank for rank in range(self._nranks) if not senders[rank]]
        left = self._nranks
        while free:
            left -= 1
            for dst in after.get(free.pop(), ()):
                senders[dst] -= 1
                if not senders[dst]:
                    free.append(dst)
        return left > 0


class _Chunks:
    """The bytes of moved chunks of a schedule, for several sizes of the collective."""

    def __init__(
        self, schedule: Schedule, spec: Collective, sizes: Sequence[int], itemsize: int
    ) -> None:
        n = schedule.nranks
        each = [spec.size(n, size, itemsize).elements for size in sizes]
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
        """Bytes of ``count`` chunks of equal length, for every size: shape (sizes, counts)."""
        return np.asarray(count * (self._elements / self._split) * self._itemsize)

    def _bound(self, chunk: NDArray[np.int32]) -> Amounts:
        """The element at which a chunk begins."""
        part, piece = np.divmod(chunk.astype(np.int64), self._split)
        return np.asarray(part * self._elements + np.floor(piece * self._elements / self._split))


def chunk_bytes(spec: Collective, nranks: int, nchunks: int, nbytes: float) -> float:
    """Bytes of a chunk of a collective of ``nbytes``, fractions included.

    The simulator and the bandwidth term use these, so that equal chunks stay equal at every size;
    `_Chunks` has the whole elements that ranks send.
    """
    return part_bytes(spec, nranks, nbytes) * spec.parts(nranks) / max(1, nchunks)


def part_bytes(spec: Collective, nranks: int, nbytes: float) -> float:
    """Bytes of a part, fractions included; 1 if the collective moves no data (a barrier)."""
    return 1.0 if spec.unit is Unit.NOTHING else nbytes / spec.total(nranks)


def _classes(machine: Machine) -> RankClasses:
    assert machine.classes is not None  # see `PortPredictor.refusal`
    return machine.classes


def _level(
    m: Moves, nranks: int, chunks: _Chunks, caches: Caches, machine: Machine
) -> Amounts | None:
    """Seconds of a step in which each rank sends and receives one equal message; else None.

    The steps of rings are of this kind, which makes them cheap to predict for thousands of ranks.
    """
    src, dst = m.src, m.dst
    if len(m) != nranks or not chunks.equal or (m.count != m.count[0]).any():
        return None
    if (np.bincount(src, minlength=nranks) != 1).any():
        return None
    if (np.bincount(dst, minlength=nranks) != 1).any() or (m.reduce != m.reduce[0]).any():
        return None
    kinds = _classes(machine).links(src.astype(np.int64), dst.astype(np.int64))
    fresh, shared = caches.fresh(m), caches.shared(m)
    if any((flags != flags[0]).any() for flags in (kinds, fresh, shared)):
        return None
    link, nbytes = machine.costs[int(kinds[0])], chunks.same(m.count[:1])
    alone = link.alone(nbytes, np.ones(1, bool), fresh[:1])
    return alone + link.added(nbytes, shared[:1]) if m.reduce[0] else alone


def _after(
    m: Moves, packed: bool, chunks: _Chunks, caches: Caches, machine: Machine, ready: Amounts
) -> Amounts:
    """Times at which ranks complete a step, from those at which they enter it: (sizes, ranks)."""
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
    alone, further, added, posted = _costs(machine, src, dst, nbytes, both, adds, fresh, shared)
    begin = np.maximum(ready[:, src], ready[:, dst])
    eager, lead = ~np.isnan(posted), alone - further
    sent = np.where(eager, ready[:, src], begin), np.where(eager, 0.0, lead)
    matched = np.maximum(ready[:, src], ready[:, dst] + posted - alone)
    received = np.where(eager, matched, begin), lead
    done: Amounts = ready.copy()
    for end, count, (at, before), cost in (
        (src, out, sent, np.where(eager, posted, further)),
        (dst, into, received, further + added),
    ):
        if count.max() == 1:
            done[:, end] = np.maximum(done[:, end], at + before + cost)
        else:
            _queue(end, at, before, cost, done)
    return done


def _costs(
    machine: Machine,
    src: Numbers,
    dst: Numbers,
    nbytes: Amounts,
    both: Flags,
    adds: Flags,
    fresh: Flags,
    shared: Flags,
) -> Amounts:
    """Seconds of messages alone, of further ones, of additions, and of each end of eager ones.

    Shape (4, sizes, messages).
    """
    kinds = _classes(machine).links(src, dst)
    seconds = np.zeros((4, *nbytes.shape))
    for kind in np.unique(kinds):
        at = np.flatnonzero(kinds == kind)
        link, some = machine.costs[int(kind)], nbytes[:, at]
        seconds[0][:, at] = link.alone(some, both[at], fresh[at])
        seconds[1][:, at] = link.further(some, both[at], fresh[at])
        seconds[3][:, at] = link.posted(some)
        if adds[at].any():
            seconds[2][:, at] = np.where(adds[at], link.added(some, shared[at]), 0.0)
    return seconds


def _queue(end: Numbers, begin: Amounts, lead: Amounts, cost: Amounts, done: Amounts) -> None:
    """Complete the messages of ports that have several, each after the earlier ones of its port."""
    order = np.argsort(end, kind="stable")
    ranks = end[order]
    first = np.flatnonzero(np.diff(ranks, prepend=-1))
    sorted_cost = cost[:, order]
    # From each message to the last of its port: the sum of their times.
    total = np.cumsum(sorted_cost[:, ::-1], axis=1)[:, ::-1]
    last = np.append(first[1:], len(ranks))
    behind = np.where(last < len(ranks), total[:, np.minimum(last, len(ranks) - 1)], 0.0)
    length = np.diff(np.append(first, len(ranks)))
    rest = total - np.repeat(behind, length, axis=1)
    finish = np.maximum.reduceat(begin[:, order] + rest, first, axis=1)
    finish += np.maximum.reduceat(lead[:, order], first, axis=1)
    port = ranks[first]
    done[:, port] = np.maximum(done[:, port], finish)
