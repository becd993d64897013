"""The textbook's comparison of parameter server and ring over P and N, measured and predicted.

A parameter server's port carries 2N(P−1) bytes, which grows with P. A ring rank's port carries
2N(P−1)/P each way, which hardly grows (Patarasuk, Yuan 2009). The same holds for a parameter server
that is sharded over all ranks. The schedules' own counts are given with these formulas, and each
measured curve with a curve of the textbook's shape at the measured rate.

By the textbook's law, time is proportional to the bytes through the busiest port. On ranks that
share memory or cores it may be proportional to the bytes of all links, which are up to P times as
many. Of a ring the two exponents in P differ by exactly 1 over any rank counts. A measured exponent
within 0.5 of one of them follows that one and not the other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import nan, sqrt
from operator import itemgetter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from busbar.errors import ReportError
from busbar.statistics import TAIL, interval, student_quantile
from busbar.units import format_count, format_size, format_size_argument
from collectives.schedule.catalogue import draft, spec
from collectives.schedule.cost import cost
from reports.analysis.compare import samples
from reports.records.cores import crowding
from reports.records.measurement import Measurement, grouped, is_emulated, listed
from reports.statistics.inference import Samples, drawn_medians

#: Bytes through the busiest port in units of n by the textbook, as functions of P.
VOLUMES: Mapping[str, Callable[[int], float]] = {
    "ps": lambda p: 2.0 * (p - 1),
    "ring": lambda p: 2.0 * (p - 1) / p,
    "sharded_ps": lambda p: 2.0 * (p - 1) / p,
}
_HALF = 0.5  # half the difference between the exponents of a ring's port and of all links
_FEWEST = 6  # values that a median needs to have an interval


def total(ranks: int) -> float:
    """The least volume over all links of an all-reduce, in units of n: 2(P-1)."""
    return 2.0 * (ranks - 1)


@dataclass(frozen=True)
class Growth:
    """Fit of time ~ P^``exponent`` at one size, by least squares of the logarithms over ``ranks``.

    ``low``, ``high``: 95 % interval of the exponent, None if not known. ``port``, ``links``: the
    exponents by the textbook, over the same rank counts, of the bytes through the busiest port and
    of the bytes over all links.
    """

    algorithm: str
    size: int
    ranks: tuple[int, ...]
    exponent: float
    low: float | None
    high: float | None
    port: float
    links: float

    def follows(self, exponent: float) -> bool | None:
        """True if the measured exponent agrees with this one, False if not, None if undecided."""
        if self.low is None or self.high is None:
            return None
        if exponent - _HALF < self.low and self.high < exponent + _HALF:
            return True
        return False if self.high < exponent - _HALF or self.low > exponent + _HALF else None

    @property
    def text(self) -> str:
        """The growth in words, as ``ring as P^0.31 (0.25 to 0.36; law P^0.29)``."""
        within = "" if self.low is None else f"{self.low:.2f} to {self.high:.2f}; "
        return f"{self.algorithm} as P^{self.exponent:.2f} ({within}law P^{self.port:.2f})"


def grown(
    algorithm: str, size: int, points: Mapping[int, Samples], volume: Callable[[int], float]
) -> Growth | None:
    """Fit how the time of an algorithm grows with the number of ranks; None for fewer than two.

    ``points``: for each rank count, the times of every run. ``volume``: the bytes through the
    busiest port by the textbook, in units of the size, for a rank count. The interval is the union
    of three. One is of percentiles over resampled medians
    (`reports.statistics.inference.drawn_medians`). One is of the medians' own intervals
    (`_of_intervals`), which are wider where levels of time last. The third, from three rank counts
    on, is Student's t on the residuals of the fit, since iterations of one launch do not show how
    much launches differ.
    """
    counts = sorted(points)
    if len(counts) < 2:
        return None
    x = np.log(counts)
    weights = (x - x.mean()) / ((x - x.mean()) ** 2).sum()
    times = np.log(
        [float(np.median(np.concatenate([*map(np.asarray, points[n])]))) for n in counts]
    )
    volumes = np.log([volume(n) for n in counts])
    exponent, port = float(weights @ times), float(weights @ volumes)
    runs = [points[n] for n in counts]
    bounds = [*_by_iterations(runs, weights)]
    bounds += _of_intervals(runs, weights, exponent) if bounds else []
    if len(counts) > 2:
        left = (times - volumes) - (times - volumes).mean() - (exponent - port) * (x - x.mean())
        error = sqrt(float(left @ left) / (len(counts) - 2) * float(weights @ weights))
        off = student_quantile(TAIL, len(counts) - 2) * error
        bounds += [exponent - off, exponent + off]
    low, high = (min(bounds), max(bounds)) if bounds else (None, None)
    links = float(weights @ np.log([total(n) for n in counts]))
    return Growth(algorithm, size, tuple(counts), exponent, low, high, port, links)


def _by_iterations(points: Sequence[Samples], weights: NDArray[np.float64]) -> Sequence[float]:
    if any(sum(map(len, runs)) < _FEWEST for runs in points):
        return ()
    random = np.random.default_rng(0)
    drawn = np.log(np.stack([drawn_medians(runs, random) for runs in points]))
    return [float(end) for end in np.quantile(weights @ drawn, [TAIL, 1 - TAIL])]


def _of_intervals(
    points: Sequence[Samples], weights: NDArray[np.float64], exponent: float
) -> list[float]:
    """The interval of a weighted sum of logarithms of medians, from the intervals of the medians.

    Distances from the sum add up as squares (method of variance estimates recovery: Zou, Donner,
    "Construction of confidence limits about effect measures", Statistics in Medicine 27, 2008).
    """
    together = [np.concatenate([*map(np.asarray, runs)]) for runs in points]
    ends = np.log([interval(times) or (nan, nan) for times in together])
    middles = np.log([[float(np.median(times))] for times in together])
    below, above = weights * (ends - middles).T
    down, up = np.minimum(below, above), np.maximum(below, above)
    return [exponent - sqrt(float(down @ down)), exponent + sqrt(float(up @ up))]


#: The headline where it cannot be told whether times grow by the law.
NO_VERDICT = "No verdict on the law"


class Verdict(NamedTuple):
    """The verdict on the law in one line, and the figures that it is based on."""

    headline: str
    details: str

    def __str__(self) -> str:
        """Headline and details."""
        return f"{self.headline}. {self.details}"


def verdict(growths: Sequence[Growth], rows: Sequence[Measurement], lack: str = "") -> Verdict:
    """Whether time follows the bytes through the busiest port, or why this cannot be told.

    ``growths``: one per algorithm, at one size and over the same rank counts; ``rows``: their rows.
    A verdict needs a parameter server (``ps``) and another algorithm; ``lack``: what there is not.
    """
    from reports.analysis.cautions import disturbed  # not before the first row

    if len(growths) < 2 or all(one.algorithm != "ps" for one in growths):
        takes = "It takes a parameter server and a ring, each on the same two rank counts or more"
        return Verdict(NO_VERDICT, f"{takes}{lack and ': '}{lack}.")
    first, last = growths[0].ranks[0], growths[0].ranks[-1]
    texts = "; ".join(one.text for one in growths)
    text = f"At {format_size(growths[0].size)} from {first} to {last} ranks time grows: {texts}."
    if beside := disturbed(rows, "these"):
        text += f" {beside}."
    follow = [one.follows(one.port) for one in growths]
    if all(follow):
        near = f"Each interval lies within {_HALF:g} of its law's exponent."
        if beside:
            near += " Which algorithm is the faster, and by how much, is not told beside them."
        headline = "Times grow by the law: with the bytes through the busiest port"
        return Verdict(headline, f"{text} {near}")
    if any(r.worksharing for r in rows):
        why = "work of one rank may have been carried out by another"
        texts = "so that bytes belong to no port; measure again."
        return Verdict(f"These rows cannot show the law: {why}", f"{text} {texts}")
    if any(one.low is None for one in growths):
        few = f"Fewer than {_FEWEST} iterations on fewer than three rank counts have no interval"
        remedy = f"take {_FEWEST} iterations or more (-n), or more rank counts."
        return Verdict(NO_VERDICT, f"{text} {few}; {remedy}")
    why, whose = what_is_shared(rows)
    if why:
        return Verdict(
            f"This machine cannot show the law: {why}", f"{text} {whose}, {_seen(growths)}."
        )
    if False in follow:
        return Verdict("Times do not grow by the law here", f"{text} The records do not say why.")
    wide = "The intervals are too wide to tell the law from growth with the bytes of all links"
    remedy = "take more iterations, or more rank counts."
    if beside:
        remedy = "measure again while no other program runs."
    return Verdict(NO_VERDICT, f"{text} {wide}; {remedy}")


def what_is_shared(rows: Sequence[Measurement]) -> tuple[str, str]:
    """Why times need not follow the bytes of a port: (reason, explanation); empty if unknown."""
    crowded = [r for r in rows if r.oversubscribed]
    nodes = max((nodes_of(r) for r in rows), default=1)
    if crowded and nodes == 1:
        most = max(crowded, key=lambda r: (r.ranks_per_core or 0.0, r.ranks or 0))
        cores = round((most.ranks or 0) / (most.ranks_per_core or 1.0))
        shared = format_count(cores, "core")
        whose = f"All work shares {shared}, whatever port it belongs to"
        return f"{most.ranks} ranks share {shared}", whose
    if crowded:
        whose = "All work of a node shares its cores, whatever port it belongs to"
        return crowding(crowded), whose
    if nodes == 1:
        whose = "All bytes share that host's memory, whatever port they belong to"
        return "all ranks are on one host", whose
    return "", ""


def _seen(growths: Sequence[Growth]) -> str:
    """How times grow if ranks share memory or cores, and whether the fits agree with that."""
    links = growths[0].links
    goes = [one.follows(links) for one in growths]
    seen = "or more" if False in goes else "which nothing here denies"
    seen = "as they do" if all(goes) else seen
    shared = f"with the bytes of all links together, as P^{links:.2f}"
    return f"so that all times should go {shared}, {seen}"


def nodes_of(row: Measurement) -> int:
    """The number of hosts of a row, by its environment; at least 1."""
    each = listed(row.run.environment.get("ranks_per_node"))
    return max(len(each), len(row.run.hosts), 1)


ALGORITHMS = tuple(VOLUMES)
FORMULAS = {"ps": "2N(P-1)", "ring": "2N(P-1)/P", "sharded_ps": "2N(P-1)/P"}
Predict = Callable[[str, int, Sequence[int]], Sequence[float | None]]
Measured = Mapping[tuple[str, int, int], Sequence[Measurement]]
"""Rows by algorithm, ranks and size; several where it was measured several times."""


@dataclass(frozen=True)
class LawTiming:
    """Times of one algorithm, rank count and size, in seconds; None if unknown.

    ``low``, ``high``: 95 % interval of ``measured``. ``volume``: bytes through the busiest port in
    units of the size, by the textbook; ``counted``: the same by the schedule. ``over_ranks``: time
    of this volume at the median rate over all rank counts at this size; ``over_sizes``: at the
    median rate over the larger sizes on this number of ranks.
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
        """Bytes/s through the busiest port by the textbook's volume; None if not measured."""
        return self.volume * self.size / self.measured if self.measured else None


