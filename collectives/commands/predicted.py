"""How predictions are shown: tables as wide as the terminal, CSV, JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

import numpy as np

from busbar.tables import new_table, render_csv
from busbar.units import PREDICTED, format_digits, format_seconds, format_size_argument
from collectives.commands.command import width
from collectives.predict.compare import Contender, find_crossovers
from collectives.predict.interface import CollectivePredictor
from collectives.schedule.bounds import bound
from collectives.schedule.catalogue import spec

_CELL = 9


def tables(
    collective: str,
    nranks: int,
    contenders: Sequence[Contender],
    predictor: CollectivePredictor,
    sizes: Sequence[int],
) -> Iterator[object]:
    """The time and the busbw of every algorithm at every size, the best marked, and crossovers."""
    times = np.array([c.seconds for c in contenders])
    factor = spec(collective).bus_factor(nranks)
    bounds = predictor.lower_bound(collective, nranks, sizes)
    # Of a size that leaves no rank a whole element nothing is the best.
    marks = (times <= times.min(axis=0) * (1 + 1e-9)) & (times > 0)
    title = f"{collective} on {nranks} ranks: predicted"
    names = max(len("lower bound"), *(len(c.name) for c in contenders))
    shown = [("time", times, _time, bounds)]
    if any(sizes) and factor:
        counted = spec(collective).alg_factor(nranks) * np.asarray(sizes)
        rates = factor * counted / np.where(times > 0, times, np.nan) / 1e9
        shown.append(("busbw, GB/s", rates, _rate, None))
    for what, values, text, floor in shown:
        for part in _parts(len(sizes), names):
            yield f"{title} {what}"
            table = new_table("", "algorithm", *(format_size_argument(sizes[i]) for i in part))
            if floor is not None:
                cells = (text(floor[i]) for i in part)
                table.add_row("lower bound", *cells, end_section=True)
            for one, row, best in zip(contenders, values, marks, strict=True):
                cells = (text(row[i]) + ("*" if best[i] else " ") for i in part)
                table.add_row(one.name, *cells)
            yield table
    if not marks.any():
        yield from ("nothing is moved at these sizes", "")
        return
    first = contenders[int(times[:, 0].argmin())].name
    line = f"* best: {first}"
    for cross in find_crossovers(collective, contenders, predictor, sizes):
        line += f"; from {format_size_argument(cross.size)} on {cross.better}"
    yield line
    yield ""


def _parts(n: int, names: int) -> Iterator[list[int]]:
    """Columns in parts that fit beside the names."""
    most = max(1, (width() - names - 2) // (_CELL + 2))
    parts = -(-n // most)
    for part in range(parts):
        yield list(range(part * n // parts, (part + 1) * n // parts))


def _time(value: float) -> str:
    return format_seconds(value, PREDICTED)


def _rate(value: float) -> str:
    return format_digits(value, ".3g") if value > 0 else "-"


def records(
    collective: str,
    nranks: int,
    contenders: Sequence[Contender],
    predictor: CollectivePredictor | None,
    sizes: Sequence[int],
) -> list[dict[str, object]]:
    """A row an algorithm and size (without sizes, an algorithm), with the lower bounds."""
    floor, what = bound(collective, nranks), spec(collective)
    bounds = None if predictor is None else predictor.lower_bound(collective, nranks, sizes)
    timed = [c.seconds for c in contenders if c.seconds is not None]
    best = np.min(np.array(timed), axis=0) if timed else np.zeros(0)
    rows: list[dict[str, object]] = []
    for c in contenders:
        counts: dict[str, object] = {
            "collective": collective,
            "ranks": nranks,
            "algorithm": c.name,
            "steps": c.cost.steps,
            "rounds": c.cost.rounds,
            "total": c.cost.total,
            "out": c.cost.out,
            "in": c.cost.into,
            "reductions": c.cost.reduced,
            "bound_rounds": floor and floor.rounds,
            "bound_out": floor and floor.out,
            "bound_in": floor and floor.into,
            "bound_reductions": floor and floor.reduced,
        }
        if c.seconds is None:
            rows.append(counts)
            continue
        for i, size in enumerate(sizes):
            time = float(c.seconds[i])
            rate = what.alg_factor(nranks) * what.bus_factor(nranks) * size / time if time else None
            rows.append(
                {
                    **counts,
                    "size": size,
                    "predicted_s": time,
                    "busbw_bytes_per_s": rate,
                    "bound_s": None if bounds is None else float(bounds[i]),
                    "best": bool(0 < time <= best[i] * (1 + 1e-9)),
                }
            )
    return rows


def written(rows: Sequence[dict[str, object]], notes: Sequence[str], form: str) -> str:
    """Rows as CSV, or as JSON with the notes."""
    if form == "json":
        return json.dumps({"rows": list(rows), "notes": list(notes)}, indent=1) + "\n"
    return render_csv([list(rows[0]), *(row.values() for row in rows)] if rows else [])
