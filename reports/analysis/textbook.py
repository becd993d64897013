"""The textbook's comparison: parameter server and ring over P and n, measured and predicted.

A parameter server's port carries 2n(P−1) bytes, which grows with P. A ring rank's port carries
2n(P−1)/P each way, which hardly grows (Patarasuk, Yuan 2009), and so does a server's that is
sharded over all ranks. The schedules' own counts stand beside these formulas, and each measured
curve beside the textbook's shape at the curve's own rate.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter

import numpy as np

from busbar.errors import ReportError
from busbar.statistics import interval
from collectives.schedule.catalogue import draft, spec
from collectives.schedule.cost import cost
from reports.analysis.growth import VOLUMES, Growth, Verdict, grown, verdict
from reports.records.measurement import Measurement, grouped

ALGORITHMS = ("ps", "ring", "sharded_ps")
FORMULAS = {"ps": "2n(P-1)", "ring": "2n(P-1)/P", "sharded_ps": "2n(P-1)/P"}
Predict = Callable[[str, int, Sequence[int]], Sequence[float | None]]
Measured = Mapping[tuple[str, int, int], Sequence[Measurement]]
"""Rows by algorithm, ranks and size; several where it was measured several times."""


@dataclass(frozen=True)
class LawTiming:
    """One algorithm, rank count and size; times in seconds, None where unknown.

    ``low``, ``high``: the 95 % interval of ``measured``. ``volume``: bytes through the busiest
    port, in units of the size, by the textbook; ``counted``: by the schedule. ``over_ranks``: the
    time of this volume at the median rate of all rank counts at this size; ``over_sizes``: at that
    of the larger sizes on so many ranks.
    """

    algorithm: str
    ranks: int
    size: int
    volume: float
    counted: float
    measured: float | None = None
    low: float | None = None
    high: float | None = None
    predicted: float | None = None
    over_ranks: float | None = None
    over_sizes: float | None = None

    @property
    def rate(self) -> float | None:
        """Bytes per second that went through the busiest port, had it been what time goes with."""
        return self.volume * self.size / self.measured if self.measured else None


@dataclass(frozen=True)
class LawComparison:
    """All cells; how each algorithm's time grows with P at each size; the verdict on the law.

    ``verdict`` is None where nothing was measured; ``notes``: what was left out.
    """

    cells: tuple[LawTiming, ...]
    growths: tuple[Growth, ...] = ()
    verdict: Verdict | None = None
    notes: tuple[str, ...] = ()

    def of(
        self, algorithm: str, *, ranks: int | None = None, size: int | None = None
    ) -> list[LawTiming]:
        """Cells of an algorithm, of one rank count or size if given, by ranks and size."""
        return sorted(
            (
                c
                for c in self.cells
                if c.algorithm == algorithm and ranks in (None, c.ranks) and size in (None, c.size)
            ),
            key=lambda c: (c.ranks, c.size),
        )

    def growth(self, cell: LawTiming) -> tuple[float | None, float | None]:
        """The time over that of the fewest ranks at this size: measured, by volume.

        None where this is the only number of ranks.
        """
        first, *others = self.of(cell.algorithm, size=cell.size)
        if not others:
            return None, None
        by_volume = cell.volume / first.volume if first.volume else None
        if not cell.measured or not first.measured:
            return None, by_volume
        return cell.measured / first.measured, by_volume


def compare(
    rows: Sequence[Measurement], ranks: Sequence[int], sizes: Sequence[int], predict: Predict
) -> LawComparison:
    """Compare measured all-reduces by `ALGORITHMS` with the textbook, at all ranks and sizes.

    ``predict(algorithm, ranks, sizes)`` returns seconds. ``ranks`` and ``sizes`` are added to those
    that were measured. Of rows of both placements the one out of place is taken; of several
    transports, the one with the most rows. Rows with shared work are taken only where there are no
    others. Raises ReportError if there is neither such a row nor a rank count.
    """
    measured, notes = _measured(rows)
    if rows and not measured:
        raise ReportError(
            "no all-reduce by ps, ring or sharded_ps in it; run python -m bench.allreduce"
            " -A ps,ring,sharded_ps --ranks 2,4,8,16"
        )
    counts = sorted({*ranks, *(key[1] for key in measured)})
    every = sorted({*sizes, *(key[2] for key in measured)})
    if not counts or not every:
        raise ReportError("nothing to compare: give a RUN, or -n RANKS")
    over_ranks, over_sizes = _rates(measured)
    cells = []
    for name in ALGORITHMS:
        for p in counts:
            counted = _counted(name, p)
            for size, time in zip(every, predict(name, p, every), strict=True):
                rows_at = measured.get((name, p, size))
                if rows_at is None and rows and p not in ranks:
                    continue
                volume = VOLUMES[name](p)
                rates = (over_ranks.get((name, size)), over_sizes.get((name, p)))
                lines = (volume * size / rate if rate else None for rate in rates)
                times = _times(rows_at) if rows_at else (None, None, None)
                cells.append(LawTiming(name, p, size, volume, counted, *times, time, *lines))
    growths = _growths(measured)
    return LawComparison(tuple(cells), growths, _verdict(growths, measured), tuple(notes))


def _measured(rows: Sequence[Measurement]) -> tuple[Measured, list[str]]:
    """The rows that count, by case, and in words those that were left out."""
    mine = [
        r
        for r in rows
        if r.collective == "allreduce" and r.algorithm in ALGORITHMS
        if r.time_s and r.size and (r.ranks or 0) > 1
    ]
    transports = [r.transport for r in mine]
    chosen = max(transports, key=transports.count, default="")
    notes = []
    if set(transports) - {chosen}:
        others = len(mine) - transports.count(chosen)
        notes.append(f"{others} rows of other transports than {chosen} are left out")
    carried = (r for r in mine if r.transport == chosen)
    groups = grouped(carried, lambda r: (r.algorithm, r.ranks or 0, r.size or 0))
    return {key: _best(some) for key, some in groups.items()}, notes


def _best(rows: Sequence[Measurement]) -> list[Measurement]:
    """The best of several rows of one case: without work sharing, then out of place."""
    worth = min((r.worksharing, r.placement != "out") for r in rows)
    return [r for r in rows if (r.worksharing, r.placement != "out") == worth]


def _samples(rows: Sequence[Measurement]) -> list[Sequence[float]]:
    return [r.times_s or (r.time_s or 0.0,) for r in rows]


def _times(rows: Sequence[Measurement]) -> tuple[float | None, float | None, float | None]:
    """Time and its interval: a row's own, or of several rows' iterations together."""
    if len(rows) == 1:
        return rows[0].time_s, rows[0].low_s, rows[0].high_s
    values = [t for one in _samples(rows) for t in one]
    return float(np.median(values)), *(interval(values) or (None, None))


_Rates = dict[tuple[str, int], float]


def _rates(measured: Measured) -> tuple[_Rates, _Rates]:
    """Bytes per second of each curve: by algorithm and size over ranks, by ranks over sizes.

    A curve of one point has none: the textbook would only repeat the point. A rate is the median of
    volume over time of the points; over sizes of the larger half of them, since latency is no part
    of the textbook's volumes and small sizes would say nothing of them.
    """
    points = [
        (name, p, size, VOLUMES[name](p) * size / (_times(rows)[0] or 1.0))
        for (name, p, size), rows in measured.items()
    ]
    over_sizes = {}
    for key, curve in grouped(points, itemgetter(0, 1)).items():
        middle = float(np.median([size for _, _, size, _ in curve]))
        if len(curve) > 1:
            over_sizes[key] = float(np.median([rate for *_, size, rate in curve if size >= middle]))
    by_size = grouped(points, itemgetter(0, 2)).items()
    over_ranks = {key: float(np.median([one[3] for one in c])) for key, c in by_size if len(c) > 1}
    return over_ranks, over_sizes


def _growths(measured: Measured) -> tuple[Growth, ...]:
    """Curves over all rank counts, by algorithm and size."""
    growths = []
    for name in ALGORITHMS:
        for size in sorted({key[2] for key in measured if key[0] == name}):
            points = {
                p: _samples(rows) for (a, p, s), rows in measured.items() if (a, s) == (name, size)
            }
            one = grown(name, size, points, VOLUMES[name])
            growths += [one] if one is not None else []
    return tuple(growths)


def _verdict(growths: Sequence[Growth], measured: Measured) -> Verdict | None:
    """The verdict at the largest size that the most algorithms have over the most rank counts.

    Rank counts that share cores are left out where two others are there: they would only blur what
    those show.
    """
    if not measured:
        return None
    known = [(name, size) for name, _, size in measured]
    size = max({s for _, s in known}, key=lambda s: (sum(k[1] == s for k in known), s))
    mine = {key: rows for key, rows in measured.items() if key[2] == size}
    names = list(dict.fromkeys(key[0] for key in mine))
    shared = [p for p in {key[1] for key in mine} if all((name, p, size) in mine for name in names)]
    free = [p for p in shared if not any(r.oversubscribed for n in names for r in mine[n, p, size])]
    counts = sorted(free if len(free) > 1 else shared)
    if counts == sorted({p for _, p, s in mine}):
        chosen = [one for one in growths if one.size == size]
    else:
        text = (
            grown(name, size, {p: _samples(mine[name, p, size]) for p in counts}, VOLUMES[name])
            for name in names
        )
        chosen = [one for one in text if one is not None]
    return verdict(chosen, [r for name in names for p in counts for r in mine[name, p, size]])


def _counted(name: str, ranks: int) -> float:
    """The volume through the schedule's busiest port, in units of n.

    For the parameter server both ways together, for the others each way, as in the textbook.
    """
    counted = cost(draft("allreduce", name, ranks), spec("allreduce"))
    return counted.out + counted.into if name == "ps" else max(counted.out, counted.into)
