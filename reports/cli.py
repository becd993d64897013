"""The command line of reports: from arguments to an exit status. Only this file prints."""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from reports.errors import ReportError
from reports.readers.rows import Reading, Row
from reports.reading import read

if TYPE_CHECKING:
    from rich.console import Console

    from reports.compare import Comparison
    from reports.show import Shown

__all__ = ["main"]

_MOST_NOTES = 20


def main(argv: Sequence[str]) -> int:
    """Run a command; 0 well, 1 a threshold was not kept, 2 a file or an option cannot be used."""
    options = _parser().parse_args(argv)
    if isinstance(sys.stdout, io.TextIOWrapper):  # a terminal without UTF-8 gets a mark, no crash
        sys.stdout.reconfigure(errors="replace")
    command: Callable[[argparse.Namespace], int] = options.run
    try:
        return command(options)
    except ReportError as error:
        _note(str(error))
        return error.exit_status
    except BrokenPipeError:  # the reader of our output has gone, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m reports", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(
        name: str, run: Callable[[argparse.Namespace], int], text: str
    ) -> argparse.ArgumentParser:
        made = commands.add_parser(name, help=text, description=text)
        made.set_defaults(run=run)
        made.add_argument("--ranks", type=int, help="rank count, where a log does not say")
        return made

    one = command("import", _import, "read logs of nccl-tests, OSU, IMB or Busbar")
    one.add_argument("files", nargs="+", type=Path, metavar="FILE")
    one.add_argument("--format", choices=("table", "csv", "json", "jsonl"), default="table")
    one.add_argument("--out", type=Path, help="write here; its ending says .csv, .json or .jsonl")
    one = command("show", _show, "tables with intervals and distributions")
    one.add_argument("files", nargs="+", type=Path, metavar="RUN")
    _add_expect(one)
    one = command("compare", _compare, "NEW against BASE: faster, slower or indistinguishable")
    one.add_argument("base", type=Path, metavar="BASE")
    one.add_argument("new", type=Path, metavar="NEW")
    text = "exit 1 when a row is slower by more than this, such as 5%%"
    one.add_argument("--fail-slower", metavar="SHARE", help=text)
    text = "least difference that counts (default 1%%)"
    one.add_argument("--noise", default="1%", metavar="SHARE", help=text)
    text = "compare although machine or mapping differ"
    one.add_argument("--anyway", action="store_true", help=text)
    _add_expect(one)
    one = command("plot", _plot, "figures: busbw, latency, distribution of iterations")
    one.add_argument("run_", type=Path, metavar="RUN")
    one.add_argument("--out", type=Path, default=Path(), metavar="DIR", help="folder (default .)")
    one.add_argument("--format", choices=("png", "svg", "pdf"), default="png")
    one.add_argument("--limit", metavar="RATE", help="bound to draw, such as 480GB/s")
    one = command("md", _md, "Markdown tables for a pull request")
    one.add_argument("run_", type=Path, metavar="RUN")
    return parser


def _add_expect(parser: argparse.ArgumentParser) -> None:
    text = "threshold, such as 'allreduce,>=64M: busbw >= 0.8*limit'; exit 1 when it is not kept"
    parser.add_argument("--expect", action="append", default=[], metavar="RULE", help=text)
    text = "a YAML file with such rules"
    parser.add_argument("--expect-file", type=Path, metavar="FILE", help=text)
    text = "what limit stands for in rules, such as 480GB/s"
    parser.add_argument("--limit", metavar="RATE", help=text)


def _note(text: str) -> None:
    print(f"reports: {text}", file=sys.stderr)


def _console() -> Console:
    from rich.console import Console

    return Console(highlight=False, emoji=False, soft_wrap=False)


def _print(console: Console, shown: Shown) -> None:
    console.print(shown.heading, style="bold", markup=False, soft_wrap=True)
    console.print(shown.table)
    if shown.footnote:
        console.print(shown.footnote, style="dim", markup=False)
        console.print()


def _ascii_only() -> bool:
    return not (sys.stdout.encoding or "ascii").lower().startswith("utf")


def _read(path: Path, ranks: int | None) -> Reading:
    """A file with its notes said on stderr, the first twenty of them."""
    if ranks is not None and ranks < 1:
        raise ReportError(f"--ranks {ranks}: at least 1")
    found = read(path, ranks)
    for note in found.notes[:_MOST_NOTES]:
        _note(str(note))
    if len(found.notes) > _MOST_NOTES:
        _note(f"{path}: {len(found.notes) - _MOST_NOTES} notes more")
    return found


