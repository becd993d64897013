"""Rows of several launches of one command (``--launches``) as one row each. No I/O."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from operator import attrgetter
from pathlib import PurePath
from typing import Any

import numpy as np
from msgspec.structs import replace

from reports.readers.names import scaled
from reports.records.measurement import Measurement, launch_of
from reports.records.table import KEYS, measured
from reports.statistics.inference import launch_center, launch_interval

# A run directory has a file for each launch.
_OF_FOLDER = re.compile(r"records(-\d+)?\.jsonl(\.gz)?", re.ASCII)


def over_launches(rows: Sequence[Measurement]) -> Sequence[Measurement]:
    """Merge the rows of all launches of one command: one row for each setting.

    Launches of one command have the same seed, in one file, or in the files of one run directory if
    no two of these have the same launch: then the command was run twice with one seed. Merged rows
    are sorted by setting and size. Rows of other runs come first, unchanged; if no run is one of
    several launches, the rows are returned as they are.
    """
    places = {id(run): launch_of(run) for run in {id(r.run): r.run for r in rows}.values()}
    if not any(places.values()):
        return rows
    what = attrgetter(*KEYS)
    rows_of_all: list[Measurement] = []
    groups: dict[tuple[Any, ...], dict[int, list[Measurement]]] = {}
    for row in rows:
        place = places[id(row.run)]
        if place is None:
            rows_of_all.append(row)
        else:
            key = (_place(row.run.source), *place[:2], *what(row))
            groups.setdefault(key, {}).setdefault(place[2], []).append(row)
    order = sorted(groups, key=lambda key: tuple(map(str, key[:3])))
    together = [_together(one) for key in order for one in _commands(groups[key])]
    together.sort(key=lambda r: (r.collective, r.ranks or 0, r.algorithm, r.transport, r.size or 0))
    return [*rows_of_all, *together]


def _place(source: str) -> str:
    """The run directory of a file of records; other files stand for themselves."""
    path = PurePath(source)
    return str(path.parent) if _OF_FOLDER.fullmatch(path.name) else source


def _commands(
    by_launch: Mapping[int, Sequence[Measurement]],
) -> list[Mapping[int, Sequence[Measurement]]]:
    """The rows of one setting and seed, by launch number, for each command that measured them."""
    if all(len({row.run.source for row in rows}) == 1 for rows in by_launch.values()):
        return [by_launch]
    files = dict.fromkeys(row.run.source for rows in by_launch.values() for row in rows)
    return [
        {
            number: mine
            for number, rows in by_launch.items()
            if (mine := [row for row in rows if row.run.source == file])
        }
        for file in files
    ]


def _together(by_launch: Mapping[int, Sequence[Measurement]]) -> Measurement:
    """Merge the rows of one setting, by launch number, into one. Without raw times: the first.

    The interval of a single launch is that of its iterations.
    """
    every = [row for number in sorted(by_launch) for row in by_launch[number]]
    first = every[0]
    runs = [[t for row in by_launch[n] for t in row.times_s] for n in sorted(by_launch)]
    runs = [run for run in runs if run]
    if not runs:
        return first
    middle = launch_center(runs)
    times = tuple(t for run in runs for t in run)
    visits = (
        (number, tuple(float(np.median(r.times_s)) for r in by_launch[number] if r.times_s))
        for number in sorted(by_launch)
    )
    whole = measured(replace(first, times_s=times, timing="each"), first.run)
    low, high = launch_interval(runs) or (None, None)
    if len(runs) == 1:
        low, high = whole.low_s, whole.high_s
    share = (first.time_s or middle) / middle if middle > 0 else 1.0
    return replace(
        first,
        time_s=middle,
        low_s=low,
        high_s=high,
        **{name: getattr(whole, name) for name in ("min_s", "max_s", "p99_s", "cv")},
        algbw_bytes_per_s=scaled(first.algbw_bytes_per_s, share),
        busbw_bytes_per_s=scaled(first.busbw_bytes_per_s, share),
        wrong=_sum([row.wrong for row in every]),
        iterations=sum(row.iterations or 0 for row in every),
        stopped=first.stopped if len({row.stopped for row in every}) == 1 else "",
        times_s=times,
        limit_s=min((row.limit_s for row in every if row.limit_s), default=None),
        per_rank_s=(),
        launches_s=tuple(float(np.median(run)) for run in runs) if len(runs) > 1 else (),
        visits_s=tuple((number, visit) for number, visit in visits if visit),
    )


def _sum(counts: Sequence[int | None]) -> int | None:
    known = [one for one in counts if one is not None]
    return sum(known) if known else None
