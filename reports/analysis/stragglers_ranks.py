"""Slow ranks, by the ranks' own times of a row. Pure; no I/O. docs/reports.md says why.

A rank's time begins when it leaves the barrier and ends when its part is done. So it includes the
rank's own work *and its waiting*. Which rank waits for which depends on the collective:

- where every rank needs data of every other (all-reduce, all-gather, all-to-all, barrier, …), no
rank ends before the last one has arrived. A *late* rank (it left the barrier late) has the shortest
time, since the others wait for it. A rank that is slow only at its own end is *last*. A rank that
is slow in between makes all times equally long and cannot be found.
- where every rank passes something to the next one, a *slow* rank is long. So is the next one,
which waits for it, and perhaps the one before, which cannot hand over. Nobody else need be.
- with a root, the shape of the tree makes some ranks take longer than others: nothing is inferred.

All-reduces have shapes too (a tree's root ends first), so the evidence of one algorithm is only a
hint.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from busbar.statistics import interval
from reports.records.measurement import Measurement
from reports.statistics.distributions import chi_squared_p
from reports.statistics.inference import holm, likeness

How = Literal["late", "slow", "last"]
Floats = NDArray[np.float64]

#: A difference that is less of the row's time is of no consequence.
MARGIN = 0.1
_SIGNIFICANT = 0.01
_FEWEST_RANKS, _FEWEST = 3, 6
_ALL_WAIT = ("allreduce", "allgather", "reduce_scatter", "alltoall", "alltoallv", "barrier",
             "hypercube")  # fmt: skip


@dataclass(frozen=True)
class Observation:
    """A row whose ranks fall into two groups, or into none (both sets empty).

    ``seconds``: ranks x iterations. ``p``: of Friedman's test that ranks differ at all, corrected
    for the number of rows (Holm).
    """

    row: Measurement
    seconds: Floats
    low: frozenset[int]
    high: frozenset[int]
    p: float

    @property
    def ranks(self) -> int:
        """The number of ranks."""
        return len(self.seconds)

    @property
    def all_wait(self) -> bool:
        """Whether no rank can leave before every rank has come."""
        return self.row.collective in _ALL_WAIT


def observe(rows: Iterable[Measurement], margin: float = MARGIN) -> list[Observation]:
    """Observations of the rows with times of three ranks at least, six iterations each."""
    observed: list[tuple[Measurement, Floats]] = []
    for row in rows:
        lengths = set(map(len, row.per_rank_s))
        if len(row.per_rank_s) >= _FEWEST_RANKS and len(lengths) == 1 and min(lengths) >= _FEWEST:
            observed.append((row, np.asarray(row.per_rank_s, dtype=float)))
    corrected = holm([_friedman(times) for _, times in observed])
    return [
        Observation(row, times, *(_split(times, margin) if p < _SIGNIFICANT else _NO_SPLIT), p)
        for (row, times), p in zip(observed, corrected, strict=True)
    ]


_NO_SPLIT: tuple[frozenset[int], frozenset[int]] = (frozenset(), frozenset())


def _friedman(times: Floats) -> float:
    """Friedman's test (1937) with iterations as blocks: do ranks keep their order? Ties by lot.

    Where the order of one iteration is much that of the one before, blocks count for less: by
    (1 − r) / (1 + r) of that likeness r, as far as it is beyond chance (two standard deviations).
    """
    k, n = times.shape
    lot = np.random.default_rng(0).random(times.shape)
    places = np.lexsort((lot, times), axis=0).argsort(axis=0) + 1
    squares = float(((places.sum(axis=1) - n * (k + 1) / 2) ** 2).sum())
    r = max(0.0, likeness(list(places.astype(float))) - 2 / sqrt(n * (k - 1)))
    return chi_squared_p(12 * squares / (n * k * (k + 1)) * (1 - r) / (1 + r), k - 1)


def _split(times: Floats, margin: float) -> tuple[frozenset[int], frozenset[int]]:
    """The ranks below and above the widest gap between their medians, where it is wide enough.

    It must be half of all there is between the ranks, and ``margin`` of the row's time.
    """
    medians = np.median(times, axis=1)
    order = np.argsort(medians, kind="stable")
    gaps = np.diff(medians[order])
    at = int(np.argmax(gaps)) + 1
    whole = float(medians.max() - medians.min())
    if gaps[at - 1] < max(whole / 2, margin * float(np.median(times.max(axis=0)))):
        return _NO_SPLIT
    return frozenset(order[:at].tolist()), frozenset(order[at:].tolist())


def speaks(o: Observation, ranks: Collection[int], how: How) -> bool | None:
    """Whether a row speaks for (True) or against (False) these ranks being it; None: neither."""
    suspects = set(ranks)
    if how == "slow":
        held = _held_up(o, suspects)
        return None if held is None else bool(o.high) and held[0] <= o.high <= held[1]
    if not o.all_wait:
        return None
    group = o.low if how == "late" else o.high
    return suspects <= group and len(group) < o.ranks / 2


def _held_up(o: Observation, suspects: set[int]) -> tuple[set[int], set[int]] | None:
    """The ranks that must be, and that may be, longer if these ranks are slow; None if unknown."""
    if o.row.collective == "sendrecv":  # each to the next
        must = suspects | {(s + 1) % o.ranks for s in suspects}
        may = must | {(s - 1) % o.ranks for s in suspects}
    elif o.row.collective == "sendrecv_pairs":  # 0 with 1, 2 with 3, …
        must = may = suspects | {s ^ 1 for s in suspects if s ^ 1 < o.ranks}
    else:
        return None
    return None if len(must) == o.ranks else (must, may)


@dataclass(frozen=True)
class Accused:
    """Ranks (one, a GPU's or a node's), the rows that speak for it, how many spoke of it.

    ``either``: the ranks cannot be told apart, and one of them suffices to explain the rows.
    """

    how: How
    ranks: tuple[int, ...]
    rows: tuple[Observation, ...]
    spoke: int
    either: bool = False

    @property
    def algorithms(self) -> set[tuple[str, str]]:
        """The algorithms of the rows that support it."""
        return {(o.row.collective, o.row.algorithm) for o in self.rows}


def accused(
    observations: Sequence[Observation], groups: Iterable[tuple[int, ...]] = ()
) -> list[Accused]:
    """The ranks that at least half of their rows support, most rows first.

    ``groups``: ranks that share a GPU or a node, accused as one where this explains as many rows.
    """
    ranks = range(max((o.ranks for o in observations), default=0))
    candidates = [*groups, *((s,) for s in ranks)]
    slow_ranks: list[Accused] = []
    for how in _HOWS:
        proposed = [_accused(observations, c, how) for c in candidates]
        likely = [a for a in proposed if a.rows and len(a.rows) >= a.spoke / 2]
        likely.sort(key=lambda a: (-len(a.rows), -len(a.ranks)))
        remaining: list[Accused] = []
        for a in likely:
            if not any(set(a.ranks) & set(k.ranks) for k in remaining):
                remaining.append(a)
        slow_ranks += _alternatives(remaining)
    return sorted(slow_ranks, key=lambda a: -len(a.rows))


_HOWS: tuple[How, ...] = ("late", "slow", "last")


def _accused(observations: Sequence[Observation], ranks: tuple[int, ...], how: How) -> Accused:
    words = [speaks(o, ranks, how) for o in observations]
    mine = tuple(o for o, word in zip(observations, words, strict=True) if word)
    return Accused(how, ranks, mine, sum(word is not None for word in words))


def _alternatives(remaining: Sequence[Accused]) -> list[Accused]:
    """Single ranks that the same rows speak for, each enough for all of them, become one."""
    alternatives: dict[tuple[int, ...], Accused] = {}
    for n, a in enumerate(remaining):
        same = tuple(map(id, a.rows)) if not any(o.all_wait for o in a.rows) else (n,)
        if same in alternatives:
            ranks = (*alternatives[same].ranks, *a.ranks)
            alternatives[same] = Accused(a.how, ranks, a.rows, a.spoke, either=True)
        else:
            alternatives[same] = a
    return list(alternatives.values())


@dataclass(frozen=True)
class Delay:
    """A delay in seconds, with the 95 % interval of its median; its share of the row's time."""

    observation: Observation
    seconds: float
    low: float
    high: float
    share: float


def delay(a: Accused) -> Delay:
    """The row in which the accused differ most from the ranks of the other group.

    Per iteration: their median against the median of the other group (of what is late, the longer
    one). The interval is over iterations.
    """
    delays = [_delay(o, list(a.ranks), a.how) for o in a.rows]
    return max(delays, key=lambda d: d.share)


def _delay(o: Observation, ranks: list[int], how: How) -> Delay:
    others = sorted((o.high if how == "late" else o.low) - set(ranks))
    own, rest = np.median(o.seconds[ranks], axis=0), np.median(o.seconds[others], axis=0)
    each = (rest - own if how == "late" else own - rest).tolist()
    middle = float(np.median(each))
    low, high = interval(each) or (middle, middle)
    return Delay(o, middle, low, high, middle / float(np.median(o.seconds.max(axis=0))))
