"""Records as the input of decisions: times of every candidate at every size."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from bench.run.tuning_file import ANY, LIBRARY, Rules, Tunable
from bench.tuning import nccl, openmpi
from bench.tuning.decide import decide
from busbar.errors import ReportError, Unsupported
from reports.analysis.compare import samples
from reports.readers.reading import read
from reports.records.measurement import Measurement


class Key(NamedTuple):
    """The situation for which rules are made; ``oversubscribed``: see `Rules`."""

    collective: str
    ranks: int
    nodes: int
    dtype: str
    oversubscribed: bool | None = None


Series = dict[Key, dict[int, dict[Tunable, list[list[float]]]]]
"""For each key and size, seconds of each candidate's iterations, one list per launch or round."""


def candidate(row: Measurement) -> Tunable:
    """The candidate of a row; a library with a forced algorithm is named after that algorithm."""
    name = row.algorithm
    if name == LIBRARY:
        values = row.run.environment.get("variables")
        variables = values if isinstance(values, Mapping) else {}
        forced = (
            nccl.forced(variables)
            if row.transport == "nccl"
            else openmpi.forced(row.collective, variables)
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
        crowded = None if row.ranks_per_core is None else row.oversubscribed
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


def of_files(paths: Iterable[Path], placement: str) -> tuple[Series, list[str]]:
    """The series of record files or run directories, and notes about what could not be read.

    Raises Unsupported if a file cannot be read or none has a row with raw times.
    """
    rows: list[Measurement] = []
    notes: list[str] = []
    for path in paths:
        try:
            reading = read(path)
        except ReportError as error:
            raise Unsupported(str(error)) from None
        rows += reading.rows
        notes += map(str, reading.notes)
    series = collect(rows, placement)
    shared = sum(row.worksharing for row in rows)
    note = f"{shared} rows count for nothing, since ranks shared their work (docs/reports.md)"
    if not series:
        names = ", ".join(map(str, paths))
        raise Unsupported(
            f"{names}: no row with the times of its iterations for placement {placement!r}"
            + f"; {note}" * bool(shared)
        )
    notes += [note] * bool(shared)
    return series, notes


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
) -> list[Rules]:
    """Make rules for every key and every group of competing candidates (see `_groups`).

    ``default``: the algorithm that is kept unless another is faster. If a key has no such
    candidate, the first by name is used instead.
    """
    rules: list[Rules] = []
    for key in sorted(series, key=lambda k: (*k[:-1], str(k.oversubscribed))):
        groups = _groups(sorted({c for times in series[key].values() for c in times}))
        for group in groups.items():
            rules.append(_rules(key, series[key], group, default, noise, source))
    return rules


def _rules(
    key: Key,
    sizes: Mapping[int, Mapping[Tunable, list[list[float]]]],
    group: tuple[str, Sequence[Tunable]],
    default: str,
    noise: float,
    source: str,
) -> Rules:
    name, mine = group
    remaining = {
        size: {c: t for c, t in times.items() if c in mine} for size, times in sizes.items()
    }
    remaining = {size: times for size, times in remaining.items() if times}
    base = next((c for c in mine if c.algorithm == default), mine[0])
    ranges = decide(remaining, base, noise)
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
