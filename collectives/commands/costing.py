"""``cost``: the costs of schedules next to the one-port bounds, and their predicted times."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, pairwise, starmap
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, ClassVar

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
    parse_ranks,
    parse_size,
)
from collectives.commands.command import (
    PROSE,
    SchedulesOptions,
    pairs,
    ranks_of_grid,
    server_over_ring,
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
    from collectives.predict.machine import Machine

_MOST_RANKS = 1 << 20
# The number of ranks if no option and no file states one.
_RANKS = 8
# A size at which every chunk has at most one element, so that a prediction is of latency.
_LEAST_BYTES = 4
# Ratios that differ by less than this factor are alike.
_NEAR = 1.05
# From this share of latency on, bytes hardly matter.
_MOSTLY = 0.9
# The width of a cell in characters.
_CELL = 9


class CostCommand(SchedulesOptions, Command):
    """Steps, bytes, additions and predicted time beside the bounds of one port a rank."""

    ELSEWHERE: ClassVar = {
        "machine": "--topology FILE or --fit FILE, or busbar collectives simulate"
    }

    name: str = redefine(SchedulesOptions, "name", "all", nargs="?")
    ranks: str = option(
        f"-n --ranks P[,P…]  numbers of ranks, up to {_MOST_RANKS} (default: those of the grid, the"
        " map or the fit; without them 8)",
        "",
    )
    collective: str | None = redefine(
        SchedulesOptions,
        "collective",
        None,
        text="-c --collective  which collective (default: allreduce; for a NAME that is none of its"
        " algorithms all that have it)",
    )
    minbytes: str | None = option("-b --minbytes SIZE  smallest size to predict (default 1M)")
    maxbytes: str | None = option(
        "-e --maxbytes SIZE  largest size to predict (default 1G, also with -b alone)"
    )
    stepfactor: float | None = option("-f --stepfactor F  factor between sizes (default 2)")
    topology: tuple[str, ...] | None = option(
        "--topology FILE  map of the machine: any file that busbar topology --from reads; may be"
        " repeated",
        action="append",
    )
    fit: Path | None = option("--fit FILE  costs of its links (busbar collectives fit)")
    format: str = option("--format", "table", choices=("table", "csv", "json"))

    def run(self) -> int:
        """Print the tables of each number of ranks, or their rows."""
        options, name, parameters = self.algorithm()
        groups: dict[str, list[str]] = {}
        for collective, algorithm in pairs(options, name):
            groups.setdefault(collective, []).append(algorithm)
        groups, others = _usual(options, name, groups)
        if name != "all":
            for each in dict.fromkeys(chain(*groups.values())):
                lacking = [collective for collective in groups if each not in groups[collective]]
                if lacking:
                    print(f"collectives: {', '.join(lacking)}: no {each}", file=sys.stderr)
        shown: list[object] = []
        rows: list[dict[str, object]] = []
        notes: dict[str, None] = {}
        for count in parse_ranks(options.ranks, _MOST_RANKS) if options.ranks else [None]:
            tables, records, remarks = options._costs(groups, name, parameters, count)
            shown += tables
            rows += records
            notes |= dict.fromkeys(remarks)
        notes |= dict.fromkeys(others)
        if options.format == "table":
            show(*shown, *_LEGEND, *notes)
        elif options.format == "json":
            print(json.dumps({"rows": rows, "notes": [*notes]}, indent=1))
        else:
            lines = [list(rows[0]), *(row.values() for row in rows)] if rows else []
            sys.stdout.write(render_csv(lines))
        return 0

    def _costs(
        self,
        groups: Mapping[str, Sequence[str]],
        name: str,
        parameters: Mapping[str, object],
        count: int | None,
    ) -> tuple[list[object], list[dict[str, object]], list[str]]:
        """Tables, or with another format rows, and notes for a number of ranks, None if not given.

        ``groups``: the algorithms of each collective.
        """
        from collectives.predict.compare import compare_algorithms

        sizes = _sizes(self)
        machine, nranks, notes = _machine(self, parameters, count, predicted=bool(sizes))
        predictor: CollectivePredictor | None = None
        if machine is not None:
            from collectives.predict.predictor import choose_predictor

            predictor = choose_predictor(machine)
        shown: list[object] = []
        rows: list[dict[str, object]] = []
        for collective, names in groups.items():
            contenders, refused = compare_algorithms(
                collective,
                names,
                nranks,
                root=self.root,
                predictor=predictor,
                sizes=sizes,
                parameters=parameters,
                strict=name != "all" and len(groups) == 1 and "," not in self.ranks,
            )
            for reason in refused.values():
                print(f"collectives: {collective}: {reason}", file=sys.stderr)
            if self.format != "table":
                rows += _records(collective, nranks, contenders, predictor, sizes)
                continue
            shown.append(_counts(collective, nranks, contenders, refused))
            if predictor is not None and contenders:
                shown += _times(collective, nranks, contenders, predictor, sizes)
        return shown, rows, notes


def _usual(
    options: CostCommand, name: str, groups: dict[str, list[str]]
) -> tuple[dict[str, list[str]], list[str]]:
    """The all-reduce alone and a line on other collectives, unless one was chosen or it lacks NAME.

    ``groups``: the algorithms of each collective that has any of NAME.
    """
    usual = "allreduce"
    every = dict.fromkeys(chain(*groups.values()))
    lacks = usual not in groups or (name != "all" and len(groups[usual]) < len(every))
    if options.collective is not None or lacks or len(groups) == 1:
        return groups, []
    rest = ", ".join(each for each in groups if each != usual)
    return {usual: groups[usual]}, wrap(f"other collectives: -c NAME ({rest})", min(width(), PROSE))


def _machine(
    options: CostCommand, parameters: Mapping[str, object], nranks: int | None, predicted: bool
) -> tuple[Machine | None, int, list[str]]:
    """The machine if times are ``predicted``, the number of ranks, and notes on both.

    ``nranks``: the number that the options have, or None.
    """
    whose, machine = "", None
    notes: list[str] = []
    if nranks is None and (sides := ranks_of_grid(parameters)):
        nranks, whose = sides, "those of the grid"
    if predicted:
        from collectives.predict.maps import load_machine

        _check_files(options.topology or ())
        machine = load_machine(options.topology, options.fit, nranks)
        notes += machine.notes
        if nranks is None and machine.nranks:
            nranks = machine.nranks
            whose = "those of the map" if options.topology else "those of the fit"
    if nranks is None:
        nranks, whose = _RANKS, "the default"
    if machine is not None:
        notes += _one_by_one(machine, nranks)
    if whose:
        notes.append(f"ranks: {nranks}, {whose}; -n chooses another number, -n 4,8 several")
    return machine, nranks, notes


def _check_files(files: Sequence[str]) -> None:
    """Raise Unsupported for a machine that `simulate` has by name, in place of a file."""
    from collectives.predict.named import GENERATORS

    for text in files:
        if text.split(":")[0] in GENERATORS and not Path(text).exists():
            raise Unsupported(
                f"--topology {text}: no such file; busbar collectives simulate --machine {text}"
                " has a machine of this name"
            )


def _sizes(options: CostCommand) -> list[int]:
    """The sizes to predict; empty if no option requests a prediction."""
    ends = (options.minbytes, options.maxbytes, options.stepfactor, options.topology, options.fit)
    if all(end is None for end in ends):
        return []
    low, high = parse_size(options.minbytes or "1M"), parse_size(options.maxbytes or "1G")
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
    "one-port bound: no algorithm is below it where each rank has one such port (Chan",
    "et al. 2007; the best pair's costs). A rank that sends over several links at",
    "once (simulate) may be faster.",
)
_BOUND = "one-port bound"


def _counts(
    collective: str, nranks: int, contenders: Sequence[Contender], refused: dict[str, str]
) -> Table:
    """A table of steps and volumes, with the one-port bounds if they are known."""
    columns = ("steps", "rounds", "total", "out", "in", "port", "reductions")
    table = new_table(f"{collective} on {format_count(nranks, 'rank')}", "algorithm", *columns)

    def volumes(*values: float | None) -> list[str]:
        return ["-" if value is None else format_digits(value, ".4g") for value in values]

    least = bound(collective, nranks)
    if least is not None:
        ends = volumes(least.out, least.into, None, least.reduced)
        table.add_row(_BOUND, "", str(least.rounds), "", *ends, end_section=True)
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
    from collectives.predict.interface import Operation

    times, what = np.array([c.seconds for c in contenders]), spec(collective)
    factor = what.bus_factor(nranks)
    bounds = predictor.one_port_bound(collective, nranks, sizes)
    # If a size is so small that no rank has a whole element, no algorithm is marked.
    marks = (times <= times.min(axis=0) * (1 + 1e-9)) & (times > 0)
    names = max(len(_BOUND), *(len(c.name) for c in contenders))
    shown = [("time", times, _time, bounds)]
    if any(sizes) and factor:
        counted = what.alg_factor(nranks) * np.asarray(sizes)
        rates = factor * counted / np.where(times > 0, times, np.nan) / 1e9
        shown.append(("busbw, GB/s", rates, _rate, None))
    # Columns are split into parts that fit next to the names.
    n, most = len(sizes), max(1, (width() - names - 2) // (_CELL + 2))
    parts = -(-n // most)
    edges = [part * n // parts for part in range(parts + 1)]
    key = " (*: the best)" if marks.any() else ""
    for quantity, values, text, floor in shown:
        for part in starmap(range, pairwise(edges)):
            ranks = format_count(nranks, "rank")
            yield f"{collective} on {ranks}: predicted {quantity}{key}"
            table = new_table("", "algorithm", *(format_size_argument(sizes[i]) for i in part))
            if floor is not None:
                cells = (text(floor[i]) for i in part)
                table.add_row(_BOUND, *cells, end_section=True)
            for contender, row, best in zip(contenders, values, marks, strict=True):
                cells = ("*" * bool(best[i]) + text(row[i]) for i in part)
                table.add_row(contender.name, *cells)
            yield table
    if not marks.any():
        yield from ("nothing is moved at these sizes", "")
        return
    first = int(marks.any(axis=0).argmax())
    line = f"best: {contenders[int(times[:, first].argmin())].name}"
    for cross in find_crossovers(collective, contenders, predictor, sizes):
        line += f"; from {format_size_argument(cross.size)} on {cross.better}"
    yield line
    at = {contender.name: contender for contender in contenders}
    if collective == "allreduce" and {"ps", "ring"} <= at.keys() and times[:, -1].all():
        server, ring = (float(times[contenders.index(at[name]), -1]) for name in ("ps", "ring"))
        by_port = at["ps"].cost.port / at["ring"].cost.port
        least = [
            float(predictor.seconds(Operation.of(at[name].schedule, collective), [_LEAST_BYTES])[0])
            for name in ("ps", "ring")
        ]
        why = _of_latency((server, ring), least, by_port)
        yield from server_over_ring({sizes[-1]: server / ring}, nranks, by_port, why)
    yield ""


def _of_latency(took: Sequence[float], latencies: Sequence[float], by_port: float) -> str:
    """A clause on latencies, if they are why ps over ring is not the ratio of their bytes.

    They are if both times are mostly latency, or if the times without latencies have that ratio.
    ``took``, ``latencies``: seconds of ps and of ring.
    """

    def is_near(server: float, ring: float) -> bool:
        return by_port / _NEAR < server / max(ring, 1e-12) < by_port * _NEAR

    shares = [latency / time for time, latency in zip(took, latencies, strict=True)]
    server, ring = (time - latency for time, latency in zip(took, latencies, strict=True))
    if is_near(*took) or not (min(shares) > _MOSTLY or is_near(server, ring)):
        return ""
    return (
        f"the difference is latency, {shares[0]:.0%} of the time of ps and {shares[1]:.0%} of that"
        " of ring"
    )


def _one_by_one(machine: Machine, nranks: int) -> list[str]:
    """A line on latencies that add up at a port, where no bursts of messages were measured."""
    used = [] if machine.classes is None else machine.classes.between(nranks)
    if all(machine.costs[i].burst is not None for i in used):
        return []
    return [
        "costs: no bursts measured, so messages of one step take their latencies one after the"
        " other at a port; in simulate these latencies overlap, and ps may take less"
    ]


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
    """A row per algorithm and size (without sizes, per algorithm), with the one-port bounds."""
    floor, what = bound(collective, nranks), spec(collective)
    bounds = None if predictor is None else predictor.one_port_bound(collective, nranks, sizes)
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
