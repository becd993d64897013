"""The data of a page as JSON: columns with one value per row, and the series of the rows.

The page has all rows up to ``MOST_ROWS``; the scripts limit how many are drawn at once. The total
number of values in distributions is limited too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from busbar.canvas import COLOURS
from busbar.tables import draw_sparkline
from busbar.units import format_percent, format_seconds
from reports.figures.series import Trend, algorithm_of, bound_of, fitted, looks, run_names
from reports.records.measurement import LIBRARY, Measurement
from reports.records.metrics import BESIDE, ERROR, present

MOST_ROWS = 100_000
_MOST_FITS = 500
_VALUES = 300_000
_MOST_QUANTILES = 101
_LEAST_QUANTILES = 11
_DIMENSIONS = (
    "collective", "dtype", "op", "root", "ranks", "algorithm", "transport", "placement",
    "worksharing", "reading",
)  # fmt: skip
_FIGURES = {
    "time": "time_s",
    "low": "low_s",
    "high": "high_s",
    "min": "min_s",
    "max": "max_s",
    "p99": "p99_s",
    "algbw": "algbw_bytes_per_s",
    "busbw": "busbw_bytes_per_s",
    "cv": "cv",
    "wrong": "wrong",
    "n": "iterations",
    "energy": "energy_per_op_j",
    "clock": "clock_memory_hz",
    "perCore": "ranks_per_core",
    "sent": "sent_bytes",
    "received": "received_bytes",
    "total": "total_bytes",
}
# The functions of format.js that format a metric.
_KINDS: Mapping[Callable[[float], str], str] = {
    format_seconds: "seconds",
    format_percent: "percent",
}
_Key = tuple[str | int | None, ...]


def _key(r: Measurement, runs: dict[int, str]) -> _Key:
    words = {name: getattr(r, name) for name in _DIMENSIONS}
    if words["root"] == -1:  # some logs write -1 for no root, others leave it out
        words["root"] = None
    return (*words.values(), runs[id(r.run)])


def reduced(rows: Sequence[Measurement]) -> tuple[list[Measurement], str]:
    """The first ``MOST_ROWS`` rows, and a note on the others ("" if there are none)."""
    if len(rows) <= MOST_ROWS:
        return list(rows), ""
    return list(rows[:MOST_ROWS]), f"of {len(rows):,} rows the first {MOST_ROWS:,} are in this page"


def payload(rows: Sequence[Measurement], limit: float | None = None) -> dict[str, Any]:
    """The page's data; ``limit`` (bytes per second) bounds busbw of rows without a bound."""
    runs = run_names(rows)
    keys = [_key(r, runs) for r in rows]
    numbers = {key: n for n, key in enumerate(dict.fromkeys(keys))}
    members: list[list[Measurement]] = [[] for _ in numbers]
    for r, key in zip(rows, keys, strict=True):
        members[numbers[key]].append(r)
    names = looks(rows)
    fits = [fitted(m) if len(numbers) <= _MOST_FITS else None for m in members]
    series = [
        {
            **dict(zip((*_DIMENSIONS, "run"), key, strict=True)),
            "name": algorithm_of(m[0]),
            "colour": names[algorithm_of(m[0])].place,
            "mark": names[algorithm_of(m[0])].mark,
            "bright": names[algorithm_of(m[0])].bright,
            "fit": None if fit is None else _fit(fit),
        }
        for key, m, fit in zip(numbers, members, fits, strict=True)
    ]
    sizes = [r.nbytes for r in rows]
    metrics = present(rows, (*BESIDE, ERROR))
    places = {**_FIGURES, **{metric.column: metric.column for metric in metrics}}
    columns = {name: [_short(getattr(r, place)) for r in rows] for name, place in places.items()}
    samples, left_out = _samples(rows)
    library = _library(rows)
    return {
        "colours": COLOURS,
        "metrics": [
            {
                "column": metric.column,
                "name": metric.name,
                "unit": metric.unit,
                "scale": metric.scale,
                "kind": _KINDS.get(metric.form, "figure"),
                "more": metric.more,
                "drawn": metric in BESIDE,
            }
            for metric in metrics
        ],
        "series": series,
        "of": [numbers[key] for key in keys],
        "size": sizes,
        **columns,
        "crowded": [r.oversubscribed for r in rows],
        "library": [_short(ratio) for ratio in library],
        "bound": [_short(bound_of(r, limit)) for r in rows],
        "spark": [draw_sparkline(r.times_s, 12) if len(r.times_s) > 1 else "" for r in rows],
        "skipped": [r.skipped for r in rows],
        "samples": samples,
        "samplesLeftOut": left_out,
    }


def _library(rows: Sequence[Measurement]) -> list[float | None]:
    """The library's time over each row's, for the same setting in the same run; or None."""

    def what(r: Measurement) -> tuple[Any, ...]:
        return (id(r.run), r.collective, r.dtype, r.op, r.root, r.ranks, r.placement, r.size)

    base = {what(r): r.time_s for r in rows if r.algorithm == LIBRARY and r.time_s}
    return [
        base[what(r)] / r.time_s
        if r.time_s and r.algorithm != LIBRARY and what(r) in base
        else None
        for r in rows
    ]


def _fit(fit: Trend) -> dict[str, Any]:
    return {"text": fit.text, "sizes": fit.sizes, "times": [_short(t) for t in fit.times]}


def _short(value: float | None) -> float | None:
    """Round to six significant digits, to halve the size of the data."""
    return value if value is None or isinstance(value, int) else float(f"{value:.6g}")


def _samples(rows: Sequence[Measurement]) -> tuple[list[list[float | None] | None], int]:
    """Each row's sorted iterations or quantiles of them, and the number of rows left out.

    Rows are left out if there are too many values. Rows of the largest sizes have priority.
    """
    having = [n for n, r in enumerate(rows) if len(r.times_s) > 1]
    each = min(_MOST_QUANTILES, max(_LEAST_QUANTILES, _VALUES // max(1, len(having))))
    room = _VALUES // each
    chosen = sorted(having, key=lambda n: -(rows[n].size or 0))[:room]
    samples: list[list[float | None] | None] = [None] * len(rows)
    for n in chosen:
        ordered = sorted(rows[n].times_s)
        last = len(ordered) - 1
        places = (
            range(len(ordered))
            if last < each
            else (round(q * last / (each - 1)) for q in range(each))
        )
        samples[n] = [_short(ordered[p]) for p in places]
    return samples, len(having) - len(chosen)
