"""``python -m reports warmup``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from busbar.commands import Command
from busbar.errors import ReportError
from busbar.options import option
from reports.commands.output import make_folder

if TYPE_CHECKING:
    from reports.figures.warmup import Settling
    from reports.records.measurement import Measurement


class WarmupCommand(Command):
    """Verdicts on when rows became steady, and graphs of time against iteration."""

    files: tuple[Path, ...] = option("RUN  our records (.jsonl)", nargs="+")
    out: Path | None = option(
        "--out DIR  draw the graphs into this folder, created if it is missing"
    )
    format: str = option("--format", "png", choices=("png", "svg", "pdf"))

    def run(self) -> int:
        """Print a line a row, and the names of the figures."""
        from reports.figures.warmup import settlings

        for path in self.files:
            series = settlings(_measurements(path))
            if not series:
                raise ReportError(f"{path}: no row with iterations")
            wide = max(len(one.title) for one in series)
            for one in series:
                left = f", {one.left_out} left out" if one.left_out else ""
                sys.stdout.write(f"{one.title:<{wide}}  {one.verdict} of {len(one.times)}{left}\n")
            if self.out is not None:
                _draw(self.out, self.format, path, series)
        return 0


def _measurements(path: Path) -> list[Measurement]:
    """The whole measurements of a file or a run directory. Raises ReportError."""
    from reports.readers.codec import measurements
    from reports.readers.text import record_texts

    try:
        return [one for text in record_texts(path) for one in measurements(text)]
    except ValueError as error:
        raise ReportError(f"{path}: not our records (.jsonl): {error}") from None


def _draw(folder: Path, form: str, path: Path, series: list[Settling]) -> None:
    from busbar.files import write
    from reports.figures.warmup import PANELS, drawn

    make_folder(folder)
    for number, at in enumerate(range(0, len(series), PANELS), 1):
        target = folder / f"warmup-{path.name.split('.')[0]}-{number}.{form}"
        write(target, drawn(series[at : at + PANELS], form))
        print(target)
