"""The counts of the self-check: verdicts on equal and slowed sides, and coverage. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import sqrt

import numpy as np

from busbar.statistics import interval
from reports.analysis.compare import Joined, compare, join
from reports.records.rows import Row
from reports.records.shown import size_text
from reports.statistics.inference import launch_scatter, launches_to_see, least_seen

#: A window of a row's iterations, and of how many windows around it, half before and half after,
#: the median is that its interval is to hold.
WINDOW, WINDOWS = 100, 10
#: A slowdown by this share and more is to be found in 95 % of the pairs.
ASKED = 0.05


@dataclass(frozen=True)
class CheckLine:
    """A figure of the check. ``kept``: whether it is as it should be; None: it is only told."""

    name: str
    found: str
    target: str = ""
    kept: bool | None = None

    def __str__(self) -> str:
        """One line."""
        if self.kept is None:
            return f"{self.name}: {self.found}"
        return f"{self.name}: {self.found} ({self.target}): {'kept' if self.kept else 'NOT KEPT'}"


def words(a: Sequence[Sequence[Row]], b: Sequence[Sequence[Row]]) -> Counter[str]:
    """How often compare says what of launches of A and of B, each row by itself.

    Without the correction for the number of rows, which would make false alarms rarer still.
    """
    joined = join([r for rows in a for r in rows], [r for rows in b for r in rows])[0]
    return Counter(compare([one])[0].word for one in joined)


def equal_sides(found: Counter[str], launches: int) -> CheckLine:
    """The result for equal sides."""
    total = sum(found.values())
    if launches == 1:
        told = sum(found[word] for word in ("faster", "slower", "indistinguishable"))
        text = f"{found['cannot tell']} of {total} pairs cannot tell"
        return CheckLine("A/A, one launch a side", text, "no verdict", not told and total > 0)
    share = found["indistinguishable"] / total if total else 0.0
    text = f"{100 * share:.1f} % of {total} pairs indistinguishable"
    return CheckLine(f"A/A, {launches} launches a side", text, "95 % at least", share >= 0.95)


Cell = tuple[str, int]
"""A transport and a size."""


@dataclass
class SlowedSides:
    """What compare said of one side slowed, and by how much launches differ, cell by cell."""

    launches: int
    words: dict[float, dict[Cell, Counter[str]]] = field(default_factory=dict)
    variances: dict[Cell, list[float]] = field(default_factory=dict)
    #: The same of times held to one core clock, where clocks are known.
    clocked: dict[Cell, list[float]] = field(default_factory=dict)

    def add(self, share: float, a: Sequence[Sequence[Row]], b: Sequence[Sequence[Row]]) -> None:
        """A set: launches of A, and of B, which was slowed by a share."""
        cells = self.words.setdefault(share, {})
        sides = [[r for rows in side for r in rows] for side in (a, b)]
        for one in join(*sides)[0]:
            cells.setdefault(_cell(one), Counter())[compare([one])[0].word] += 1
            _add(self.variances, one)
        if all(r.clock_core_hz for rows in sides for r in rows):
            for one in join(*([_at_one_clock(r) for r in rows] for rows in sides))[0]:
                _add(self.clocked, one)

    def scatter(self, cell: Cell) -> float:
        """By how much launches differ there, over all sets; infinite where nothing is known."""
        return _root_mean(self.variances.get(cell))

    @property
    def able(self) -> set[Cell]:
        """Where launches are so alike that so many a side can see what is asked for."""
        return {c for c in self.variances if least_seen(self.scatter(c), self.launches) <= ASKED}

    def lines(self) -> Iterator[CheckLine]:
        """A line a share, and a line a cell."""
        for share, cells in self.words.items():
            yield slowed_side(cells, share, self.launches, self.able)
        for cell in sorted(self.variances):
            yield self._line(cell)

    def _line(self, cell: Cell) -> CheckLine:
        scatter = self.scatter(cell)
        least = 100 * least_seen(scatter, self.launches)
        many = launches_to_see(scatter, ASKED)
        would = "more than 1000" if many is None else str(many)
        text = (
            f"launches differ by {100 * scatter:.2g} %: {self.launches} a side see {least:.2g} %"
            f" and more, {would} a side would see {100 * ASKED:g} %"
        )
        if cell in self.clocked:
            alike = 100 * _root_mean(self.clocked[cell])
            text += f"; at one core clock they would differ by {alike:.2g} %"
        return CheckLine(f"  {cell[0]}, {size_text(cell[1])}", text)


def _cell(one: Joined) -> Cell:
    return one.base.transport, one.base.size or 0


def _add(variances: dict[Cell, list[float]], one: Joined) -> None:
    scatter = launch_scatter(one.base_runs, one.new_runs)
    if scatter is not None:
        variances.setdefault(_cell(one), []).append(scatter**2)


def _root_mean(variances: Sequence[float] | None) -> float:
    return sqrt(sum(variances) / len(variances)) if variances else float("inf")


def _at_one_clock(row: Row) -> Row:
    """The row with its times scaled to a core clock of 1 GHz, as if memory took none of them."""
    factor = (row.clock_core_hz or 0.0) * 1e-9
    return replace(row, times_s=tuple(t * factor for t in row.times_s))


def slowed_side(
    cells: Mapping[Cell, Counter[str]], share: float, launches: int, able: Collection[Cell]
) -> CheckLine:
    """Of one side slowed by a share: none is to be called faster.

    From 5 % on 95 % are to be found where the launches' scatter lets so many of them see 5 %
    (``able``); how many there are of all is told.
    """
    total = sum((found for found in cells.values()), Counter[str]())
    seen = sum((found for cell, found in cells.items() if cell in able), Counter[str]())
    text = f"{_slower(total)}, {total['faster']} faster"
    name = f"slowed by {100 * share:g} %, {launches} launches a side"
    right = not total["faster"] and bool(total)
    if share < ASKED:
        return CheckLine(name, text, "never faster", right)
    where = f"in the {len([c for c in cells if c in able])} of {len(cells)} cells that can"
    text += f"; {where} {_slower(seen)}"
    target = f"95 % slower where {100 * ASKED:g} % can be seen, never faster"
    found = bool(seen) and seen["slower"] >= 0.95 * seen.total()
    return CheckLine(name, text, target, right and found)


def _slower(found: Counter[str]) -> str:
    total = found.total()
    return f"{100 * found['slower'] / (total or 1):.1f} % of {total} pairs slower"


def coverage(rows: Iterable[Row]) -> tuple[int, int]:
    """How many windows of iterations have an interval that holds the median of those around it.

    Gives (hits, windows). Five windows before it and five after it are ten times as many
    iterations, of which it is none; what drifts evenly meets both alike.
    """
    hits = total = 0
    half = WINDOWS // 2
    for row in rows:
        series = np.asarray(row.times_s)
        windows = series[: len(series) // WINDOW * WINDOW].reshape(-1, WINDOW)
        for at in range(half, len(windows) - half):
            around = windows[at - half : at], windows[at + 1 : at + 1 + half]
            middle = float(np.median(np.concatenate(around)))
            low, high = interval(windows[at]) or (np.inf, -np.inf)
            hits += bool(low <= middle <= high)
            total += 1
    return hits, total


def covered(hits: int, total: int) -> CheckLine:
    """The share over all windows."""
    share = hits / total if total else 0.0
    text = f"{100 * share:.1f} % of {total} intervals hold the median of {WINDOWS} times as many"
    return CheckLine("coverage", text, "93 to 97 %", 0.93 <= share <= 0.97)
