"""Find the rank, GPU, link or node that explains the bad pairs of a measured P x P matrix. Pure.

A slow link shows in one pair, a slow rank in all of its pairs, a slow node in all pairs that leave
it. So every such unit is tried as an explanation: are its pairs, nearly all of them, worse than the
others of their class? The unit that explains most of the deviation is reported and removed, and the
rest is tested again (forward selection).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import exp, log

import numpy as np

from busbar.statistics import robust_test
from topology.model.measured import QUANTITIES, ends, kind_of_pair, matrix, slow
from topology.model.topology import Kind, Topology

Pair = tuple[int, int]

#: Least relative difference that counts, however certain it is.
MARGIN = 0.1
_SIGNIFICANT = 0.01
_SIGNIFICANT_LINK = 0.001  # stricter: with heavy-tailed scatter one pair is easily an outlier
_FEWEST_PAIRS = 3  # fewest other pairs to compare with
_COVERED = 0.8  # the share of a unit's pairs that must be worse
_MOST_UNITS = 8


@dataclass(frozen=True)
class Cell:
    """A pair's median with its 95 % interval, in seconds or bytes/s. ``kind``: the pair's class."""

    value: float
    low: float
    high: float
    kind: str


@dataclass(frozen=True)
class Pairs:
    """One measured quantity between the ends 0 … n − 1 (ranks or GPUs), named in ``ids``.

    ``nodes``: the node of each end. ``cells``: the measurement of each pair (from, to); if
    ``directed`` is False, both directions are one measurement. ``slow``: pairs worse than their
    class by more than the noise. ``disturbance``: a sentence on other programs that ran meanwhile.
    """

    name: str
    more_is_better: bool
    directed: bool
    ids: tuple[str, ...]
    nodes: tuple[str, ...]
    cells: Mapping[Pair, Cell]
    slow: frozenset[Pair] = frozenset()
    disturbance: str = ""

    @property
    def compared(self) -> dict[Pair, Cell]:
        """The measurements to compare, each once: if undirected, as (lower, higher) end."""
        return {
            (a, b): cell
            for (a, b), cell in self.cells.items()
            if a != b and cell.value > 0 and (self.directed or a < b)
        }


@dataclass(frozen=True)
class SlowUnit:
    """A unit that may be slow: ``kind`` is link, rank, sending, receiving, node or within.

    ``rank``: all pairs of an end (``ends`` has one); ``sending``, ``receiving``: one direction
    only; ``link``: a pair, one direction if ``one_way``; ``node``: pairs that leave or enter a
    node; ``within``: pairs inside a node.
    """

    kind: str
    ends: tuple[int, ...]
    node: str = ""
    one_way: bool = False


@dataclass(frozen=True)
class Worse:
    """A unit whose pairs are ``times`` times as bad as the others of their classes.

    ``low``, ``high``: the interval of that ratio, from the intervals of the pairs and the scatter
    among the others. ``value``, ``typical``: medians of its pairs of the class ``of_kind``, the one
    that most of its pairs have, and of the others of that class. ``pairs`` of ``of`` pairs are
    worse. ``p``: one-sided, Student's t, times the number of units tried.
    """

    unit: SlowUnit
    times: float
    low: float
    high: float
    value: float
    typical: float
    of_kind: str
    pairs: int
    of: int
    p: float


def units(pairs: Pairs) -> dict[frozenset[Pair], SlowUnit]:
    """Every unit that may be slow, by its pairs; of units with the same pairs only the smallest."""
    slow_units: dict[frozenset[Pair], SlowUnit] = {}

    def add(unit: SlowUnit, cells: Iterable[Pair]) -> None:
        touched = frozenset(cells)
        if touched:
            slow_units.setdefault(touched, unit)

    cells = pairs.compared
    for pair in cells:
        add(SlowUnit("link", pair, one_way=pairs.directed), (pair,))
    for a, b in combinations(range(len(pairs.ids)), 2):
        add(SlowUnit("link", (a, b)), [c for c in ((a, b), (b, a)) if c in cells])
    of_end: dict[int, list[Pair]] = {}
    for cell in cells:
        for end in cell:
            of_end.setdefault(end, []).append(cell)
    for end, own in of_end.items():
        add(SlowUnit("rank", (end,)), own)
        if pairs.directed:
            add(SlowUnit("sending", (end,)), [c for c in own if c[0] == end])
            add(SlowUnit("receiving", (end,)), [c for c in own if c[1] == end])
    for node in dict.fromkeys(pairs.nodes):
        ends = tuple(e for e, n in enumerate(pairs.nodes) if n == node)
        inside = [sum(pairs.nodes[e] == node for e in c) for c in cells]
        add(SlowUnit("node", ends, node), [c for c, k in zip(cells, inside, strict=True) if k == 1])
        add(
            SlowUnit("within", ends, node),
            [c for c, k in zip(cells, inside, strict=True) if k == 2],
        )
    return slow_units


def cannot_tell(pairs: Pairs) -> str:
    """Why two or three ends cannot show which of them, or which link, is slow; else empty.

    Two have a single pair. Of three, a slow end leaves one pair to compare with, as a slow link
    leaves two of which each shares an end with it.
    """
    what = "ranks" if all(one.startswith("RANK") for one in pairs.ids) else "GPUs"
    if len(pairs.ids) == 2:
        return f"{pairs.name}: two {what} have one pair, with which nothing can be compared"
    if len(pairs.ids) > 3 or not pairs.slow:
        return ""
    names = ", ".join(f"{pairs.ids[a]} to {pairs.ids[b]}" for a, b in sorted(pairs.slow))
    return f"{pairs.name}: {names} are slow; three {what} are too few to tell which of them it is"


def worse(pairs: Pairs, margin: float = MARGIN) -> list[Worse]:
    """Units worse than others of their class by more than ``margin`` and beyond chance."""
    left, evidence = pairs.compared, list[Worse]()
    tried = units(pairs)
    while left and len(evidence) < _MOST_UNITS:
        best: tuple[float, frozenset[Pair], Worse] | None = None
        scale = _Scale(pairs, left)
        for touched, unit in tried.items():
            own = [c for c in touched if c in left]
            if len(own) < max(1, len(touched) / 2):
                continue  # most of it is explained already
            judged = scale.judge(unit, own, len(tried), margin)
            if judged is not None and (best is None or judged[0] > best[0]):
                best = judged[0], touched, judged[1]
        if best is None:
            break
        evidence.append(best[2])
        for cell in best[1]:
            left.pop(cell, None)
    return evidence


class _Scale:
    """Logarithms of the pairs that no slow unit explains yet, by class; a larger one is worse."""

    def __init__(self, pairs: Pairs, left: Mapping[Pair, Cell]) -> None:
        self._at = {pair: n for n, pair in enumerate(left)}
        self._values = np.array([cell.value for cell in left.values()])
        sign = -1 if pairs.more_is_better else 1
        self._bad = np.log(self._values) * sign
        best = [cell.high if pairs.more_is_better else cell.low for cell in left.values()]
        # Without a valid interval, the value itself is taken as the best one.
        self._best = np.array(
            [sign * log(b) if b > 0 else v for b, v in zip(best, self._bad.tolist(), strict=True)]
        )
        self._kinds = list(dict.fromkeys(c.kind for c in left.values()))
        kinds = {kind: n for n, kind in enumerate(self._kinds)}
        self._kind = np.array([kinds[cell.kind] for cell in left.values()])
        medians = np.array([np.median(self._bad[self._kind == n]) for n in kinds.values()])
        self._amiss = self._bad - medians[self._kind]
        # A cell's interval as a standard deviation: the scatter cannot be smaller.
        widths = [log(c.high / c.low) / (2 * 1.96) for c in left.values() if 0 < c.low <= c.high]
        self._own = max(0.005, float(np.median(widths)) if widths else 0.0)

    def judge(
        self, unit: SlowUnit, cells: Sequence[Pair], tried: int, margin: float
    ) -> tuple[float, Worse] | None:
        """The deviation that a slow unit explains, and the evidence.

        None if it is not significantly worse. ``cells``: the unit's pairs. ``tried``: how many
        units are tested. ``margin``: the least relative deviation that counts.
        """
        own = np.array([self._at[c] for c in cells])
        if unit.kind == "link" and self._amiss[own].max() < 0.7 * log(1 + margin):
            return None  # a quick test, because most links are not slow
        residual, others = self._bad.copy(), np.zeros(len(self._bad), dtype=bool)
        at_best = self._best.copy()
        for kind in np.unique(self._kind[own]):
            of_kind = self._kind == kind
            rest = of_kind.copy()
            rest[own] = False
            if rest.sum() < _FEWEST_PAIRS:
                return None  # nothing to compare it with
            residual[of_kind] -= np.median(self._bad[rest])
            at_best[of_kind] -= np.median(self._bad[rest])
            others |= rest
        excess = residual[own]
        effect = float(np.median(excess))
        if effect <= log(1 + margin) or np.mean(excess > effect / 2) < _COVERED:
            return None
        if float(np.median(at_best[own])) <= log(1 + margin) / 2:
            return None  # their best values are as good as the others
        error, p = robust_test(effect, len(own), residual[others], self._own)
        p = min(1.0, tried * p)
        if p >= (_SIGNIFICANT_LINK if unit.kind == "link" else _SIGNIFICANT):
            return None
        usual = int(np.bincount(self._kind[own]).argmax())
        alike = self._kind == usual
        return float(abs(excess).sum() - abs(excess - effect).sum()), Worse(
            unit=unit,
            times=exp(effect),
            low=exp(effect - 1.96 * error),
            high=exp(effect + 1.96 * error),
            value=float(np.median(self._values[own[alike[own]]])),
            typical=float(np.median(self._values[others & alike])),
            of_kind=self._kinds[usual],
            pairs=int((excess > effect / 2).sum()),
            of=len(own),
            p=p,
        )


def matrices(topology: Topology) -> list[Pairs]:
    """The matrices of all measured quantities in a map."""
    known = []
    for name, more_is_better in QUANTITIES.items():
        cells = matrix(topology, name)
        if not cells:
            continue
        ids = ends(topology, cells)
        at = {id: n for n, id in enumerate(ids)}
        hosts = [topology.ancestor(id, Kind.HOST) for id in ids]
        nodes = tuple("" if h is None else h.name or h.id for h in hosts)
        values = {
            (at[a], at[b]): Cell(c.value, c.low, c.high, kind_of_pair(topology, a, b))
            for (a, b), c in cells.items()
        }
        directed = name == "bandwidth"  # for other quantities both directions are one measurement
        slower = frozenset((at[s.a], at[s.b]) for s in slow(topology, cells, more_is_better))
        beside = topology.disturbance
        known.append(Pairs(name, more_is_better, directed, ids, nodes, values, slower, beside))
    return known
