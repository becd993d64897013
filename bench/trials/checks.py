"""The counts of the self-check: verdicts on equal and slowed sides, and coverage. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import exp, log, sqrt
from statistics import mean, median, variance

import numpy as np
from msgspec.structs import replace

from busbar.statistics import interval
from busbar.units import format_seconds, format_size
from reports.analysis.compare import compare, join
from reports.records.measurement import Measurement, grouped
from reports.statistics.distributions import student_quantile
from reports.statistics.inference import launch_scatter, least_seen

#: Iterations of a window, and the number of windows around it (half before, half after) whose
#: median should be in its interval.
WINDOW, WINDOWS = 100, 10
#: A slowdown by this fraction or more must be found in this share of the pairs, and the same share
#: of equal pairs must be called equal.
ASKED, ASKED_SHARE = 0.05, 0.95


@dataclass(frozen=True)
class CheckLine:
    """A figure of the check. ``passed``: whether it meets the target; None: it is only shown."""

    name: str
    result: str
    target: str = ""
    passed: bool | None = None

    def __str__(self) -> str:
        """One line."""
        if self.passed is None:
            return f"{self.name}: {self.result}"
        return (
            f"{self.name}: {self.result} ({self.target}): {'kept' if self.passed else 'NOT KEPT'}"
        )


def words(a: Iterable[Measurement], b: Iterable[Measurement]) -> Counter[str]:
    """Count the verdicts of compare on the rows of A and B, each row by itself.

    Without the correction for the number of rows, which would make false alarms even rarer.
    """
    return Counter(compare([one])[0].word for one in join(list(a), list(b))[0])


def equal_sides(words: Counter[str], launches: int) -> CheckLine:
    """The result for equal sides with ``launches`` launches each."""
    total = words.total()
    if launches == 1:
        counted = sum(words[word] for word in ("faster", "slower", "indistinguishable"))
        text = f"{words['cannot tell']} of {total} pairs cannot tell"
        return CheckLine("A/A, one launch a side", text, "no verdict", not counted and total > 0)
    return _indistinguishable(f"A/A, {launches} launches a side", words)


def equal_within(words: Counter[str], launches: int) -> CheckLine:
    """The result for equal sides that take turns within ``launches`` launches."""
    return _indistinguishable(f"A/A within {launches} launches", words)


def _indistinguishable(name: str, words: Counter[str]) -> CheckLine:
    """The target for equal sides: 95 % of pairs called equal, minus what chance may miss.

    If each pair is missed once in twenty, one check in twenty misses more than that.
    """
    total, right = words.total(), words["indistinguishable"]
    most = most_by_chance(total, 1 - ASKED_SHARE)
    text = f"{100 * right / (total or 1):.1f} % of {total} pairs indistinguishable"
    target = f"95 %, and by chance {most} of {total} may be missed"
    return CheckLine(name, text, target, total - right <= most and total > 0)


def most_by_chance(n: int, p: float) -> int:
    """The number that n independent cases of probability p exceed with at most 5 % probability."""
    below, k = (1 - p) ** n, 0
    chance = below
    while below < ASKED_SHARE:
        chance *= (n - k) / (k + 1) * p / (1 - p)
        below, k = below + chance, k + 1
    return k


Cell = tuple[str, int]
"""A transport and a size."""


@dataclass
class SlowedSides:
    """The verdicts of compare on slowed sides, and the variance between launches, by cell.

    ``launches``: launches of a set. Each measures A, and B slowed by each share.
    """

    launches: int
    words: dict[float, Counter[str]] = field(default_factory=dict)
    #: Verdicts for separately launched sides: A of one set against B of another.
    separate: dict[float, Counter[str]] = field(default_factory=dict)
    equal: Counter[str] = field(default_factory=Counter)
    #: The variance between launches, and the variance of the difference within launches.
    between: dict[Cell, list[float]] = field(default_factory=dict)
    within: dict[Cell, list[float]] = field(default_factory=dict)
    _before: dict[str, Sequence[Measurement]] = field(default_factory=dict)

    def add(self, shares: Mapping[float, Sequence[Measurement]]) -> None:
        """Add launches over one transport: ``shares`` has the rows of each slowdown, of A at 0."""
        base = shares[0.0]
        before = self._before.get(base[0].transport)
        self._before[base[0].transport] = _figures(base)
        self.equal += words(*_turns(base))
        for share in sorted(shares.keys() - {0.0}):
            counts = self.words.setdefault(share, Counter())
            for one in join(base, shares[share])[0]:
                counts[compare([one])[0].word] += 1
                cell = one.base.transport, one.base.size or 0
                self.within.setdefault(cell, []).append(variance(one.within))
                scatter = launch_scatter(one.base_runs, one.new_runs) or 0.0
                self.between.setdefault(cell, []).append(scatter**2)
            if before:
                apart = words(before, _figures(shares[share]))
                self.separate.setdefault(share, Counter()).update(apart)

    def lines(self) -> Iterator[CheckLine]:
        """A line for equal sides, one for each slowdown, and one for each transport and size."""
        yield equal_within(self.equal, self.launches)
        for share, counts in self.words.items():
            yield slowed_side(counts, share, self.launches)
        for share, counts in self.separate.items():
            name = f"slowed by {100 * share:g} %, {self.launches} separate launches a side"
            yield CheckLine(name, f"{_slower(counts)}, {counts['faster']} faster")
        for cell in sorted(self.within):
            yield self._line(cell)

    def _line(self, cell: Cell) -> CheckLine:
        apart, within = (sqrt(mean(cells[cell])) for cells in (self.between, self.within))
        seen = least_seen(apart, self.launches), least_seen(within, self.launches, within=True)
        text = (
            f"launches differ by {100 * apart:.2g} %, differences within them by"
            f" {100 * within:.2g} %: {self.launches} launches of both sides see"
            f" {100 * seen[1]:.2g} %, separate ones {100 * seen[0]:.2g} %"
        )
        return CheckLine(f"  {cell[0]}, {format_size(cell[1])}", text)


def _figures(rows: Iterable[Measurement]) -> list[Measurement]:
    """The rows with one figure per visit: a bootstrap of all iterations would take minutes."""
    return [replace(r, times_s=()) for r in rows]


def _turns(rows: Iterable[Measurement]) -> tuple[list[Measurement], list[Measurement]]:
    """Split each launch's visits to a row: the first, third, …, and the second, fourth, …."""
    sides: tuple[list[Measurement], list[Measurement]] = [], []
    for visits in grouped(rows, lambda r: (id(r.run), r.size)).values():
        for side, one in zip(sides, (visits[::2], visits[1::2]), strict=True):
            side.extend(one)
    return sides


