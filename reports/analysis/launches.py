"""Rows of several launches of one command (``--launches``) as one row each. No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any

import numpy as np
from msgspec.structs import replace

from reports.readers.names import scaled
from reports.records.measurement import Measurement, launch_of
from reports.records.table import KEYS, measured
from reports.statistics.inference import launch_center, launch_interval


def over_launches(rows: Sequence[Measurement]) -> Sequence[Measurement]:
    """Merge the rows of all launches of one command: one row for each setting.

    Merged rows are sorted by setting and size. Rows of other runs come first, unchanged; if no run
    is one of several launches, the rows are returned as they are.
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
            key = (row.run.source, *place[:2], *what(row))
            groups.setdefault(key, {}).setdefault(place[2], []).append(row)
    order = sorted(groups, key=lambda key: tuple(map(str, key[:3])))
    together = [_together(groups[key]) for key in order]
    together.sort(key=lambda r: (r.collective, r.ranks or 0, r.algorithm, r.transport, r.size or 0))
    return [*rows_of_all, *together]


def _together(by_launch: Mapping[int, Sequence[Measurement]]) -> Measurement:
    """Merge the rows of one setting, by launch number, into one. Without raw times: the first."""
    every = [row for number in sorted(by_launch) for row in by_launch[number]]
    first = every[0]
    runs = [[t for row in by_launch[n] for t in row.times_s] for n in sorted(by_launch)]
    runs = [run for run in runs if run]
    if not runs:
        return first
    middle = launch_center(runs)
    low, high = launch_interval(runs) or (None, None)
    times = tuple(t for run in runs for t in run)
    visits = (
        (number, tuple(float(np.median(r.times_s)) for r in by_launch[number] if r.times_s))
        for number in sorted(by_launch)
    )
    whole = measured(replace(first, times_s=times, timing="each"), first.run)
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
        launches_s=tuple(float(np.median(run)) for run in runs),
        visits_s=tuple((number, visit) for number, visit in visits if visit),
    )


def _sum(counts: Sequence[int | None]) -> int | None:
    known = [one for one in counts if one is not None]
    return sum(known) if known else None
