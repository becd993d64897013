"""The fastest algorithm at every size and rank count, and the crossovers."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from operator import itemgetter

from msgspec.structs import replace

from busbar.statistics import interval
from reports.analysis.compare import samples, within_launches
from reports.analysis.disturbance import mostly_disturbed, widened
from reports.readers.names import scaled
from reports.records.measurement import LIBRARY, Measurement, grouped
from reports.records.metrics import setting
from reports.statistics.inference import Samples, between_runs, launch_center
from reports.statistics.quantities import LATENCY_BOUND


@dataclass(frozen=True)
class Winner:
    """The algorithm to use at one size and rank count, and how it compares with others.

    - ``name``: the algorithm, with the transport if it was measured over several. ``row``: its
      first row.
    - ``margin``: time of the next algorithm, ``against``, over its own; None without one. ``low``,
      ``high``: 95 % interval of the margin; None without raw times. ``next_row``: its first row.
    - ``library``: time of the library over its own; None if it is the library, or none was
      measured. ``library_low``, ``library_high``: its 95 % interval. ``library_name``: its name,
      with the transport if it was measured over several, of which this is the fastest.
    - ``sure``: True if no other algorithm may be as fast.
    - ``second``: the same figures of ``against``, if that may be as fast. In `stretches` it may
      take the winner's place.
    """

    name: str
    row: Measurement
    margin: float | None = None
    low: float | None = None
    high: float | None = None
    against: str = ""
    next_row: Measurement | None = None
    library: float | None = None
    library_low: float | None = None
    library_high: float | None = None
    library_name: str = LIBRARY
    sure: bool = True
    second: Winner | None = None

    @property
    def latency_bound(self) -> bool:
        """True if the message is so small that its time matters, not its rate."""
        return not self.row.busbw_bytes_per_s or (self.row.size or 0) < LATENCY_BOUND


#: Launches that are advised where a run had one.
LAUNCHES = 7
Cells = dict[tuple[int, int], Winner]
"""Winners by size and number of ranks."""


def winners(rows: Sequence[Measurement], launches: Sequence[Measurement] = ()) -> dict[str, Cells]:
    """The winners at each (size, rank count), by setting (collective, type, placement, ...).

    Rows with wrong results cannot win, nor rows whose work other ranks may have done
    (``worksharing``). Rows of ``busbar qualify`` do not compete: what they call algorithm is the
    direction. If most rows were disturbed, nothing is known of the ratios between single
    launches (`time_ratio`). ``launches``: all rows of the launches that the rows are a part of; of
    these it counts whether most were disturbed.
    """
    groups: dict[str, dict[tuple[int, int], dict[str, list[Measurement]]]] = {}
    unknown = mostly_disturbed(launches or rows)
    several = _several_transports(rows)
    for r in rows:
        if not r.ranks or r.size is None or not r.time_s or r.wrong or r.worksharing:
            continue
        if "qualify" in r.run.environment:
            continue
        name = plain_name(r)
        name = f"{name} {r.transport}" if _carried(r) in several else name
        root = f", root {r.root}" if r.root is not None and r.root >= 0 else ""
        cells = groups.setdefault(setting(replace(r, ranks=None)) + root, {})
        cells.setdefault((r.size, r.ranks), {}).setdefault(name, []).append(r)
    return {
        thing: {at: _winner(contenders, unknown) for at, contenders in sorted(cells.items())}
        for thing, cells in groups.items()
    }


def is_winner_told(rows: Sequence[Measurement]) -> bool:
    """True for collectives of which intervals show the winner wherever several compete."""
    cells = [one for cells in winners(rows).values() for one in cells.values()]
    compared = [one for one in cells if one.margin is not None]
    return bool(compared) and all(one.sure for one in compared)


def plain_name(row: Measurement) -> str:
    """The name of a row's algorithm without its transport; of a library's log the library."""
    return row.algorithm or row.run.library or LIBRARY


def _several_transports(rows: Sequence[Measurement]) -> set[tuple[str, bool]]:
    """What `_carried` gives for rows of several transports."""
    transports = grouped(dict.fromkeys((_carried(r), r.transport) for r in rows), itemgetter(0))
    return {carried for carried, mine in transports.items() if len(mine) > 1}


def _carried(row: Measurement) -> tuple[str, bool]:
    """A row's algorithm, and whether anything is sent: one rank has a transport of its own."""
    return row.algorithm, row.ranks != 1


def _winner(contenders: Mapping[str, Sequence[Measurement]], unknown: bool) -> Winner:
    middle = {name: launch_center(_launches(rows)) for name, rows in contenders.items()}
    first, *others = sorted(middle, key=lambda name: (middle[name], name))
    best = _standing(contenders, first, others, unknown)
    if best.low is None or best.low > 1 or best.high == inf:  # unknown: each size has its own
        return best
    second = _standing(contenders, others[0], [first, *others[1:]], unknown)
    return dataclasses.replace(best, second=second)


