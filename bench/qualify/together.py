"""All good hosts together, compared with a prediction from pairs. No input or output.

A set of hosts that falls short is halved, and both halves run at once, several times in turns. A
set is compared with the best set so far. So a loss that all all-reduces have does not count against
any set. Where latency rules, a ring's share of the prediction falls with its hosts, so a set of
more hosts may reach less.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

from bench.qualify.evidence import STATES, Evidence
from bench.qualify.model import ALLREDUCE, Ending, Observation, State

#: A set falls short below this share of the prediction, and a half below this share of the best.
SHORT = 0.8
#: Launches of a set before it is judged.
REPEATS = 3
#: Sets of fewer hosts are not halved, because pairs have been measured.
_LEAST = 6
Group = tuple[int, ...]


@dataclass(frozen=True)
class ShortSet:
    """A set of hosts whose all-reduce is too slow, or fails.

    `ratio`: measured / predicted rate of this set, divided by the same of the best set. `low` and
    `high`: its interval.
    """

    hosts: Group
    ratio: float
    low: float
    high: float
    launches: tuple[int, ...]
    state: State


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
    """Halve sets that fall short, until no half of them falls short; accuse those.

    If all hosts together are slow and neither half is, nothing tells which of them interfere.
    """
    best, parents = whole, [whole]
    while parents:
        halves = {p: (p[: len(p) // 2], p[len(p) // 2 :]) for p in parents if len(p) >= _LEAST}
        level = [half for both in halves.values() for half in both]
        waiting = [half for half in level if sets.count(half) < REPEATS]
        if waiting:
            result.launches = waiting
            return
        best = max([best, *level], key=lambda group: median(sets.shares(group)))
        fallen = {
            parent: [half for half in halves.get(parent, ()) if _is_short(sets, half, best)]
            for parent in parents
        }
        for parent, short in fallen.items():
            if not short and _is_short(sets, parent, best):
                slow = State.CANNOT_TELL if parent == whole else State.SLOW
                result.short.append(_accused(sets, parent, best, slow))
        parents = [half for short in fallen.values() for half in short]


def _is_short(sets: _Sets, group: Group, best: Group) -> bool:
    """True if a set fails, or reaches too little beside the best set."""
    share = median(sets.shares(group))
    fair = min(1.0, len(best) / len(group))
    return not share or share < SHORT * fair * median(sets.shares(best))


def _accused(sets: _Sets, group: Group, best: Group, slow: State) -> ShortSet:
    """A set that falls short; ``slow``: its state, unless its launches failed."""
    most = median(sets.shares(best)) or 1.0
    shares = [share / most for share in sets.shares(group)]
    launches = tuple(one.launch.number for one in sets.by_set[group])
    state = slow if median(shares) else _failure(sets.by_set[group])
    return ShortSet(group, median(shares), min(shares), max(shares), launches, state)


def _failure(observations: Sequence[Observation]) -> State:
    """The commonest state of the hosts whose own process failed; wrong, if all finished."""
    endings = (report.ending for one in observations for report in one.reports)
    counts = Counter(STATES[ending] for ending in endings if ending in STATES)
    return counts.most_common(1)[0][0] if counts else State.WRONG
