"""``cost``: the costs of schedules beside the lower bounds, and their predicted times."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from busbar.commands import Command
from busbar.errors import Unsupported
from busbar.options import option, redefine
from busbar.tables import new_table
from busbar.units import format_digits, parse_size, sweep_sizes
from collectives.commands.command import SchedulesOptions, one, pairs, show
from collectives.formats.load import from_file
from collectives.schedule.bounds import bound

if TYPE_CHECKING:
    from rich.table import Table

    from collectives.predict.compare import Contender
    from collectives.predict.interface import CollectivePredictor

_MOST_RANKS = 1 << 20
_MOST_SIZES = 256
FORMATS = ("table", "csv", "json")


class CostCommand(SchedulesOptions, Command):
    """Steps, bytes, additions and predicted time beside the lower bounds."""

    name: str = redefine(SchedulesOptions, "name", "all", nargs="?")
    ranks: str = option(f"-n --ranks  rank count, up to {_MOST_RANKS}", "8")
    minbytes: str | None = option("-b --minbytes SIZE  smallest size to predict (default 1M)")
    maxbytes: str | None = option("-e --maxbytes SIZE  largest size to predict (default 1G)")
    stepfactor: float | None = option("-f --stepfactor F  factor between sizes (default 2)")
    topology: tuple[str, ...] | None = option(
        "--topology FILE  map of the machine: any file that python -m topology --from reads; may be"
        " repeated",
        action="append",
    )
    fit: Path | None = option("--fit FILE  costs of its links (python -m collectives fit)")
    format: str = option("--format", "table", choices=FORMATS)

    def run(self) -> int:
        """Print the tables."""
        from collectives.predict import compare as model

        options, name, given = self.algorithm()
        nranks, sizes = one(options.ranks, _MOST_RANKS), _sizes(options)
        predictor: CollectivePredictor | None = None
        notes: Sequence[str] = ()
        if sizes:
            from collectives.predict.maps import load_machine
            from collectives.predict.predictor import choose_predictor

            machine = load_machine(options.topology, options.fit, nranks)
            predictor, notes = choose_predictor(machine), machine.notes
        groups: dict[str, list[str]] = {}
        for collective, each in pairs(options, name):
            groups.setdefault(collective, []).append(each)
        shown: list[object] = []
        rows: list[dict[str, object]] = []
        for collective, names in groups.items():
            contenders, refused = model.compare_algorithms(
                collective,
                names,
                nranks,
                root=options.root,
                predictor=predictor,
                sizes=sizes,
                parameters=given,
                strict=name != "all" and len(groups) == 1,
            )
            for reason in refused.values():
                print(f"collectives: {collective}: {reason}", file=sys.stderr)
            if options.format == "table":
                shown += [_counts(collective, nranks, contenders, refused)]
                if predictor is not None and contenders:
                    from collectives.commands.predicted import tables

                    shown += tables(collective, nranks, contenders, predictor, sizes)
            else:
                from collectives.commands.predicted import records

                rows += records(collective, nranks, contenders, predictor, sizes)
        if options.format == "table":
            show(*shown, *_LEGEND, *notes)
        else:
            from collectives.commands.predicted import written

            sys.stdout.write(written(rows, notes, options.format))
        return 0


def _sizes(options: CostCommand) -> list[int]:
    """The sizes to predict; none where nothing asks for a prediction."""
    ends = (options.minbytes, options.maxbytes, options.stepfactor, options.topology, options.fit)
    if all(end is None for end in ends):
        return []
    low, high = (
        parse_size(text or default)
        for text, default in ((options.minbytes, "1M"), (options.maxbytes, "1G"))
    )
    if options.minbytes is not None and options.maxbytes is None:
        high = max(low, high)
    if options.maxbytes is not None and options.minbytes is None:
        low = min(low, high)
    if low < 1:
        raise Unsupported(f"-b {options.minbytes}: at least 1 byte")
    sizes = sweep_sizes(low, high, factor=options.stepfactor, step=None)
    if len(sizes) > _MOST_SIZES:
        raise Unsupported(f"{len(sizes)} sizes; at most {_MOST_SIZES}, give a greater -f")
    return sizes


_LEGEND = (
    "Volumes are in units of the collective's own total n. rounds: messages in a",
    "row when a port carries one at a time each way; out, in, reductions: the",
    "busiest rank's. Lower bounds: Chan et al. 2007, for such ports.",
)


def _counts(
    collective: str,
    nranks: int,
    contenders: Sequence[Contender],
    refused: Sequence[str] | dict[str, str],
) -> Table:
    """Steps and volumes, with the lower bounds where there are any."""
    columns = ("steps", "rounds", "total", "out", "in", "reductions")
    table = new_table(f"{collective} on {nranks} ranks", "algorithm", *columns)
    least = bound(collective, nranks)
    if least is not None:
        volumes = (
            "-" if v is None else format_digits(v, ".4g")
            for v in (least.out, least.into, least.reduced)
        )
        table.add_row("lower bound", "", str(least.rounds), "", *volumes, end_section=True)
    for each in contenders:
        c = each.cost
        volumes = (format_digits(v, ".4g") for v in (c.total, c.out, c.into, c.reduced))
        label = Path(each.name).name if from_file(each.name) else each.name
        table.add_row(label, str(c.steps), str(c.rounds), *volumes)
    for name in refused:
        table.add_row(name, "-", *[""] * 5)
    return table


def _number(value: float) -> str:
    return f"{value:.4g}"
