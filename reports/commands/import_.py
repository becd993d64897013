"""``python -m reports import``."""

from __future__ import annotations

import sys
from pathlib import Path

from busbar.commands import Command
from busbar.errors import ReportError
from busbar.options import option
from reports.commands.output import LogOptions, console, note, print_table, read_noting
from reports.records.measurement import Measurement


class ImportCommand(LogOptions, Command):
    """Read logs of nccl-tests, OSU, IMB or Busbar."""

    files: tuple[Path, ...] = option("FILE", nargs="+")
    format: str = option("--format", "table", choices=("table", "csv", "json", "jsonl"))
    out: Path | None = option("--out  write into this file: .csv, .json or .jsonl")

    def run(self) -> int:
        """The rows of all files in one form; 2 when a file had none, after reading the others."""
        from reports.exports.imported import WRITERS

        form = self.format
        if self.out is not None:
            form = self.out.suffix.removeprefix(".")
            if form not in WRITERS:
                raise ReportError(
                    f"{self.out}: no format for that ending; use .csv, .json or .jsonl"
                )
        status, rows = 0, list[Measurement]()
        for path in self.files:
            try:
                reading = read_noting(path, self.ranks)
            except ReportError as error:  # the other files are still worth reading
                note(str(error))
                status = error.exit_status
                continue
            rows += reading.rows
            if form == "table":
                from reports.tables.show import import_table

                terminal = console()
                print_table(terminal, import_table(reading.rows, terminal.width))
        if form in WRITERS and rows:
            data = WRITERS[form](rows)
            if self.out is None:
                sys.stdout.write(data)
            else:
                from busbar.files import write

                write(self.out, data.encode())
        return status
