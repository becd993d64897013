"""The rank, GPU, node or link that is slow, with the evidence."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from busbar.errors import ReportError
from reports.commands.output import add_runs, console, note, rows_of

if TYPE_CHECKING:
    from reports.analysis.stragglers import Suspect


def add(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_runs(parser, "*", "records measured with --per-rank")
    text = "measured latencies and bandwidths: python -m topology measure -o FILE"
    parser.add_argument(
        "--matrix", action="append", default=[], type=Path, metavar="FILE", help=text
    )
    text = "differences up to this do not count (default 10%%)"
    parser.add_argument("--margin", default="10%", metavar="SHARE", help=text)
    parser.add_argument(
        "--fail", action="store_true", help="exit with status 1 when something is slow"
    )


def run(options: argparse.Namespace) -> int:
    """Print the stragglers; with ``--fail`` 1 when there is a sure one."""
    from reports.analysis.expect import parse_share
    from reports.analysis.machine import read_pairs
    from reports.analysis.stragglers import culprits

    margin = parse_share(options.margin)
    rows = rows_of(options)
    matrices = [pairs for path in options.matrix for pairs in read_pairs(path)]
    if not matrices and not any(r.per_rank_s for r in rows):
        raise ReportError(
            "no times of single ranks: measure with --per-rank, or give --matrix FILE"
        )
    found = culprits(rows, matrices, margin)
    _print(found.suspects)
    if not found.suspects:
        print("nobody stands out")
    for line in found.notes:
        note(line)
    return 1 if options.fail and any(s.sure for s in found.suspects) else 0


def _print(suspects: Sequence[Suspect]) -> None:
    from rich.padding import Padding
    from rich.text import Text

    terminal = console()
    for suspect in suspects:
        head = "CULPRIT" if suspect.sure else "perhaps"
        terminal.print(f"{head} {suspect.name}", style="bold", markup=False)
        for line in suspect.evidence:
            terminal.print(Padding(Text(line), (0, 0, 0, 2)))
