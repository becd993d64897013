"""From times to rules: records or predictions of every candidate, the choice at each size, a table.

An algorithm is preferred only if it is faster beyond noise.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bench.run.tuning_file import ANY, Range, Rules, Tunable
from bench.tuning.launches import algorithms
from bench.tuning.libraries import forced_by_nccl, forced_by_openmpi
from busbar.errors import ReportError, Unsupported
from busbar.tables import Column, render_lines
from busbar.units import format_bytes, format_count
from collectives.formats.load import draft
from collectives.predict.fit import read_fit
from collectives.predict.interface import Operation
from collectives.predict.maps import load_machine
from collectives.predict.predictor import choose_predictor
from collectives.schedule import catalogue
from collectives.schedule.dtypes import dtype
from reports.analysis.cautions import disturbed
from reports.analysis.compare import samples
from reports.analysis.disturbance import mostly_disturbed
from reports.readers.reading import once, read
from reports.records.measurement import LIBRARY, Measurement, grouped
from reports.records.table import KEYS
from reports.statistics.inference import between_runs, ratio_interval

Times = Mapping[Tunable, Sequence[Sequence[float]]]
"""Seconds of iterations, a list for each round that was measured."""
_DOZEN = 12


def _middle(rounds: Sequence[Sequence[float]]) -> float:
    return float(np.median(np.concatenate([np.asarray(r, dtype=float) for r in rounds])))


def slower(base: Sequence[Sequence[float]], other: Sequence[Sequence[float]], noise: float) -> bool:
    """True if ``other`` is certainly slower than ``base`` by more than ``noise``.

    Certainly means that the 95 % interval of the ratio of medians is above 1 + noise. It is a
    bootstrap over rounds and over iterations within them; a single round tells nothing about the
    differences between rounds, and fewer than six iterations tell nothing.
    """
    if _clear(base, other, noise):  # no resampling could give another order of the medians
        wider = between_runs(base, other)
        return wider is None or wider[0] > 1 + noise
    interval = ratio_interval(base, other)
    return interval is not None and interval[0] > 1 + noise


def _clear(base: Sequence[Sequence[float]], other: Sequence[Sequence[float]], noise: float) -> bool:
    """True if 95 % of each round of ``other`` exceed 95 % of each round of ``base`` by ``noise``.

    The median of a resample is on the wrong side only if half of the resample is from a twentieth
    of the values: for rounds of a dozen values that is rarer than one resample in 2000.
    """
    sides = [[r for r in side if len(r)] for side in (base, other)]
    if min((len(r) for side in sides for r in side), default=0) < _DOZEN:
        return False
    most = max(float(np.quantile(r, 0.95)) for r in sides[0])
    return min(float(np.quantile(r, 0.05)) for r in sides[1]) > (1 + noise) * most


def tied(times: Times, noise: float) -> tuple[Tunable, ...]:
    """The candidates that may be the fastest.

    First the one with the least median, then all that are not certainly slower than it.
    """
    order = sorted(times, key=lambda c: (_middle(times[c]), c))
    best = order[0]
    return (best, *(c for c in order[1:] if not slower(times[best], times[c], noise)))


def verdict(times: Times, default: Tunable, before: Tunable | None, noise: float) -> Tunable:
    """The choice at one size.

    The default, unless another algorithm is certainly faster. Then the choice at the size before,
    if it may be the fastest, so that choices change rarely; otherwise the fastest.
    """
    may = tied(times, noise)
    if default in may:
        return default
    if before in may and before is not None:
        return before
    return may[0]


def decide(
    sizes: Mapping[int, Times], default: Tunable, noise: float, *, doubt: bool = False
) -> tuple[Range, ...]:
    """The ranges of sizes with one choice each; adjacent equal choices are one range.

    ``sizes`` must not be empty and every size must have a candidate. ``doubt``: the times do not
    show which is faster, so the default stays at each size that has it.
    """
    ranges: list[Range] = []
    before: Tunable | None = None
    for size in sorted(sizes):
        times = sizes[size]
        stays = doubt and default in times
        choice = default if stays else verdict(times, default, before, noise)
        if choice != before:
            base = _middle(times[default]) if default in times else None
            ranges.append(Range(size, choice, _middle(times[choice]), base))
        before = choice
    return tuple(ranges)


class Key(NamedTuple):
    """The situation for which rules are made; ``oversubscribed``: see `Rules`."""

    collective: str
    ranks: int
    nodes: int
    dtype: str
    oversubscribed: bool | None = None


Series = dict[Key, dict[int, dict[Tunable, list[list[float]]]]]
"""For each key and size, seconds of each candidate's iterations, a list a launch or round."""


