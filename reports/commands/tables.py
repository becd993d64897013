"""``busbar reports show``, ``import`` and ``md``: rows as tables or in another format."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from busbar.arguments import Parser, program
from busbar.commands import Command
from busbar.completion import run_files
from busbar.errors import ReportError, Unsupported
from busbar.options import Self, option, switch
from busbar.terminal import make_printable, wrap_line
from reports.commands.compare import NoiseOptions, compared, rules_of
from reports.commands.output import (
    ExpectOptions,
    LogOptions,
    RuleOptions,
    RunOptions,
    ascii_only,
    check_ranks,
    console,
    expect,
    expectations_document,
    failed_runs,
    note,
    print_failures,
    print_notes,
    print_rules,
    print_table,
    read_noting,
    wanted,
)
from reports.readers.qualified import is_campaign, its_verdicts
from reports.readers.reading import ReadFiles, read_each
from reports.records.measurement import Measurement, Note, Reading


class ShowCommand(ExpectOptions, RuleOptions, RunOptions, Command):
    """Tables with intervals and distributions."""

    fit: Path | None = option(
        "--fit FILE  predictions and one-port bounds of this fit (busbar collectives fit)"
        " beside the times"
    )

    format: str = option(
        "--format  tables, all rows in another form (csv, json), or Markdown (md)",
        "table",
        choices=("table", "csv", "json", "md"),
    )

    quiet: bool = switch(
        "-q --quiet  of each file only the closing sentences; warnings go to standard error"
    )

    def run(self) -> int:
        """Print each file's tables.

        Returns 1 if a run failed or has wrong elements, or an expectation is missed; 2 if a file
        could not be read. Raises ReportError if none could.
        """
        return self._tables() if self.format == "table" else self._document()

    def _read(self) -> ReadFiles:
        """Read the files, and print notes and errors.

        Raises ReportError if no file can be read.
        """
        check_ranks(self.ranks)
        files = read_each(self.files, self.ranks)
        for one in files.errors if files.readings else files.errors[:-1]:
            note(str(one))
        if not files.readings:
            raise files.errors[-1]
        print_notes(files.readings, self.quiet, failed_runs(files.readings))
        for path in filter(is_campaign, files.paths):
            note(f"{path}: {its_verdicts(path)}")
        return files.having_rows()

    def _document(self) -> int:
        """Print the rows of all files as one text; with rules, as JSON which rows broke them.

        Raises ReportError for rules with another form.
        """
        from reports.analysis.launches import over_launches
        from reports.exports.formats import WRITERS
        from reports.tables.markdown import markdown

        selection = wanted(self)
        if selection.rules and self.format != "json":
            raise ReportError(f"--expect prints lines of its own; leave out --format {self.format}")
        paths, readings, errors = self._read()
        rows = [row for one in readings for row in one.rows]
        unread = max((one.exit_status for one in errors), default=0)
        if selection.rules:
            document = expectations_document(
                selection, over_launches(rows), [*readings, *map(_unread, errors)]
            )
            print(json.dumps(document, indent=1))
            return max(unread, int(not document["kept"]))
        if self.format == "md":
            sys.stdout.write(markdown(over_launches(rows)))
        else:
            sys.stdout.write(WRITERS[self.format](rows))
        return max(unread, print_failures(paths, readings, sys.stderr))

    def _tables(self) -> int:
        from reports.analysis.answer import conclusions, on_launches
        from reports.analysis.cautions import warnings_of
        from reports.analysis.launches import over_launches
        from reports.analysis.quality import checklist
        from reports.readers.codec import with_steps
        from reports.records.table import folded
        from reports.tables.scaling import answer, foreword
        from reports.tables.show import averages, files_table, tables

        selection = wanted(self)
        terminal, rows = console(), list[Measurement]()
        fit = None
        if self.fit is not None:
            from reports.analysis.predicted import beside, open_fit

            fit = open_fit(self.fit)
        paths, readings, errors = self._read()
        if len(readings) > 1 and not self.quiet:
            print_table(terminal, files_table(paths, readings))
        for path, reading in zip(paths, readings, strict=True):
            every = reading.rows
            together = with_steps(path, folded(every)) if path.is_file() else folded(every)
            shown = over_launches(together)
            rows += shown
            expected = () if fit is None else (beside(shown, fit),)
            if self.quiet:
                name = f"{path}: " if len(self.files) > 1 else ""
                for text in averages(shown) or conclusions(together):
                    print("\n".join(wrap_line(make_printable(name + text), terminal.width, 2)))
            else:
                named = len(self.files) > 1 or len({row.run.source for row in shown}) > 1
                for table in tables(shown, terminal.width, ascii_only(), named, *expected):
                    print_table(terminal, table)
                lines = answer(together, terminal.width) or foreword(together, terminal.width)
                if lines:
                    print("\n".join(lines))
            if len(shown) < len(every) and not self.quiet:
                note(
                    f"{path}: {len(every)} rows, shown as {len(shown)}: iterations of the same"
                    " together"
                )
            for warning in filter(None, [*warnings_of(together), on_launches(together)]):
                note(f"{path}: {warning}")
        if not self.quiet:
            print_rules(terminal, checklist(rows, limit=selection.limit), self)
        unread = max((one.exit_status for one in errors), default=0)
        if selection.rules:
            return max(unread, expect(selection, rows, [*readings, *map(_unread, errors)]))
        return max(unread, print_failures(paths, readings))


def _unread(error: ReportError) -> Reading:
    """A file that cannot be read, as the reading of a run that failed."""
    source, _, text = str(error).partition(": ")
    return Reading((), [Note(source, 0, text, broken=True)])


class ImportCommand(LogOptions, Command):
    """Read logs of nccl-tests, OSU, IMB or Busbar."""

    files: tuple[Path, ...] = option("FILE", nargs="+", completes=run_files)
    format: str = option("--format", "table", choices=("table", "csv", "json", "jsonl"))
    out: Path | None = option("-o --out FILE  write into this file: .csv, .json or .jsonl")

    def run(self) -> int:
        """Write the rows of all files in one format. Returns 2 if a file could not be read."""
        from reports.exports.formats import WRITERS

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


class MdCommand(NoiseOptions, LogOptions, Command):
    """Markdown for a pull request: a run, or NEW against BASE."""

    base: Path = option("RUN  the run, or the base when NEW is given")
    new: Path | None = option("NEW  the run to compare with the base", nargs="?")

    @classmethod
    def parse(cls, argv: Sequence[str], parser: Parser, **more: object) -> Self:
        """Parse the options. Raises Unsupported for several files a side."""
        parsed = parser.parse_mixed(argv, "beyond")
        if parsed.beyond:
            raise Unsupported(
                "md takes a run, or BASE and NEW; of several files a side"
                f" {program('reports compare')} A… -- B… --format md writes the same"
            )
        return cls.of(parsed, argv, **more)

    def run(self) -> int:
        """Print the tables."""
        from reports.analysis.launches import over_launches
        from reports.tables.markdown import comparison_markdown, markdown

        rows = read_noting(self.base, self.ranks).rows
        if self.new is None:
            sys.stdout.write(markdown(over_launches(rows)))
        else:
            new = read_noting(self.new, self.ranks).rows
            comparisons, differing, _ = compared(rows, new, self)
            rules = rules_of(rows, new, comparisons)
            sys.stdout.write(comparison_markdown(comparisons, differing, rules))
        return 0
