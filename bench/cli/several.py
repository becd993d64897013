"""``--ranks 2,4,8``: a launch for each rank count, one after the other, and who wins where."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.launch.launch import launched, run_of_its_own
from bench.run.layout import report_width
from bench.run.screen import Screen
from busbar.errors import ReportError, Unsupported
from busbar.status import CLOSED, MISSING
from reports.readers.reading import read
from reports.tables.winners import winners_map

#: What ends all launches: nothing can be started, or nobody reads the results any more.
_FINAL = (MISSING, CLOSED)


def several(module: Sequence[str], argv: Sequence[str], counts: Sequence[int]) -> int:
    """Run ``python -m`` module with these arguments on every rank count; gives the exit status.

    A launch that fails does not keep the others from running: the status is the greatest of theirs.
    A signal ends the launch under way, which reports what it has, and the rest; what was measured
    is shown, and the status is the signal's. Raises Unsupported under a launcher.
    """
    if launched() is not None:
        raise Unsupported(
            f"--ranks {','.join(map(str, counts))} starts launches of its own; run it without "
            f"mpirun"
        )
    worst = 0
    with TemporaryDirectory(prefix="busbar-") as folder:
        rows = Path(folder) / "rows.jsonl"
        for number, ranks in enumerate(counts, 1):
            what = "1 rank" if ranks == 1 else f"{ranks} ranks"
            print(f"busbar: {what}, launch {number} of {len(counts)}", file=sys.stderr, flush=True)
            more = ["--out", str(rows), "--after", str(rows)]
            ended = run_of_its_own(module, ranks, [*argv, *more])
            worst = 128 + ended.interrupted if ended.interrupted else max(worst, ended.status)
            if ended.interrupted or ended.status in _FINAL:
                break
        Screen(0).lines(_closing(rows))
    return worst


def _closing(rows: Path) -> list[str]:
    """The map of what was measured; nothing where no launch came to a row."""
    try:
        found = read(rows).rows
    except ReportError:
        return []
    return [
        line
        for one in winners_map(found, report_width() - len("# "))
        for line in ("#", *(f"# {w}" for w in one))
    ]
