"""Functions that commands share: options, reading, printing, expectations, the twelve rules.

Results go to stdout, notes to stderr.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

from busbar.completion import run_files
from busbar.errors import ReportError
from busbar.options import OptionGroup, option, switch
from busbar.status import BY_SIGNAL, TOTAL_OVER
from busbar.tables import new_table
from busbar.terminal import make_printable, open_console, print_note
from busbar.units import format_count
from reports.readers.reading import once, read
from reports.records.measurement import ENDED_EARLY, Measurement, Note, grouped

if TYPE_CHECKING:
    from rich.console import Console

    from busbar.tables import RenderedTable
    from reports.analysis.expect import Expectation
    from reports.analysis.quality import Rule
    from reports.records.measurement import Reading


_MOST_NOTES = 20
_FIGURE = re.compile(r"\d[\d.]*")


class LogOptions(OptionGroup):
    """How to read logs, for every command that does."""

    ranks: int | None = option("--ranks  rank count of a log that does not state it")


class RunOptions(LogOptions):
    """The files that a command reads, and how to read them."""

    files: tuple[Path, ...] = option(
        "RUN  a record, another benchmark's log, or a folder of records; - is standard input",
        (),
        lambda text: Path("/dev/stdin" if text == "-" else text),
        nargs="+",
        completes=run_files,
    )


def rows_of(options: RunOptions) -> list[Measurement]:
    """Read the rows of all files and print notes on stderr. Raises ReportError."""
    return [row for one in read_all(options.files, options.ranks) for row in one.rows]


class MachineOptions(OptionGroup):
    """What figures show in addition to the rows: a bound, and the machine."""

    limit: str | None = option(
        "--limit RATE  bound on busbw for rows that have none of their own, such as 480GB/s"
    )
    topology: tuple[Path, ...] = option(
        "--topology FILE  map of the machine, or its measured matrices: any file that busbar"
        " topology reads",
        (),
        action="append",
    )


def read_noting(path: Path, ranks: int | None) -> Reading:
    """Read a file and print its notes on stderr, see `read_all`. Raises ReportError."""
    (reading,) = read_all([path], ranks)
    return reading


def read_all(
    paths: Sequence[Path], ranks: int | None, base: int = 0, *, quiet: bool = False
) -> list[Reading]:
    """Read files and print their notes on stderr, at most twenty. Raises ReportError.

    A launch counts once (`once`); of a comparison, whose BASE are ``base`` files, once a side.
    Notes that differ in place and figures alone are one line: the first, and how many are like it.
    ``quiet``: see `print_notes`.
    """
    check_ranks(ranks)
    every = [read(path, ranks) for path in paths]
    readings = [*once(every[:base]), *once(every[base:])]
    print_notes(readings, quiet)
    return readings


def check_ranks(ranks: int | None) -> None:
    """Raise ReportError if ``--ranks`` is no number of ranks."""
    if ranks is not None and ranks < 1:
        raise ReportError(f"--ranks {ranks}: at least 1")


def print_notes(
    readings: Sequence[Reading],
    quiet: bool = False,
    failed: Sequence[Note] = (),
) -> None:
    """Print the notes of files on stderr, see `read_all`.

    ``quiet``: without those on what was inferred. ``failed``: notes that the command prints itself.
    """
    notes = [n for reading in readings for n in reading.notes if not (quiet and n.inferred)]
    notes = [one for one in notes if one not in failed]
    texts = [
        str(first) + (f" (and {len(others)} more like it)" if others else "")
        for first, *others in grouped(notes, lambda one: _FIGURE.sub("", one.text)).values()
    ]
    for text in texts[:_MOST_NOTES]:
        note(text)
    if len(texts) > _MOST_NOTES:
        note(f"{len(texts) - _MOST_NOTES} notes more")


def note(text: str) -> None:
    """Print a line on stderr, with the prefix ``reports:``."""
    print_note(text, "reports")


def console() -> Console:
    """A console as wide as the terminal, or as the variable ``COLUMNS`` says; 160 for a file."""
    known = sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdigit()
    width = None if known else 160
    return open_console(highlight=False, emoji=False, soft_wrap=False, width=width)


def print_table(screen: Console, shown: RenderedTable) -> None:
    """Print a table with its heading and footnote."""
    screen.print(shown.heading, style="bold", markup=False, soft_wrap=True)
    screen.print(shown.table, crop=False)
    if shown.footnote:
        screen.print(shown.footnote, style="dim", markup=False)
        screen.print()


def ascii_only() -> bool:
    """True if stdout cannot show block characters."""
    return not (sys.stdout.encoding or "ascii").lower().startswith("utf")


class Wanted(NamedTuple):
    """Rules, and the value of ``limit`` in them in bytes per second."""

    rules: Sequence[Expectation]
    limit: float | None


class ExpectOptions(OptionGroup):
    """The rules that rows are checked against."""

    expect: tuple[str, ...] = option(
        "--expect RULE  exit with status 1 when a row misses it: 'allreduce,>=64M: busbw >="
        " 0.8*limit'",
        (),
        action="append",
    )
    expect_file: Path | None = option("--expect-file FILE  a YAML file with such rules")
    limit: str | None = option("--limit RATE  the value of limit in rules, such as 480GB/s")


def wanted(options: ExpectOptions) -> Wanted:
    """Parse the rules in the options. Raises ReportError."""
    from reports.analysis.expect import from_file, parse_rate
    from reports.analysis.expect import parse_rule as parse

    rules, limit = [parse(text) for text in options.expect], None
    if options.expect_file is not None:
        more, limit = from_file(options.expect_file)
        rules += more
    if options.limit is not None:
        limit = parse_rate(options.limit)
    return Wanted(rules, limit)


def expectations_document(
    wanted: Wanted, rows: Sequence[Measurement], readings: Sequence[Reading]
) -> dict[str, Any]:
    """What `expect` prints, as a JSON document. ``kept``: False if `expect` would return 1."""
    from reports.analysis.expect import check

    broken = [str(one) for one in _unfit(readings)]
    failures = check(wanted.rules, rows, wanted.limit)
    names = ("collective", "algorithm", "transport", "ranks", "size", "dtype", "op", "placement")
    return {
        "rules": [rule.text for rule in wanted.rules],
        "kept": not failures and not broken,
        "failures": [
            {
                "text": failure.text,
                "nodes": failure.nodes,
                "row": failure.row and {name: getattr(failure.row, name) for name in names},
            }
            for failure in failures
        ],
        "broken": broken,
    }


def _unfit(readings: Sequence[Reading]) -> list[Note]:
    """Notes that keep a gate from passing: on a broken run, or on a row that was not read."""
    return [one for reading in readings for one in reading.notes if one.broken or one.lacks]


def broken_runs(readings: Sequence[Reading]) -> list[Note]:
    """For each source with broken notes (see `Note`), the first of them."""
    return _of_sources([one for reading in readings for one in reading.notes if one.broken])


def _of_sources(notes: Sequence[Note]) -> list[Note]:
    """The first note of each source."""
    return [first for first, *_ in grouped(notes, lambda one: one.source).values()]


def failed_runs(readings: Sequence[Reading]) -> list[Note]:
    """`broken_runs` without those that were told to stop early, which is no failure."""
    asked_for = tuple(f"{ENDED_EARLY}: {reason}" for reason in (BY_SIGNAL, TOTAL_OVER))
    return [one for one in broken_runs(readings) if not one.text.startswith(asked_for)]


def print_failures(
    paths: Sequence[Path], readings: Sequence[Reading], out: TextIO | None = None
) -> int:
    """Print the files whose run failed or has wrong elements. Returns 1 if there is one.

    A run that was told to stop early is no failure (Ctrl-C, --total); one that lost a rank is.
    """
    wrong = [sum(bool(row.wrong) for row in one.rows) for one in readings]
    for path, count in zip(paths, wrong, strict=True):
        if count:
            text = f"FAILED {path}: wrong elements in {format_count(count, 'row')}"
            print(make_printable(text), file=out)
    return _print_failed(failed_runs(readings), out) | int(any(wrong))


def print_broken(readings: Sequence[Reading], out: TextIO | None = None) -> int:
    """Print the sources whose run failed, or that have a row which could not be read.

    Of each source the first such note, that of a failed run before others. Returns 1 if there is
    one.
    """
    return _print_failed(_of_sources(sorted(_unfit(readings), key=lambda n: not n.broken)), out)


def _print_failed(failed: Sequence[Note], out: TextIO | None = None) -> int:
    for one in failed:
        print(make_printable(f"FAILED {one}"), file=out)
    return int(bool(failed))


def expect(wanted: Wanted, rows: Sequence[Measurement], readings: Sequence[Reading]) -> int:
    """Check rows against the rules and print failures by node.

    Returns 1 if any rule is broken, or if the run of any of ``readings`` did not end well.
    """
    from reports.analysis.expect import check

    if not wanted.rules:
        return 0
    broken = print_broken(readings)
    failures = check(wanted.rules, rows, wanted.limit)
    for failure in (f for f in failures if f.row is None):
        print(f"FAILED {failure.text}")
    for node in dict.fromkeys(f.nodes for f in failures if f.row):
        mine = [f for f in failures if f.row and f.nodes == node]
        print(f"FAILED on {node}:")
        for failure in mine:
            print(f"  {failure.text}")
        _who([f.row for f in mine if f.row])
    if not failures and not broken:
        count = format_count(len(wanted.rules), "expectation")
        print(f"{count} kept" if len(wanted.rules) == 1 else f"all {count} kept")
    return 1 if failures or broken else 0


def _who(rows: Sequence[Measurement]) -> None:
    """Print which rank or node is slow, if the ranks' own times show it."""
    if any(r.per_rank_s for r in rows):
        from reports.analysis.stragglers import culprits

        for suspect in culprits(list({id(r): r for r in rows}.values())).suspects:
            if suspect.sure:
                print(f"  slow there: {suspect.name}: {suspect.evidence[0]}")


class RuleOptions(OptionGroup):
    """Whether the rules are printed."""

    rules: bool = switch(
        "--rules  print Hoefler and Belli's twelve rules, each with its verdict and the reason"
    )


def print_rules(terminal: Console, rules: Sequence[Rule], options: RuleOptions) -> None:
    """With ``--rules`` print the verdicts on the rules, and the reasons, as a table."""
    if not options.rules:
        return
    from rich.markup import escape

    table = new_table("", padding=(0, 1, 0, 0))
    table.add_column("", justify="right")
    table.add_column("rule of Hoefler and Belli (SC'15)", ratio=1)
    table.add_column("verdict", no_wrap=True)
    table.add_column("why", ratio=1)
    for rule in rules:
        table.add_row(str(rule.number), escape(rule.title), rule.state, escape(rule.why))
    terminal.print(table)