@dataclass(frozen=True)
class LawComparison:
    """The comparison of measured all-reduces with the textbook's formulas.

    ``cells``: times for each algorithm, rank count and size. ``growths``: how each algorithm's time
    grows with the number of ranks P at each size. ``verdict``: on the law; None if nothing was
    measured. ``notes``: which rows were left out. ``beside``: which ran beside other programs.
    """

    cells: tuple[LawTiming, ...]
    growths: tuple[Growth, ...] = ()
    verdict: Verdict | None = None
    notes: tuple[str, ...] = ()
    beside: str = ""

    def of(
        self, algorithm: str, *, ranks: int | None = None, size: int | None = None
    ) -> list[LawTiming]:
        """An algorithm's times by ranks and size; only those of ``ranks`` or ``size`` if given."""
        return sorted(
            (
                c
                for c in self.cells
                if c.algorithm == algorithm and ranks in (None, c.ranks) and size in (None, c.size)
            ),
            key=lambda c: (c.ranks, c.size),
        )

    def growth(self, cell: LawTiming) -> tuple[float | None, float | None]:
        """Time over that of the fewest ranks at this size: (measured, by the textbook's volume).

        None if this is the only number of ranks.
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

    By the textbook, the time is that of the bytes through the busiest port (`VOLUMES`).
    ``predict(algorithm, ranks, sizes)`` returns seconds. ``ranks`` and ``sizes`` are added to those
    that were measured. Out-of-place rows are preferred to in-place rows, and only the transport
    with the most rows is used. Rows whose work other ranks may have done (``worksharing``) are used
    only if there are no others. Raises ReportError if there is no such row and no rank count or
    size.
    """
    from reports.analysis.cautions import disturbed  # not before the first row

    measured, notes = _measured(rows)
    if rows and not measured:
        if all(r.step is not None for r in rows):
            raise ReportError(
                "these are training steps, and the law here is of all-reduces; busbar reports show"
                " and reports plot read steps"
            )
        raise ReportError(
            "no all-reduce by ps, ring or sharded_ps in it; run busbar allreduce"
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
    beside = disturbed([row for some in measured.values() for row in some], "all")
    return LawComparison(tuple(cells), growths, _verdict(measured), tuple(notes), beside)


def _measured(rows: Sequence[Measurement]) -> tuple[Measured, list[str]]:
    """The rows to compare, by (algorithm, ranks, size), and notes on rows that were left out."""
    mine = [
        r
        for r in rows
        if r.collective == "allreduce" and r.algorithm in ALGORITHMS
        if r.time_s and r.size and (r.ranks or 0) > 1
    ]
    notes = []
    if wrong := sum(bool(r.wrong) for r in mine):
        notes.append(f"{format_count(wrong, 'row')} with wrong elements left out")
        mine = [r for r in mine if not r.wrong]
    transports = [r.transport for r in mine]
    chosen = max(transports, key=transports.count, default="")
    if set(transports) - {chosen}:
        others = len(mine) - transports.count(chosen)
        notes.append(f"{format_count(others, 'row')} of other transports than {chosen} left out")
    carried = (r for r in mine if r.transport == chosen)
    groups = grouped(carried, lambda r: (r.algorithm, r.ranks or 0, r.size or 0))
    return {key: _best(some) for key, some in groups.items()}, notes


def _best(rows: Sequence[Measurement]) -> list[Measurement]:
    """The preferred rows of one case: without work sharing, then out of place."""
    worth = min((r.worksharing, r.placement != "out") for r in rows)
    return [r for r in rows if (r.worksharing, r.placement != "out") == worth]


def _times(rows: Sequence[Measurement]) -> tuple[float | None, float | None, float | None]:
    """Time and its interval: the row's own, or over the iterations of several rows together."""
    if len(rows) == 1:
        return rows[0].time_s, rows[0].low_s, rows[0].high_s
    values = [t for one in samples(rows) for t in one]
    return float(np.median(values)), *(interval(values) or (None, None))


_Rates = dict[tuple[str, int], float]


def _rates(measured: Measured) -> tuple[_Rates, _Rates]:
    """Bytes per second of the curves over ranks (by algorithm and size), and of those over sizes.

    Curves over sizes are by algorithm and ranks. A rate is the median of volume / time of a curve's
    points. Over sizes only the larger half counts, because the textbook's volumes ignore latency. A
    curve of one point has no rate, because it would only repeat the point.
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
    """The fitted growth over rank counts for each algorithm and size."""
    growths = []
    for name in ALGORITHMS:
        for size in sorted({key[2] for key in measured if key[0] == name}):
            points = {
                p: samples(rows) for (a, p, s), rows in measured.items() if (a, s) == (name, size)
            }
            one = grown(name, size, points, VOLUMES[name])
            growths += [one] if one is not None else []
    return tuple(growths)


def _verdict(measured: Measured) -> Verdict | None:
    """The verdict at the size with the most (algorithm, rank count) cases; the largest of these.

    Rank counts whose ranks share cores blur the result; they are left out if two others remain.
    """
    if not measured:
        return None
    known = [(name, size) for name, _, size in measured]
    size = max({s for _, s in known}, key=lambda s: (sum(k[1] == s for k in known), s))
    mine = {key: rows for key, rows in measured.items() if key[2] == size}
    names = [name for name in ALGORITHMS if (name, size) in known]
    shared = [p for p in {key[1] for key in mine} if all((name, p, size) in mine for name in names)]
    free = [p for p in shared if not any(r.oversubscribed for n in names for r in mine[n, p, size])]
    counts = sorted(free if len(free) > 1 else shared)
    growths = (
        grown(name, size, {p: samples(mine[name, p, size]) for p in counts}, VOLUMES[name])
        for name in names
    )
    chosen = [one for one in growths if one is not None]
    rows = [r for name in names for p in counts for r in mine[name, p, size]]
    return verdict(chosen, rows, _lack({key[:2]: rows for key, rows in mine.items()}, size))


def _lack(measured: Mapping[tuple[str, int], Sequence[Measurement]], size: int) -> str:
    """What a verdict at a size lacks, and the command that measures it.

    ``measured``: the rows by algorithm and rank count.
    """
    emulated = all(is_emulated(r.run.environment) for rows in measured.values() for r in rows)
    unit = "hosts" if emulated else "ranks"
    counts = sorted({p for _, p in measured})
    names = ["ring", "ps", *(["sharded_ps"] if any(n == "sharded_ps" for n, _ in measured) else [])]
    missing = [
        f"{name} is missing on {', '.join(map(str, lacking))} {unit}"
        for name in names
        if (lacking := [p for p in counts if (name, p) not in measured])
    ]
    if len(counts) < 2:
        missing.append(f"only {counts[0]} {unit} were measured")
        counts = [counts[0], 2 * counts[0]]
    at = format_size_argument(size)
    run, ranks = f"-A {','.join(names)} -b {at}", ",".join(map(str, counts))
    if emulated or all(nodes_of(r) == 1 for rows in measured.values() for r in rows):
        on = "" if emulated else ", since ranks of one host share its memory"
        return f"{'; '.join(missing)}; run busbar cluster law --hosts {ranks} {run} --out DIR{on}"
    return f"{'; '.join(missing)}; run busbar allreduce --ranks {ranks} {run} -e {at}"


def _counted(name: str, ranks: int) -> float:
    """The volume through the schedule's busiest port, in units of n.

    For the parameter server both directions together, for the others each direction.
    """
    counted = cost(draft("allreduce", name, ranks), spec("allreduce"))
    return counted.out + counted.into if name == "ps" else max(counted.out, counted.into)