def _import(options: argparse.Namespace) -> int:
    from reports.imported import WRITERS

    form = options.format
    if options.out is not None:
        form = options.out.suffix.removeprefix(".")
        if form not in WRITERS:
            raise ReportError(
                f"{options.out}: no format for that ending; use .csv, .json or .jsonl"
            )
    status, rows = 0, list[Row]()
    for path in options.files:
        try:
            found = _read(path, options.ranks)
        except ReportError as error:  # the other files are still worth reading
            _note(str(error))
            status = error.exit_status
            continue
        rows += found.rows
        if form == "table":
            from reports.show import import_table

            console = _console()
            _print(console, import_table(found.rows, console.width, _ascii_only()))
    if form in WRITERS and rows:
        data = WRITERS[form](rows)
        if options.out is None:
            sys.stdout.write(data)
        else:
            from reports.files import write

            write(options.out, data.encode())
    return status


def _show(options: argparse.Namespace) -> int:
    from reports.folding import folded
    from reports.show import tables, warnings_of

    console, rows = _console(), list[Row]()
    for path in options.files:
        every = _read(path, options.ranks).rows
        found = folded(every)
        rows += found
        for table in tables(found, console.width, _ascii_only()):
            _print(console, table)
        if len(found) < len(every):
            _note(
                f"{path}: {len(every)} rows, shown as {len(found)}: iterations of the same together"
            )
        for warning in warnings_of(found):
            _note(f"{path}: {warning}")
    return _expect(options, rows)


def _expect(options: argparse.Namespace, rows: Sequence[Row]) -> int:
    """Hold rows against the rules; 1 when one is not kept, with what failed, by node."""
    from reports.expect import check, from_file, parse, parse_rate

    rules, limit = [parse(text) for text in options.expect], None
    if options.expect_file is not None:
        more, limit = from_file(options.expect_file)
        rules += more
    if options.limit is not None:
        limit = parse_rate(options.limit)
    if not rules:
        return 0
    failures = check(rules, rows, limit)
    nodes = dict.fromkeys(f.nodes for f in failures if f.row)
    for failure in (f for f in failures if f.row is None):
        print(f"FAILED {failure.text}")
    for node in nodes:
        print(f"FAILED on {node}:")
        for failure in (f for f in failures if f.row and f.nodes == node):
            print(f"  {failure.text}")
    if not failures:
        print(f"all {len(rules)} expectations kept")
    return 1 if failures else 0


def _compare(options: argparse.Namespace) -> int:
    from reports.compare import compare, differences, join
    from reports.expect import parse_share
    from reports.show import comparison_tables

    noise = parse_share(options.noise)
    fail = None if options.fail_slower is None else parse_share(options.fail_slower)
    base, new = _read(options.base, options.ranks), _read(options.new, options.ranks)
    found = differences(base.rows, new.rows)
    forbidding = [d for d in found if d.forbids]
    if forbidding and not options.anyway:
        what = "; ".join(map(str, forbidding))
        raise ReportError(f"BASE and NEW are not the same setting: {what} (--anyway compares them)")
    for difference in found:
        _note(f"differs: {difference}")
    joined, lost, added = join(base.rows, new.rows)
    for rows, name in ((lost, "BASE"), (added, "NEW")):
        if rows:
            _note(f"{len(rows)} rows are only in {name}")
    comparisons = compare(joined, noise)
    console = _console()
    for shown in comparison_tables(comparisons, console.width, _ascii_only()):
        _print(console, shown)
    words = [c.word for c in comparisons]
    kinds = ("faster", "slower", "indistinguishable", "untested")
    print(", ".join(f"{words.count(k)} {k}" for k in kinds if k in words))
    if "untested" in words:
        _note("untested: single figures have no interval; keep raw times to have a test")
    return max(_gate(comparisons, fail), _expect(options, new.rows))


def _gate(comparisons: Sequence[Comparison], fail: float | None) -> int:
    """1 when a row is past ``--fail-slower`` or has wrong elements; without the option, 0."""
    if fail is None:
        return 0
    slow = [c for c in comparisons if c.word in ("slower", "untested") and c.ratio > 1 + fail]
    wrong = [c for c in comparisons if c.row.new.wrong]
    if slow:
        print(f"FAILED: {len(slow)} rows are slower by more than {100 * fail:g}%")
    if wrong:
        print(f"FAILED: {len(wrong)} rows of NEW have wrong elements")
    return 1 if slow or wrong else 0


def _plot(options: argparse.Namespace) -> int:
    from reports.expect import parse_rate
    from reports.files import write
    from reports.plot import figures

    limit = None if options.limit is None else parse_rate(options.limit)
    rows = _read(options.run_, options.ranks).rows
    if not options.out.is_dir():
        raise ReportError(f"{options.out}: there is no such folder")
    for name, data in figures(rows, options.format, limit).items():
        target = options.out / f"{name}.{options.format}"
        write(target, data)
        print(target)
    return 0


def _md(options: argparse.Namespace) -> int:
    from reports.markdown import markdown

    sys.stdout.write(markdown(_read(options.run_, options.ranks).rows))
    return 0
