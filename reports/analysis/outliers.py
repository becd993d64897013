"""Which of many files, such as one log per host, deviate from the others. No I/O.

Files are compared row by row with the median of all files that measured the same on the same kind
of device, so no absolute limit is needed. A file's deviation is the median of its rows' deviations,
for small sizes, which take latency, and for large ones apart. The largest size is also judged
alone, because a slow link or a wrong slot may show only there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import exp, inf, log
from operator import attrgetter

import numpy as np

from busbar.statistics import robust_test, student_quantile
from busbar.units import format_size
from reports.analysis.compare import by_key, cost, samples
from reports.records.measurement import Measurement, grouped, launch_of
from reports.records.metrics import setting
from reports.records.table import KEYS
from reports.statistics.inference import launch_center
from reports.statistics.quantities import LATENCY_BOUND

#: Fewest files to tell one from the others: with fewer, no test can be significant.
FEWEST = 4
_SIGNIFICANT = 0.01
# Least standard deviation of a logarithm: files that agree by chance make no difference certain.
_LEAST_SCATTER = 0.005
_FAR = 2.0  # times: least gap between a launch that is far off and the others
# The logarithm of a ratio above which no ratio would show.
_MOST_LOG = log(1000)


@dataclass(frozen=True)
class Deviation:
    """A file whose rows of one ``group`` take ``ratio`` times as long as those of the others.

    ``file``: its place in the list of files. ``rows``: how many of its rows were compared. ``p``:
    two-sided, times the number of tests.
    """

    file: int
    group: str
    ratio: float
    rows: int
    p: float


@dataclass(frozen=True)
class Outliers:
    """``deviations``: slowest first. ``files``: how many files each group compared.

    ``unseen``: the greatest ratio that would not show in some group; infinite if files differ so
    much that none would. ``few``: the groups with fewer than `FEWEST` files. ``missing``: rows that
    most other files have, by file. ``hides``: True if a group has several sizes, of which some may
    differ without a deviation of their median. ``alone``: the sizes that were judged alone.
    """

    deviations: tuple[Deviation, ...]
    files: Mapping[str, int]
    unseen: float
    few: tuple[str, ...]
    missing: Mapping[int, int]
    hides: bool
    alone: tuple[int, ...]


def outliers(files: Sequence[Sequence[Measurement]], margin: float) -> Outliers:
    """Compare files of rows; differences up to ``margin`` (relative) do not count."""
    costs: dict[object, dict[int, float]] = {}
    rows_of: dict[object, Measurement] = {}
    for number, rows in enumerate(files):
        timed = [row for row in rows if cost(row)]
        for devices, mine in grouped(timed, lambda row: row.run.devices).items():
            for key, alike in by_key(mine).items():
                costs.setdefault((key, devices), {})[number] = log(launch_center(samples(alike)))
                rows_of[key, devices] = alike[0]
    sizes = _sizes(rows_of[what] for what, by_file in costs.items() if len(by_file) >= FEWEST)
    largest = {name: max(one) for name, one in sizes.items() if len(one) > 1}
    alone: dict[str, set[str]] = {}
    deviations: dict[str, dict[int, list[float]]] = {}
    for what, by_file in costs.items():
        middle = float(np.median(list(by_file.values())))
        row = rows_of[what]
        names = [_group(row)]
        if (
            row.nbytes == largest.get((names[0], row.run.devices))
            and (row.nbytes or 0) >= LATENCY_BOUND
        ):
            names.append(_alone(row))
            alone.setdefault(names[1], set()).add(names[0])
        for number, value in by_file.items():
            for name in names:
                deviations.setdefault(name, {}).setdefault(number, []).append(value - middle)
    enough = {name: one for name, one in deviations.items() if len(one) >= FEWEST}
    tests = sum(map(len, enough.values()))
    unlike, unseen = list[Deviation](), 1 + margin
    for name, of_group in enough.items():
        middles = {number: float(np.median(values)) for number, values in of_group.items()}
        for number, middle in middles.items():
            others = np.array([value for n, value in middles.items() if n != number])
            center = float(np.median(others))
            effect = middle - center
            error, p = robust_test(abs(effect), 1, others - center, _LEAST_SCATTER)
            p = min(1.0, 2 * tests * p)
            tail = student_quantile(_SIGNIFICANT / 2 / tests, len(others) - 1)
            unseen = max(unseen, exp(tail * error) if tail * error < _MOST_LOG else inf)
            agree = name not in alone or _all_beyond(of_group[number], effect, log(1 + margin))
            if abs(effect) > log(1 + margin) and p < _SIGNIFICANT and agree:
                unlike.append(Deviation(number, name, exp(effect), len(of_group[number]), p))
    # What all large sizes show is not said of the largest again.
    told = {(one.file, one.ratio > 1, one.group) for one in unlike}
    unlike = [
        one
        for one in unlike
        if not any((one.file, one.ratio > 1, name) in told for name in alone.get(one.group, ()))
    ]
    return Outliers(
        tuple(sorted(unlike, key=lambda one: -one.ratio)),
        {name: len(one) for name, one in enough.items()},
        unseen,
        tuple(name for name in deviations if name not in enough),
        _missing(costs, len(files)),
        any(len(of_group) > 1 for of_group in sizes.values()),
        tuple(sorted(size for size in set(largest.values()) if size >= LATENCY_BOUND)),
    )


@dataclass(frozen=True)
class FarLaunch:
    """A launch whose median of ``row`` is ``ratio`` times that of the other launches.

    ``name``: its number, ``launch 4``, or its file. ``rows``: how many rows of the launch are as
    far, of ``of`` rows that were judged; ``row`` is the farthest of them. ``others_s``: the median
    of the other launches' times of that row, in seconds.
    """

    name: str
    ratio: float
    row: Measurement
    rows: int
    of: int
    others_s: float


def far_launches(rows: Sequence[Measurement]) -> list[FarLaunch]:
    """The launches with a median far from the other launches' (`_far`), the farthest first.

    Rows are of several launches, or merged over them.
    """
    if len({id(r.run) for r in rows}) < FEWEST and not any(r.launches_s for r in rows):
        return []
    judged, named = 0, _run_names(rows)
    far: dict[str, list[tuple[float, float, Measurement]]] = {}
    for same in grouped(rows, attrgetter(*KEYS)).values():
        medians = _launch_medians(same, named)
        judged += len(medians) >= FEWEST
        for place in _far([value for _, value in medians]):
            others = [log(value) for n, (_, value) in enumerate(medians) if n != place]
            name, own = medians[place]
            usual = float(np.median(others))
            far.setdefault(name, []).append((log(own) - usual, exp(usual), same[0]))
    found = []
    for name, each in far.items():
        effect, usual, row = max(each, key=lambda one: abs(one[0]))
        found.append(FarLaunch(name, exp(effect), row, len(each), judged, usual))
    return sorted(found, key=lambda one: -abs(log(one.ratio)))


def _run_names(rows: Sequence[Measurement]) -> dict[int, str]:
    """A name for each run, by its id: its launch, its file, or its number among those of a file."""
    runs = {id(row.run): row.run for row in rows}
    sources = Counter(run.source for run in runs.values() if launch_of(run) is None)
    names = {}
    for number, (key, run) in enumerate(runs.items(), 1):
        place, several = launch_of(run), sources[run.source] > 1
        name = f"run {number} of {run.source}" if several else run.source
        names[key] = f"launch {place[2]}" if place else name
    return names


def _launch_medians(
    same: Sequence[Measurement], named: Mapping[int, str]
) -> list[tuple[str, float]]:
    """The name and the median of each launch of one setting, in order."""
    medians: dict[object, tuple[str, list[float]]] = {}
    for row in same:
        if row.launches_s:
            numbers = (number for number, _ in row.visits_s)
            for number, value in zip(numbers, row.launches_s, strict=True):
                medians[id(row), number] = (f"launch {number}", [value])
        elif row.time_s:
            _, times = medians.setdefault(id(row.run), (named[id(row.run)], []))
            times += row.times_s or [row.time_s]
    known = ((name, float(np.median(times))) for name, times in medians.values())
    return [(name, value) for name, value in known if value > 0]


def _far(values: Sequence[float]) -> list[int]:
    """The places of values far from all others: at most a third of the values, on one side.

    The gap to the others is at least `_FAR` times, and wider than the others' own range (as a
    ratio). So launches with two modes have none. Empty for fewer than `FEWEST` values.
    """
    if len(values) < FEWEST:
        return []
    order = sorted(range(len(values)), key=values.__getitem__)
    logs = [log(values[n]) for n in order]
    widest, places = log(_FAR), list[int]()
    for few in range(1, len(values) // 3 + 1):
        for here, rest in ((slice(-few, None), slice(-few)), (slice(few), slice(few, None))):
            others, apart = logs[rest], logs[here]
            gap = max(apart[0] - others[-1], others[0] - apart[-1])
            if gap >= widest and gap > others[-1] - others[0]:
                widest, places = gap, order[here]
    return places


def _group(row: Measurement) -> str:
    """The setting of a row, and whether its size takes latency or bandwidth."""
    names = [setting(row), row.algorithm]
    if row.size and row.busbw_bytes_per_s is not None:
        names.append("below 64K" if row.size < LATENCY_BOUND else "from 64K")
    return ", ".join(filter(None, names))


def _sizes(rows: Iterable[Measurement]) -> dict[object, set[int]]:
    """The sizes of each group on the same devices."""
    sizes: dict[object, set[int]] = {}
    for row in rows:
        sizes.setdefault((_group(row), row.run.devices), set()).add(row.nbytes or 0)
    return sizes


def _alone(row: Measurement) -> str:
    """The name of the group of a largest size, which has both placements."""
    names = (setting(row, placed=False), row.algorithm, f"at {format_size(row.nbytes)}")
    return ", ".join(filter(None, names))


def _all_beyond(values: Sequence[float], effect: float, least: float) -> bool:
    """True if all values lie on the effect's side of 0 by more than ``least``.

    So one disturbed measurement of a size is no finding if the other placement is as usual.
    """
    return all((value > 0) == (effect > 0) and abs(value) > least for value in values)


def _missing(costs: Mapping[object, Mapping[int, float]], files: int) -> dict[int, int]:
    """How many rows each file lacks, of those that more than half of the files have.

    ``costs``: for each row's setting, the time in each file by the file's place. ``files``: how
    many there are. Files that lack nothing are left out.
    """
    usual = [by_file for by_file in costs.values() if 2 * len(by_file) > files]
    counts = {n: sum(n not in by_file for by_file in usual) for n in range(files)}
    return {n: count for n, count in counts.items() if count}