def slowed_side(words: Counter[str], share: float, launches: int) -> CheckLine:
    """The target for a slowed side: never faster, and from 5 % on found in 95 % of the pairs."""
    text = f"{_slower(words)}, {words['faster']} faster"
    name = f"slowed by {100 * share:g} % within {launches} launches"
    right = not words["faster"] and bool(words)
    if share < ASKED:
        return CheckLine(name, text, "never faster", right)
    enough = words["slower"] >= ASKED_SHARE * words.total()
    return CheckLine(name, text, "95 % slower, never faster", right and enough)


def _slower(words: Counter[str]) -> str:
    total = words.total()
    return f"{100 * words['slower'] / (total or 1):.1f} % of {total} pairs slower"


def coverage(rows: Iterable[Measurement]) -> tuple[int, int]:
    """Count windows of iterations whose interval contains the median of the windows around them.

    Returns (hits, windows). Five windows before a window and five after it are ten times as many
    iterations, without the window's own. An even drift has the same effect on both.
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
    """The result: the share of hits in all windows."""
    share = hits / total if total else 0.0
    text = f"{100 * share:.1f} % of {total} intervals hold the median of {WINDOWS} times as many"
    return CheckLine("coverage", text, "93 % at least", share >= 0.93)


def against_c(
    name: str, launches: Sequence[tuple[float, float, float]], *, faster: bool = False
) -> CheckLine:
    """The result for a collective's calls in our loop and in C, in turns within each launch.

    ``launches``: seconds in our loop, in C, and their ratio. ``faster``: our loop may be faster by
    more than 5 %. The interval is Student's t on the logarithms of the launches' ratios.
    """
    logs = [log(ratio) for _, _, ratio in launches]
    middle, error = mean(logs), sqrt(variance(logs) / len(logs))
    off = student_quantile(0.025, len(logs) - 1) * error
    ends = " to ".join(f"{100 * (exp(middle + x) - 1):+.1f}" for x in (-off, off))
    ours, c = (format_seconds(median(one[side] for one in launches)) for side in (0, 1))
    text = f"{ours} and {c}, {100 * (exp(middle) - 1):+.1f} % ({ends})"
    off, rule = exp(middle) - 1, "at most 5 % slower" if faster else "within 5 %"
    return CheckLine(name, text, rule, off <= 0.05 and (faster or off >= -0.05))