def _standing(
    contenders: Mapping[str, Sequence[Measurement]], name: str, others: Sequence[str], unknown: bool
) -> Winner:
    """How algorithm ``name`` compares with ``others``, of which the first is the fastest.

    ``contenders``: the rows of each algorithm; ``unknown``: see `time_ratio`.
    """
    row = at_center(contenders[name])
    if not others:
        return Winner(name, row)
    mine = contenders[name]
    ratios = {other: time_ratio(contenders[other], mine, unknown) for other in others}
    sure = all(low is not None and low > 1 for _, low, _ in ratios.values())
    following = (*ratios[others[0]], others[0], contenders[others[0]][0])
    library = next((other for other in others if _of_library(contenders[other])), "")
    if not library or _of_library(contenders[name]):
        return Winner(name, row, *following, sure=sure)
    return Winner(name, row, *following, *ratios[library], library, sure)


def _of_library(rows: Sequence[Measurement]) -> bool:
    return rows[0].algorithm in (LIBRARY, "")


def at_center(rows: Sequence[Measurement]) -> Measurement:
    """The first of the rows of one setting, with the time and busbw of all their launches."""
    row = rows[0]
    if not row.time_s or len(rows) == 1:
        return row
    middle = launch_center(_launches(rows))
    rate = scaled(row.busbw_bytes_per_s, row.time_s / middle)
    return replace(row, time_s=middle, busbw_bytes_per_s=rate)


def time_ratio(
    slower: Sequence[Measurement], faster: Sequence[Measurement], unknown: bool
) -> tuple[float, float | None, float | None]:
    """How many times as long ``slower`` takes as ``faster``, and the ratio's 95 % interval.

    All rows of a side must have the same settings. The interval is None without raw times. With one
    launch a side it is `widened` by what other programs can have done.
    """
    times = [_launches(rows) for rows in (faster, slower)]
    ratio = launch_center(times[1]) / launch_center(times[0])
    low, high = ratio_bounds(times[0], times[1], within_launches(faster, slower))
    ends = None if low is None or high is None else (low, high)
    if max(map(len, times)) == 1:
        ends = widened(ends, slower, faster, unknown)
    return ratio, *(ends or (None, None))


def _launches(rows: Sequence[Measurement]) -> Samples:
    """One list of times for each launch; for a row merged over launches, each launch's median."""
    medians = [[m] for r in rows if r.launches_s for m in r.launches_s]
    return medians or samples(rows)


def ratio_bounds(
    best: Samples, other: Samples, within: Sequence[float] = ()
) -> tuple[float | None, float | None]:
    """The 95 % interval of the time of ``other`` over that of ``best``; (None, None) if unknown.

    With several launches it comes from `between_runs`; ``within``: see there. With one launch it
    is computed from the ends of the two intervals, so it is too wide, because a sweep has hundreds
    of such ratios, too many for a bootstrap.
    """
    over = between_runs(best, other, within)
    if over is not None:
        return over
    ends = [interval([t for run in side for t in run]) for side in (best, other)]
    if ends[0] is None or ends[1] is None or not ends[0][0]:
        return None, None
    return ends[1][0] / ends[0][1], ends[1][1] / ends[0][0]


@dataclass(frozen=True)
class Stretch:
    """A range of sizes for which one algorithm is to be used.

    ``won``: the figures of ``name`` at each size, smallest size first. At sizes without a certain
    winner another algorithm may have the least median.
    """

    name: str
    won: tuple[Winner, ...]

    @property
    def sure(self) -> bool:
        """True if the algorithm is the certain winner at every size."""
        return all(w.sure for w in self.won)

    @property
    def compared(self) -> bool:
        """True if there was a competitor at some size."""
        return any(w.margin is not None for w in self.won)

    @property
    def sizes(self) -> tuple[int, int]:
        """The first and the last size in bytes."""
        return self.won[0].row.size or 0, self.won[-1].row.size or 0


def stretches(cells: Cells, ranks: int) -> list[Stretch]:
    """The ranges of sizes with one algorithm to use each, on ``ranks`` ranks.

    A range goes on where its algorithm is the fastest, and where it is the second and, by the
    interval, may be as fast as the fastest.
    """
    ranges: list[Stretch] = []
    for (_, n), winner in sorted(cells.items()):
        if n != ranks:
            continue
        last = ranges[-1] if ranges else None
        if last is not None and winner.second is not None and winner.second.name == last.name:
            winner = winner.second
        if last is not None and winner.name == last.name:
            ranges[-1] = Stretch(last.name, (*last.won, winner))
        else:
            ranges.append(Stretch(winner.name, (winner,)))
    return ranges


def at_each_size(cells: Cells, ranks: int) -> list[Stretch]:
    """The fastest algorithm at each size, on ``ranks`` ranks, as ranges of one size."""
    return [Stretch(w.name, (w,)) for (_, n), w in sorted(cells.items()) if n == ranks]


def decided(cells: Cells) -> dict[tuple[int, int], tuple[str, Winner]]:
    """The algorithm to use at each (size, number of ranks), by `stretches`, and its figures there.

    The name has a tilde if the algorithm is not the certain winner: another may be as fast.
    """
    winners_at = {}
    for ranks in {ranks for _, ranks in cells}:
        for one in stretches(cells, ranks):
            for winner in one.won:
                name = f"{'' if winner.sure else '~'}{one.name}"
                winners_at[winner.row.size or 0, ranks] = name, winner
    return winners_at
