"""``cost``: the costs of schedules next to the lower bounds, and their predicted times."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from itertools import chain, pairwise, starmap
from pathlib import Path
from typing import TYPE_CHECKING

from busbar.commands import Command
from busbar.errors import Unsupported
from busbar.options import option, redefine
from busbar.tables import new_table, render_csv
from busbar.units import (
    PREDICTED,
    format_count,
    format_digits,
    format_seconds,
    format_size_argument,
    parse_size,
)
from collectives.commands.command import (
    SchedulesOptions,
    pairs,
    parse_rank_count,
    show,
    sizes_between,
    width,
)
from collectives.formats.load import is_file
from collectives.schedule.bounds import bound
from collectives.schedule.catalogue import spec

if TYPE_CHECKING:
    from rich.table import Table

    from collectives.predict.compare import Contender
    from collectives.predict.interface import CollectivePredictor

_MOST_RANKS = 1 << 20
# The width of a cell in characters.
_CELL = 9


class CostCommand(SchedulesOptions, Command):
    """Steps, bytes, additions and predicted time beside the lower bounds."""

    name: str = redefine(SchedulesOptions, "name", "all", nargs="?")
    ranks: str = option(f"-n --ranks  number of ranks, up to {_MOST_RANKS}", "8")
    minbytes: str | None = option("-b --minbytes SIZE  smallest size to predict (default 1M)")
    maxbytes: str | None = option("-e --maxbytes SIZE  largest size to predict (default 1G)")
    stepfactor: float | None = option("-f --stepfactor F  factor between sizes (default 2)")
    topology: tuple[str, ...] | None = option(
        "--topology FILE  map of the machine: any file that busbar topology --from reads; may be"
        " repeated",
        action="append",
    )
    fit: Path | None = option("--fit FILE  costs of its links (busbar collectives fit)")
    format: str = option("--format", "table", choices=("table", "csv", "json"))

    def run(self) -> int:
        """Print the tables."""
        from collectives.predict.compare import compare_algorithms

        options, name, parameters = self.algorithm()
        nranks, sizes = parse_rank_count(options.ranks, _MOST_RANKS), _sizes(options)
        predictor: CollectivePredictor | None = None
        notes: Sequence[str] = ()
        if sizes:
            from collectives.predict.maps import load_machine
            from collectives.predict.predictor import choose_predictor

            machine = load_machine(options.topology, options.fit, nranks)
            predictor, notes = choose_predictor(machine), machine.notes
        groups: dict[str, list[str]] = {}
        for collective, algorithm in pairs(options, name):
            groups.setdefault(collective, []).append(algorithm)
        if name != "all":
            for each in dict.fromkeys(chain(*groups.values())):
                lacking = [collective for collective in groups if each not in groups[collective]]
                if lacking:
                    print(f"collectives: {', '.join(lacking)}: no {each}", file=sys.stderr)
        shown: list[object] = []
        rows: list[dict[str, object]] = []
        for collective, names in groups.items():
            contenders, refused = compare_algorithms(
                collective,
                names,
                nranks,
                root=options.root,
                predictor=predictor,
                sizes=sizes,
                parameters=parameters,
                strict=name != "all" and len(groups) == 1,
            )
            for reason in refused.values():
                print(f"collectives: {collective}: {reason}", file=sys.stderr)
            if options.format != "table":
                rows += _records(collective, nranks, contenders, predictor, sizes)
                continue
            shown.append(_counts(collective, nranks, contenders, refused))
            if predictor is not None and contenders:
                shown += _times(collective, nranks, contenders, predictor, sizes)
        if options.format == "table":
            show(*shown, *_LEGEND, *notes)
        elif options.format == "json":
            print(json.dumps({"rows": rows, "notes": list(notes)}, indent=1))
        else:
            lines = [list(rows[0]), *(row.values() for row in rows)] if rows else []
            sys.stdout.write(render_csv(lines))
        return 0


def _sizes(options: CostCommand) -> list[int]:
    """The sizes to predict; empty if no option requests a prediction."""
    ends = (options.minbytes, options.maxbytes, options.stepfactor, options.topology, options.fit)
    if all(end is None for end in ends):
        return []
    low, high = parse_size(options.minbytes or "1M"), parse_size(options.maxbytes or "1G")
    if options.maxbytes is None:
        high = max(low, high)
    if options.minbytes is None:
        low = min(low, high)
    if low < 1:
        raise Unsupported(f"-b {options.minbytes}: at least 1 byte")
    return sizes_between(low, high, options.stepfactor)


_LEGEND = (
    "Volumes are in units of N, the bytes of the collective's whole vector; P: ranks.",
    "steps: of the schedule; total: what all ranks send; rounds: messages in a row",
    "when a port carries one at a time each way; out, in, reductions: the busiest",
    "rank's. port: what the busiest port of a step sends or receives, whichever is",
    "more, since it does both at once; summed over the steps. For an all-reduce it is",
    "2N(P-1) of ps, which is P times the 2N(P-1)/P of a ring.",
    "Lower bounds: Chan et al. 2007, for such ports and with the best pair's costs.",
)


def _counts(
    collective: str, nranks: int, contenders: Sequence[Contender], refused: dict[str, str]
) -> Table:
    """A table of steps and volumes, with the lower bounds if they are known."""
    columns = ("steps", "rounds", "total", "out", "in", "port", "reductions")
    table = new_table(f"{collective} on {format_count(nranks, 'rank')}", "algorithm", *columns)

    def volumes(*values: float | None) -> list[str]:
        return ["-" if value is None else format_digits(value, ".4g") for value in values]

    least = bound(collective, nranks)
    if least is not None:
        ends = volumes(least.out, least.into, None, least.reduced)
        table.add_row("lower bound", "", str(least.rounds), "", *ends, end_section=True)
    for each in contenders:
        c = each.cost
        label = Path(each.name).name if is_file(each.name) else each.name
        cells = volumes(c.total, c.out, c.into, c.port, c.reduced)
        table.add_row(label, str(c.steps), str(c.rounds), *cells)
    for name in refused:
        table.add_row(name, "-", *[""] * 6)
    return table


def _times(
    collective: str,
    nranks: int,
    contenders: Sequence[Contender],
    predictor: CollectivePredictor,
    sizes: Sequence[int],
) -> Iterator[object]:
    """Tables of each algorithm's time and busbw at each size, with the best marked; crossovers."""
    import numpy as np

    from collectives.predict.compare import find_crossovers

    times, what = np.array([c.seconds for c in contenders]), spec(collective)
    factor = what.bus_factor(nranks)
    bounds = predictor.lower_bound(collective, nranks, sizes)
    # If a size is so small that no rank has a whole element, no algorithm is marked.
    marks = (times <= times.min(axis=0) * (1 + 1e-9)) & (times > 0)
    names = max(len("lower bound"), *(len(c.name) for c in contenders))
    shown = [("time", times, _time, bounds)]
    if any(sizes) and factor:
        counted = what.alg_factor(nranks) * np.asarray(sizes)
        rates = factor * counted / np.where(times > 0, times, np.nan) / 1e9
        shown.append(("busbw, GB/s", rates, _rate, None))
    # Columns are split into parts that fit next to the names.
    n, most = len(sizes), max(1, (width() - names - 2) // (_CELL + 2))
    parts = -(-n // most)
    edges = [part * n // parts for part in range(parts + 1)]
    for quantity, values, text, floor in shown:
        for part in starmap(range, pairwise(edges)):
            yield f"{collective} on {format_count(nranks, 'rank')}: predicted {quantity}"
            table = new_table("", "algorithm", *(format_size_argument(sizes[i]) for i in part))
            if floor is not None:
                cells = (text(floor[i]) for i in part)
                table.add_row("lower bound", *cells, end_section=True)
            for contender, row, best in zip(contenders, values, marks, strict=True):
                cells = (">" * bool(best[i]) + text(row[i]) for i in part)
                table.add_row(contender.name, *cells)
            yield table
    if not marks.any():
        yield from ("nothing is moved at these sizes", "")
        return
    first = int(marks.any(axis=0).argmax())
    line = f"> best: {contenders[int(times[:, first].argmin())].name}"
    for cross in find_crossovers(collective, contenders, predictor, sizes):
        line += f"; from {format_size_argument(cross.size)} on {cross.better}"
    yield line
    yield ""


def _time(value: float) -> str:
    return format_seconds(value, PREDICTED)


def _rate(value: float) -> str:
    return format_digits(value, ".3g") if value > 0 else "-"


def _records(
    collective: str,
    nranks: int,
    contenders: Sequence[Contender],
    predictor: CollectivePredictor | None,
    sizes: Sequence[int],
) -> Iterator[dict[str, object]]:
    """A row per algorithm and size (without sizes, per algorithm), with the lower bounds."""
    floor, what = bound(collective, nranks), spec(collective)
    bounds = None if predictor is None else predictor.lower_bound(collective, nranks, sizes)
    factor = what.alg_factor(nranks) * what.bus_factor(nranks)
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
            "port": c.cost.port,
            "reductions": c.cost.reduced,
            "bound_rounds": floor and floor.rounds,
            "bound_out": floor and floor.out,
            "bound_in": floor and floor.into,
            "bound_reductions": floor and floor.reduced,
        }
        if c.seconds is None:
            yield counts
            continue
        for i, size in enumerate(sizes):
            time = float(c.seconds[i])
            best = min(float(other.seconds[i]) for other in contenders if other.seconds is not None)
            yield {
                **counts,
                "size": size,
                "predicted_s": time,
                "busbw_bytes_per_s": factor * size / time if time else None,
                "bound_s": None if bounds is None else float(bounds[i]),
                "best": 0 < time <= best * (1 + 1e-9),
            }
