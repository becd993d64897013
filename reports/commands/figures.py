"""``busbar reports plot``, ``warmup`` and ``html``: figures, and the page for the browser."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from busbar.commands import Command
from busbar.completion import run_files
from busbar.errors import ReportError
from busbar.files import FIGURE_FORMS, make_folder
from busbar.options import option
from reports.commands.output import MachineOptions, RunOptions, read_all, rows_of
from reports.readers.codec import step_measurements

if TYPE_CHECKING:
    from reports.figures.warmup import Settling
    from reports.records.measurement import Measurement


class PlotCommand(MachineOptions, RunOptions, Command):
    """Figures: busbw, latency, iterations, scaling, P x P heat maps, training steps."""

    out: Path | None = option(
        "-o --out PATH  folder (required), created if it is missing; or the file of a single"
        " figure (.png, .svg, .pdf)"
    )
    format: str = option("--format", "png", choices=FIGURE_FORMS)

    def run(self) -> int:
        """Write the figures and print their names."""
        from busbar.files import write_figure
        from reports.analysis.expect import parse_rate
        from reports.analysis.machine import read_machine
        from reports.figures.every import every_figure

        if self.out is None:
            raise ReportError("give --out DIR, the folder of the figures, as --out plots")
        limit = None if self.limit is None else parse_rate(self.limit)
        form = self.out.suffix.removeprefix(".")
        is_new = not self.out.is_dir()
        is_file = is_new and form in FIGURE_FORMS
        form = form if is_file else self.format
        if is_file and "format" in self.given and form != self.format:
            raise ReportError(f"{self.out}: its ending says {form}; leave --format out")
        if is_new and not is_file and (self.out.exists() or not self.out.parent.is_dir()):
            raise ReportError(f"{self.out}: is no folder, and none can be made there")
        machine = read_machine(self.topology) if self.topology else None
        records = [one for path in self.files for one in step_measurements(path)]
        pictures = every_figure(rows_of(self), records, form, limit, machine)
        if is_file and len(pictures) > 1:
            raise ReportError(
                f"{self.out}: there are {len(pictures)} figures, so --out names a folder: --out"
                f" {self.out.parent} --format {form}"
            )
        for name, data in pictures.items():
            target = self.out if is_file else self.out / f"{name}.{form}"
            if not is_file:
                make_folder(self.out)
            write_figure(target, data)
            print(target)
        return 0


class WarmupCommand(Command):
    """Verdicts on when rows became steady, and graphs of time against iteration."""

    files: tuple[Path, ...] = option(
        "RUN  Busbar's records (.jsonl)", nargs="+", completes=run_files
    )
    out: Path | None = option(
        "-o --out DIR  draw the graphs into this folder, created if it is missing"
    )
    format: str = option("--format", "png", choices=FIGURE_FORMS)

    def run(self) -> int:
        """Print one line per row, and the names of the figures."""
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
    """The measurements in a record file or a run directory. Raises ReportError."""
    from reports.readers.codec import measurements
    from reports.readers.text import record_texts

    try:
        return [one for text in record_texts(path) for one in measurements(text)]
    except ValueError as error:
        raise ReportError(f"{path}: not our records (.jsonl): {error}") from None


def _draw(folder: Path, form: str, path: Path, series: list[Settling]) -> None:
    from busbar.files import write_figure
    from reports.figures.warmup import PANELS, drawn

    make_folder(folder)
    for number, at in enumerate(range(0, len(series), PANELS), 1):
        target = folder / f"warmup-{path.name.split('.')[0]}-{number}.{form}"
        write_figure(target, drawn(series[at : at + PANELS], form))
        print(target)


class HtmlCommand(MachineOptions, RunOptions, Command):
    """One page for the browser, of one run or several."""

    out: Path = option("-o --out FILE  file of the page (.html)", required=True)
    title: str = option("--title  heading of the page", "")

    def run(self) -> int:
        """Write the page and print its name."""
        from busbar.files import write_figure
        from reports.analysis.expect import parse_rate
        from reports.analysis.launches import over_launches
        from reports.analysis.machine import read_machine
        from reports.page import page
        from reports.page.payload import MOST_ROWS
        from reports.records.table import folded

        if self.out.suffix not in (".html", ".htm"):
            raise ReportError(f"{self.out}: name the page with .html at its end")
        limit = None if self.limit is None else parse_rate(self.limit)
        machine = read_machine(self.topology) if self.topology else None
        files = read_all(self.files, self.ranks)
        steps = [one for path in self.files for one in step_measurements(path)]
        notes = [str(note) for reading in files for note in reading.notes]
        every, limit_note = sum(len(reading.rows) for reading in files), ""
        parts = [reading.rows for reading in files]
        if every > MOST_ROWS:
            parts = [folded(rows) for rows in parts]
            limit_note = (
                f"{every:,} rows: those that measured one thing are one, with all iterations"
            )
        rows = over_launches([row for part in parts for row in part])
        write_figure(self.out, page(rows, machine, limit, self.title, notes, steps, limit_note))
        print(self.out)
        return 0
