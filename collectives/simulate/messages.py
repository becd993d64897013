"""A schedule as messages between ranks, step by step; equal steps are kept once.

Knows no machine and no bytes; amounts are in chunks of the schedule's vector.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from collectives.model.caches import Caches
from collectives.schedule.moves import Moves
from collectives.schedule.schedule import Schedule
from collectives.simulate.machines.machine import NONE, Weights

Numbers = NDArray[np.int64]
Amounts = NDArray[np.float64]


@dataclass(frozen=True)
class Pattern:
    """The messages of a step as columns.

    ``times`` equal messages of ``carried`` chunks go from ``src`` to ``dst``; they take the time of
    ``chunks`` chunks, and adding them that of ``added``: fewer where caches help (`Weights`).
    ``local``: chunks that each of ``local_ranks`` adds to its own.
    """

    src: Numbers
    dst: Numbers
    chunks: Amounts
    added: Amounts
    carried: Amounts
    times: Numbers
    local_ranks: Numbers
    local: Amounts

    def digest(self) -> bytes:
        """The same for equal patterns."""
        found = hashlib.blake2b(digest_size=16)
        for column in vars(self).values():
            found.update(len(column).to_bytes(8, "little"))
            found.update(np.ascontiguousarray(column).tobytes())
        return found.digest()


@dataclass(frozen=True)
class Traffic:
    """The different patterns of a schedule's steps, and which one every step has."""

    nranks: int
    patterns: tuple[Pattern, ...]
    steps: Numbers


def _grouped(key: Numbers, *weights: Amounts) -> tuple[Numbers, list[Amounts]]:
    """The different keys, ascending, and the sum of every weight over the equal ones."""
    keys, which = np.unique(key, return_inverse=True)
    return keys, [np.asarray(np.bincount(which, w, len(keys)), float) for w in weights]


def _pattern(
    m: Moves, nranks: int, packed: bool, weights: Weights, caches: Caches | None
) -> tuple[Pattern, bool]:
    """A step's messages; and whether some pair of ranks exchanges more than one."""
    away = m.remote()
    inside = m.where((m.src == m.dst) & m.reduce)
    local, (adds,) = _grouped(inside.dst.astype(np.int64), inside.count.astype(float))
    pair = away.src.astype(np.int64) * nranks + away.dst
    ordered = np.sort(pair)
    several = bool((ordered[1:] == ordered[:-1]).any())
    if several and not packed:
        away = away.joined()
    fresh, shared = np.ones((2, len(away)), bool)
    if caches is not None:
        fresh, shared = caches.fresh(away), caches.shared(away)
    columns = [away.src, away.dst, away.count, away.reduce, fresh, shared]
    times = np.ones(len(away), np.int64)
    if several and not packed:
        # Equal messages of a pair get equal shares on their whole route, so one row stands for
        # them.
        table, times = np.unique(np.stack(columns), axis=1, return_counts=True)
        columns = list(table)
    src, dst = (column.astype(np.int64) for column in columns[:2])
    carried = columns[2].astype(float)
    chunks = carried * np.where(columns[4], 1.0, weights.still)
    added = carried * columns[3] * np.where(columns[5], 1.0, weights.calm)
    if several and packed:
        pair, (chunks, added, carried) = _grouped(pair, chunks, added, carried)
        src, dst = np.divmod(pair, nranks)
        times = np.ones_like(src)
    return Pattern(src, dst, chunks, added, carried, times, local, adds), several


def traffic_of(schedule: Schedule, weights: Weights = NONE) -> Traffic:
    """The messages of a schedule, in vector form or placed.

    Slots that lie side by side at both ends travel as one message, as do all of a pair in a packed
    schedule. Steps in which nothing is sent or added are left out.
    """
    known: dict[bytes, int] = {}
    tags: dict[Hashable, int] = {}
    patterns: list[Pattern] = []
    steps: list[int] = []
    caches = Caches(schedule) if weights != NONE else None
    for step in schedule.steps:
        # Steps with the same moves may find different data in caches.
        signature = step.signature if caches is None else None
        if signature is not None and signature in tags:
            steps.append(tags[signature])
            continue
        m = step.moves()
        pattern, several = _pattern(m, schedule.nranks, schedule.packed, weights, caches)
        if caches is not None:
            caches.note(m.remote())
        if not (len(pattern.src) or len(pattern.local)):
            continue
        number = known.setdefault(pattern.digest(), len(patterns))
        if number == len(patterns):
            patterns.append(pattern)
        # Where a pair exchanges several, which of them join depends on the chunks' numbers.
        if signature is not None and not several:
            tags[signature] = number
        steps.append(number)
    return Traffic(schedule.nranks, tuple(patterns), np.array(steps, np.int64))