def candidate(row: Measurement) -> Tunable:
    """The candidate of a row; a library with a forced algorithm is named after that algorithm."""
    name = row.algorithm
    if name == LIBRARY:
        values = row.run.environment.get("variables")
        variables = values if isinstance(values, Mapping) else {}
        forced = (
            forced_by_nccl(variables)
            if row.transport == "nccl"
            else forced_by_openmpi(row.collective, variables)
        )
        name = f"{LIBRARY}/{forced}" if forced else name
    return Tunable(name, row.transport)


def collect(rows: Iterable[Measurement], placement: str) -> Series:
    """Group rows with raw times by what they measured; ``placement`` is ``out`` or ``in``.

    Rows with wrong results are excluded. So are rows whose work was shared among ranks, because
    they do not time what a rank of a schedule has to do.
    """
    series: dict[Key, dict[int, dict[Tunable, list[Measurement]]]] = {}
    for row in rows:
        if row.placement != placement or not row.times_s or row.wrong or row.algorithm == "auto":
            continue
        if row.ranks is None or row.size is None or row.worksharing:
            continue
        per_node = row.run.environment.get("ranks_per_node")
        nodes = len(per_node) if isinstance(per_node, list) and per_node else 1
        crowded = None if row.ranks_per_core is None else row.ranks_per_core > 1
        key = Key(row.collective, row.ranks, nodes, row.dtype, crowded)
        times = series.setdefault(key, {}).setdefault(row.size, {})
        times.setdefault(candidate(row), []).append(row)
    return {
        key: {
            size: {name: _units(rows) for name, rows in times.items()}
            for size, times in sizes.items()
        }
        for key, sizes in series.items()
    }


def _units(rows: Sequence[Measurement]) -> list[list[float]]:
    """The units of a candidate's times: launches if there are several, otherwise rounds."""
    launches = [list(run) for run in samples(rows)]
    return launches if len(launches) > 1 else [list(row.times_s) for row in rows]


def of_files(paths: Iterable[Path], placement: str) -> tuple[Series, bool, list[str]]:
    """The series of record files or run directories, doubt, and notes.

    Doubt is True if other programs disturbed most rows in their only launch: then the times do not
    show which candidate is faster. Notes say so, and what could not be read.
    Raises Unsupported if a file cannot be read or none has a row with raw times.
    """
    try:
        readings = once([read(path) for path in paths])
    except ReportError as error:
        raise Unsupported(str(error)) from None
    rows = [row for reading in readings for row in reading.rows]
    notes = [str(note) for reading in readings for note in reading.notes]
    series = collect(rows, placement)
    shared = sum(row.worksharing for row in rows)
    note = f"{format_count(shared, 'row')} left out: ranks shared their work (docs/reports.md)"
    if not series:
        names = ", ".join(map(str, paths))
        raise Unsupported(
            f"{names}: no row with the times of its iterations for placement {placement!r}"
            + f"; {note}" * bool(shared)
        )
    notes += [note] * bool(shared)
    timed = [row for row in rows if row.times_s]
    if doubt := mostly_disturbed(rows):
        single = "one launch of each row does not show which is faster"
        notes.append(f"{disturbed(rows)}: {single}; the default stays")
    elif all(len(samples(same)) == 1 for same in grouped(timed, attrgetter(*KEYS)).values()):
        notes.append(
            "each row has one launch, and another may choose otherwise: take three (--launches,"
            " and time enough in --budget)"
        )
    return series, doubt, notes


def has_rows(path: Path) -> bool:
    """True if a record file has a row."""
    try:
        return bool(read(path).rows)
    except ReportError:
        return False


def tune(
    series: Series,
    default: str,
    noise: float,
    source: str = "measured",
    *,
    doubt: bool = False,
) -> list[Rules]:
    """Make rules for every key and every group of competing candidates (see `_groups`).

    ``default``: the algorithm that is kept unless another is faster. If a key has no such
    candidate, the first by name is used instead. ``doubt``: see `decide`.
    """
    rules: list[Rules] = []
    for key in sorted(series, key=lambda k: (*k[:-1], str(k.oversubscribed))):
        groups = _groups(sorted({c for times in series[key].values() for c in times}))
        for group in groups.items():
            rules.append(_rules(key, series[key], group, default, noise, source, doubt=doubt))
    return rules


def _rules(
    key: Key,
    sizes: Mapping[int, Mapping[Tunable, list[list[float]]]],
    group: tuple[str, Sequence[Tunable]],
    default: str,
    noise: float,
    source: str,
    *,
    doubt: bool,
) -> Rules:
    """The rules of one group: its name, and its candidates."""
    name, mine = group
    remaining = {
        size: {c: t for c, t in times.items() if c in mine} for size, times in sizes.items()
    }
    remaining = {size: times for size, times in remaining.items() if times}
    base = next((c for c in mine if c.algorithm == default), mine[0])
    ranges = decide(remaining, base, noise, doubt=doubt)
    about, ends = key[:-1], (min(remaining), max(remaining))
    return Rules(*about, name, source, base, noise, *ends, ranges, key.oversubscribed)


