"""All good hosts together, compared with a prediction from pairs. No input or output.

A set of hosts that falls short is halved, and both halves run at once, several times in turns. A
half is compared with the best set so far. So a loss that all all-reduces have does not count
against any set.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

from bench.qualify.evidence import Evidence
from bench.qualify.model import ALLREDUCE, Ending, Observation

#: A set falls short below this share of the prediction, and a half below this share of the best.
SHORT = 0.8
#: Launches of a set before it is judged.
REPEATS = 3
#: Sets of fewer hosts are not halved, because pairs have been measured.
_LEAST = 6
Group = tuple[int, ...]


@dataclass(frozen=True)
class ShortSet:
    """A set of hosts that falls short. `ratio`: its share of the prediction over the best set's."""

    hosts: Group
    ratio: float
    low: float
    high: float
    launches: tuple[int, ...]
    failed: bool


@dataclass
class Together:
    """Sets to launch next, sets that fall short, and the result of all hosts together.

    `share` is the rate of all good hosts over its prediction; None before it was measured.
    """

    launches: list[Group] = field(default_factory=list)
    short: list[ShortSet] = field(default_factory=list)
    share: float | None = None


def predicted(pair: float, nhosts: int) -> float:
    """Algorithm bandwidth of a ring all-reduce: each port carries 2 (P - 1) / P of the vector."""
    return pair * nhosts / (2 * (nhosts - 1))


def has_failed(one: Observation) -> bool:
    """True if a host of a launch did not finish or has wrong elements."""
    return any(r.ending != Ending.FINISHED or r.wrong for r in one.reports)


class _Sets:
    """The launches of each set, and its share of the prediction."""

    def __init__(self, evidence: Evidence, pair: float):
        self.pair = pair
        self.by_set: dict[Group, list[Observation]] = {}
        for one in evidence.together:
            group = tuple(evidence.index[name] for name in one.launch.hosts)
            self.by_set.setdefault(group, []).append(one)

    def count(self, group: Group) -> int:
        return len(self.by_set.get(group, ()))

    def shares(self, group: Group) -> list[float]:
        """The share of the prediction that each launch reached; 0 for one that failed."""
        expected = predicted(self.pair, len(group))
        return [self._rate(one) / expected for one in self.by_set.get(group, ())]

    def _rate(self, one: Observation) -> float:
        rates = one.rates.get(ALLREDUCE)
        return median(rates) if rates and not has_failed(one) else 0.0


def find_together(evidence: Evidence, good: Sequence[int], pair: float | None) -> Together:
    """The next launches of the good hosts, and the sets that fall short so far.

    ``pair``: bytes per second between two of them, with both directions at once.
    """
    result = Together()
    whole: Group = tuple(good)
    if len(whole) < 3 or not pair:
        return result
    sets = _Sets(evidence, pair)
    if not sets.count(whole):
        result.launches = [whole]
        return result
    result.share = median(sets.shares(whole))
    if result.share >= SHORT:
        return result
    if sets.count(whole) < REPEATS:
        result.launches = [whole]
        return result
    _halve(sets, whole, result)
    return result


def _halve(sets: _Sets, whole: Group, result: Together) -> None:
    """Halve sets that fall short, until no half of them falls short."""
    best, parents = median(sets.shares(whole)), [whole]
    while parents:
        halves = {p: (p[: len(p) // 2], p[len(p) // 2 :]) for p in parents if len(p) >= _LEAST}
        for parent in parents:
            if parent not in halves:
                _accuse(sets, parent, best, result)
        level = [half for both in halves.values() for half in both]
        waiting = [half for half in level if sets.count(half) < REPEATS]
        if waiting:
            result.launches = waiting
            return
        best = max([best, *(median(sets.shares(half)) for half in level)])
        parents = []
        for parent, both in halves.items():
            short = [half for half in both if median(sets.shares(half)) < SHORT * best]
            parents += short
            if not short and parent != whole:
                _accuse(sets, parent, best, result)


def _accuse(sets: _Sets, group: Group, best: float, result: Together) -> None:
    shares = [share / best for share in sets.shares(group)]
    launches = tuple(one.launch.number for one in sets.by_set[group])
    result.short.append(
        ShortSet(
            group, median(shares), min(shares), max(shares), launches, failed=not median(shares)
        )
    )
