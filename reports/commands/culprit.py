"""``busbar reports culprit``: find slow ranks, GPUs, nodes and links."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from busbar.commands import Command
from busbar.errors import ReportError
from busbar.options import option, switch
from reports.commands.output import RunOptions, console, note, rows_of

if TYPE_CHECKING:
    from reports.analysis.stragglers import Suspect


class CulpritCommand(RunOptions, Command):
    """The rank, GPU, node or link that is slow, with the evidence."""

    files: tuple[Path, ...] = option("RUN  records measured with --per-rank", (), nargs="*")
    matrix: tuple[Path, ...] = option(
        "--matrix FILE  measured latencies and bandwidths: busbar topology measure -o FILE",
        (),
        action="append",
    )
    margin: str = option("--margin SHARE  differences up to this do not count", "10%")
    fail: bool = switch("--fail  exit with status 1 when something is slow")

    def run(self) -> int:
        """Print the stragglers. Returns 1 with ``--fail`` if one is certain."""
        from reports.analysis.expect import parse_share
        from reports.analysis.machine import read_pairs
        from reports.analysis.stragglers import culprits

        margin = parse_share(self.margin)
        rows = rows_of(self)
        matrices = [pairs for path in self.matrix for pairs in read_pairs(path)]
        if not matrices and not any(r.per_rank_s for r in rows):
            raise ReportError(
                "no times of single ranks: measure with --per-rank, or give --matrix FILE"
            )
        result = culprits(rows, matrices, margin)
        _print(result.suspects)
        if not result.suspects:
            print("nobody stands out")
        for line in result.notes:
            note(line)
        return 1 if self.fail and any(s.sure for s in result.suspects) else 0


def _print(suspects: Sequence[Suspect]) -> None:
    from rich.padding import Padding
    from rich.text import Text

    terminal = console()
    for suspect in suspects:
        head = "CULPRIT" if suspect.sure else "perhaps"
        terminal.print(f"{head} {suspect.name}", style="bold", markup=False)
        for line in suspect.evidence:
            terminal.print(Padding(Text(line), (0, 0, 0, 2)))