def _groups(everything: Sequence[Tunable]) -> dict[str, list[Tunable]]:
    """Groups of competing candidates: ours by transport, ours over all, and a library's own.

    The library's default choice is in every group, because users have it without any rule.
    """
    library = [c for c in everything if c.algorithm == LIBRARY]
    forced = [c for c in everything if c.algorithm.startswith(f"{LIBRARY}/")]
    ours = [c for c in everything if c not in library and c not in forced]
    transports = sorted({c.transport for c in ours})
    groups = {t: [*library, *(c for c in ours if c.transport == t)] for t in transports}
    if len(transports) > 1:
        groups[ANY] = [*library, *ours]
    for transport in sorted({c.transport for c in forced}):
        mine = [c for c in (*library, *forced) if c.transport == transport]
        groups[f"{transport}/{LIBRARY}"] = mine
    return groups or {c.transport: [c] for c in library}


def table(rules: Sequence[Rules]) -> list[str]:
    """A block of lines for each set of rules, at most 80 columns wide with usual names."""
    return [line for one in rules for line in _block(one)]


def _block(rules: Rules) -> Iterator[str]:
    where = "all transports" if rules.transport == ANY else rules.transport
    yield (
        f"# {rules.collective}, {format_count(rules.ranks, 'rank')} on"
        f" {format_count(rules.nodes, 'node')}, {rules.dtype}, {where}: {rules.source} from"
        f" {format_bytes(rules.low)} to {format_bytes(rules.high)}"
    )
    if rules.oversubscribed:
        yield "# oversubscribed: ranks shared cores; not for runs in which each has one"
    sure = " (95 % interval of the ratio)" if rules.source == "measured" else ""
    yield f"# {rules.default} stays unless something is faster by more than {rules.noise:.0%}{sure}"
    if sure:
        yield "# time: the median of all iterations at the size in column from"
    gains = [
        f"{one.default_seconds / one.seconds:.2f} x"
        if one.default_seconds is not None and one.choice != rules.default
        else ""
        for one in rules.ranges
    ]
    columns: list[Column] = [
        ("from", "right", [format_bytes(one.low) for one in rules.ranges]),
        ("algorithm", "left", [str(one.choice) for one in rules.ranges]),
        ("time", "right", [f"{one.seconds * 1e6:.1f}us" for one in rules.ranges]),
        ("against default", "right", gains),
    ]
    head, *lines = render_lines(columns, (10, 34, 10, 15))
    yield f"# {head}"
    yield from (f"  {line}" for line in lines)
    yield ""


def predicted(
    collectives: Sequence[str],
    ranks: Sequence[int],
    sizes: Sequence[int],
    fit: Path,
    topology: Sequence[str] | None,
    wanted: str | None,
    kind: str = "float",
    *,
    in_place: bool = False,
) -> tuple[Series, list[str]]:
    """A predicted time for each candidate and size, and lines on the source of the costs.

    Each time is repeated a dozen times, like a measurement without noise. ``sizes``: bytes.
    ``fit``: a file of ``busbar collectives fit``, whose transport the candidates get. ``topology``:
    files that map the machine, None for ranks as they were measured. Raises Unsupported for files
    or algorithms that cannot be used.
    """
    series: Series = {}
    notes: list[str] = []
    transport = read_fit(fit).costs[0].transport or "mpi"
    for collective in collectives:
        spec = catalogue.spec(collective)
        for n in ranks:
            machine = load_machine(topology, fit, n)
            predictor = choose_predictor(machine)
            notes += machine.notes
            names = wanted.split(",") if wanted else algorithms(collective, n)
            itemsize = dtype(kind).itemsize
            shown = [spec.size(n, size, itemsize).shown_bytes for size in sizes]
            # Several nodes only if a map says how many ranks a node has.
            nodes = 1 if topology is None or not machine.classes else machine.classes.nodes(n)
            key = Key(collective, n, nodes, kind)
            at = series.setdefault(key, {size: {} for size in shown})
            for name in names:
                plain, parameters = catalogue.parse(name)
                schedule = draft(collective, plain, n, root=0, **parameters)
                operation = Operation.of(schedule, collective, itemsize=itemsize, in_place=in_place)
                times = predictor.seconds(operation, shown)
                for size, time in zip(shown, times.tolist(), strict=True):
                    at[size][Tunable(name, transport)] = [[time] * _DOZEN]
    return series, list(dict.fromkeys(notes))
