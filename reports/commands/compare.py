"""``busbar reports compare``, ``history`` and ``scaling``: commands on several runs."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from busbar.arguments import Parser, program
from busbar.commands import Command
from busbar.completion import run_files
from busbar.errors import ReportError
from busbar.options import OptionGroup, Self, option, switch
from busbar.tables import new_table
from busbar.terminal import wrap_line
from busbar.units import agreeing, format_change, format_count, format_part
from reports.commands.output import (
    ExpectOptions,
    LogOptions,
    RuleOptions,
    RunOptions,
    ascii_only,
    console,
    expect,
    expectations_document,
    note,
    print_broken,
    print_rules,
    print_table,
    read_all,
    rows_of,
    wanted,
)
from reports.readers.qualified import (
    Qualified,
    in_order,
    is_campaign,
    is_qualified,
    its_verdicts,
    read_verdicts,
)

if TYPE_CHECKING:
    from reports.analysis.compare import Comparison, Difference, Ignored
    from reports.analysis.history import History
    from reports.analysis.quality import Rule
    from reports.records.measurement import Measurement, Reading


#: Stands for the word ``--`` in `sides`: argparse would drop ``--``. No file name contains a NUL.
AGAINST = "\0--"


class NoiseOptions(OptionGroup):
    """How two runs are compared."""

    noise: str = option("--noise SHARE  differences up to this do not count", "1%")
    anyway: bool = switch("--anyway  compare even if machine or mapping differ")


class GateOptions(OptionGroup):
    """What a gate does about rows on which too little was measured."""

    fail_unjudged: bool = switch(
        "--fail-unjudged  exit with status 1 when too little was measured to judge a row"
    )

    def unjudged(self, rows: int, of: int, why: str) -> str:
        """The line of a gate on ``rows`` that it does not judge; empty without such rows."""
        text = format_part(rows, of, "row", why)
        if self.fail_unjudged:
            return f"FAILED: {text}" * bool(rows)
        return f"not judged: {text}; --fail-unjudged fails such rows" * bool(rows)


class CompareCommand(ExpectOptions, RuleOptions, GateOptions, NoiseOptions, LogOptions, Command):
    """NEW against BASE: faster, slower or indistinguishable."""

    USAGE = "%(prog)s BASE NEW [options]\n       %(prog)s BASE… -- NEW… [options]"

    files: tuple[str, ...] = option(
        "RUN  a run, or a folder of records or logs, for each side; -- between several launches a"
        " side",
        nargs="+",
        completes=run_files,
    )
    fail_slower: str | None = option(
        "--fail-slower SHARE  exit with status 1 when a row is slower by more than this, such as"
        " 5%, or when BASE has rows that NEW lacks"
    )
    ignore: str = option(
        "--ignore LIST  compare rows that differ in this: algorithm, transport, or both with a"
        " comma between; a side has one of each",
        "",
    )
    format: str = option("--format", "table", choices=("table", "md", "json"))
    fail_missing: bool = switch(
        "--fail-missing  exit with status 1 when BASE has rows that NEW lacks, however slow others"
        " are",
        alternatives="missing",
    )
    allow_missing: bool = switch(
        "--allow-missing  with --fail-slower or --fail-unjudged: NEW may lack rows of BASE",
        alternatives="missing",
    )
    quiet: bool = switch(
        "-q --quiet  print the line with the verdict alone, and lines of gates that FAILED",
        alternatives="text",
    )
    details: bool = switch(
        "--details  also what is known of the rows: what disturbed them, which are unstable, core"
        " clocks",
        alternatives="text",
    )

    @classmethod
    def parse(cls, argv: Sequence[str], parser: Parser, **more: object) -> Self:
        """Parse the options. Files may also follow an option, and ``--`` may separate files."""
        words = [AGAINST if word == "--" else word for word in argv]
        return cls.of(parser.parse_mixed(words, "files"), argv, **more)

    def run(self) -> int:
        """Print the comparison. Returns 1 if a ``--fail`` option or an expectation demands it."""
        from reports.analysis.compare import CANNOT_TELL, parse_ignored
        from reports.analysis.expect import parse_share
        from reports.analysis.launches import over_launches
        from reports.readers.codec import with_steps
        from reports.tables.comparison import comparison_document

        selection = wanted(self)
        fail = None if self.fail_slower is None else parse_share(self.fail_slower)
        left, right = sides(self.files)
        _refuse_some_campaigns([*left, *right])
        readings = read_all([*left, *right], self.ranks, len(left), quiet=self.quiet)
        known = list(map(with_steps, [*left, *right], (one.rows for one in readings)))
        base, new = (
            [row for rows in side for row in rows]
            for side in (known[: len(left)], known[len(left) :])
        )
        ignore = parse_ignored(self.ignore) if self.ignore else ()
        comparisons, differing, lost = compared(base, new, self, ignore, quiet=self.quiet)
        rules = rules_of(base, new, comparisons, selection.limit)
        # Before the table, so that the answer is the last line on a terminal.
        if not self.quiet:
            self._note(comparisons, base, new)
        if self.format == "md":
            from reports.tables.markdown import comparison_markdown

            sys.stdout.write(comparison_markdown(comparisons, differing, rules))
        elif self.format == "table":
            _print(comparisons, rules, self)
        untold = sum(c.word == CANNOT_TELL for c in comparisons)
        failed = _failed(comparisons, fail, new)
        unjudged = ""
        if gated := fail is not None or self.fail_missing or self.fail_unjudged:
            if not failed or untold < len(comparisons):  # else a failure says so
                unjudged = self.unjudged(untold, len(comparisons), CANNOT_TELL)
            failed = [*self._missing(lost), *failed]
            failed += filter(None, [unjudged] if self.fail_unjudged else [])
        if self.format == "json":
            expected = expectations_document(selection, over_launches(new), readings)
            document = {
                **comparison_document(comparisons, differing),
                "only_in_base": lost,
                "unjudged": untold,
                "failed": [line.removeprefix("FAILED: ") for line in failed],
                "expectations": expected,
            }
            print(json.dumps(document, indent=1))
            missed = bool(selection.rules and not expected["kept"])
            return int(bool(failed) or missed or bool(gated and expected["broken"]))
        broken = print_broken(readings) if gated and not selection.rules else 0
        if unjudged and not self.fail_unjudged:
            print(unjudged)
        for line in failed:
            print(line)
        return max(int(bool(failed)), broken, expect(selection, over_launches(new), readings))

    def _missing(self, rows: int) -> list[str]:
        """The line of a gate on ``rows`` of BASE that NEW lacks, unless that is allowed."""
        if not rows or self.allow_missing:
            return []
        way_out = "" if self.fail_missing else "; --allow-missing accepts that"
        lost = f"{format_count(rows, 'row')} of BASE {agreeing(rows, 'are')}"
        return [f"FAILED: {lost} missing in NEW{way_out}"]

    def _note(
        self,
        comparisons: Sequence[Comparison],
        base: Sequence[Measurement],
        new: Sequence[Measurement],
    ) -> None:
        """Print on stderr what must be known of both sides; with ``--details`` all that is known.

        Without ``--details`` a line counts the other texts.
        """
        from reports.analysis.cautions import far_off, limiting, warnings_of, wrong_elements
        from reports.tables.comparison import clocks, warnings_by_side

        if any(c.word == "untested" for c in comparisons):
            rows = [r for r in [*base, *new] if r.time_s]
            raw = bool(rows) and all(r.times_s for r in rows)
            how = f"measure more iterations (raise {limiting(rows)})" if raw else "keep raw times"
            gated = self.fail_slower is not None
            gate = "" if gated else "; --fail-slower 5% fails such rows if slower by more"
            note(f"untested: single figures have no interval; {how} to have a test{gate}")
        sides = ([wrong_elements(side), far_off(side)] for side in (base, new))
        needed = warnings_by_side(*(list(filter(None, texts)) for texts in sides))
        known = warnings_by_side(warnings_of(base), warnings_of(new))
        for text in known if self.details else needed:
            note(text)
        more = len(known) - len(needed) + bool(clocks(comparisons))
        if more and not self.details:
            note(f"{format_count(more, 'note')} on the rows and the machine: --details")


def compared(
    base: Sequence[Measurement],
    new: Sequence[Measurement],
    options: NoiseOptions,
    ignore: Sequence[Ignored] = (),
    *,
    quiet: bool = False,
) -> tuple[list[Comparison], list[Difference], int]:
    """As `reports.analysis.compare.compare_runs`; prints the notes on stderr, unless ``quiet``."""
    from reports.analysis.compare import compare_runs
    from reports.analysis.expect import parse_share

    anyway = "" if options.anyway else "--anyway"
    tell = (lambda text: None) if quiet else note
    return compare_runs(base, new, parse_share(options.noise), anyway, tell, ignore)


def sides(words: Sequence[str]) -> tuple[list[Path], list[Path]]:
    """The files of BASE and of NEW: two files, or those on either side of ``--`` (`AGAINST`).

    Raises ReportError for anything else, and if a file is given twice on a side, because it would
    count as two launches.
    """
    parts: list[list[Path]] = [[]]
    for word in words:
        if word == AGAINST:
            parts.append([])
        else:
            parts[-1].append(Path(word))
    groups = parts if len(parts) > 1 else [[path] for path in parts[0]]
    if len(groups) != 2 or not all(groups):
        raise ReportError(
            "give BASE and NEW, or several files a side: compare a*.jsonl -- b*.jsonl"
        )
    for side in groups:
        for n, path in enumerate(side):
            if any(os.path.realpath(path) == os.path.realpath(one) for one in side[:n]):
                raise ReportError(f"{path} is given twice on one side")
    return groups[0], groups[1]


def rules_of(
    base: Sequence[Measurement],
    new: Sequence[Measurement],
    comparisons: Sequence[Comparison],
    limit: float | None = None,
) -> tuple[Rule, ...]:
    """The verdicts on the twelve rules for a comparison."""
    from reports.analysis.quality import checklist

    return checklist([*base, *new], limit=limit, words=[c.word for c in comparisons])


def _print(
    comparisons: Sequence[Comparison],
    rules: Sequence[Rule],
    options: CompareCommand,
) -> None:
    from reports.tables.comparison import asides, clocks, comparison_tables, unjudged, verdict

    terminal = console()
    if not options.quiet:
        for shown in comparison_tables(comparisons, terminal.width):
            print_table(terminal, shown)
        details = [clocks(comparisons)] if options.details else []
        for text in filter(None, (*asides(comparisons), unjudged(comparisons), *details)):
            print("\n".join(wrap_line(text, terminal.width, 0)))
    print_rules(terminal, rules, options)
    print("\n".join(wrap_line(verdict(comparisons), terminal.width, 2)))


def _failed(
    comparisons: Sequence[Comparison], fail: float | None, new: Sequence[Measurement]
) -> list[str]:
    """Lines on rows that are slower than ``--fail-slower`` allows, and on wrong elements of NEW."""
    lines = list[str]()
    if fail is None:
        return lines
    slow = [c for c in comparisons if c.ratio > 1 + fail and c.may_be_slower]
    wrong = [r for r in new if r.wrong]  # of all launches, and also those that BASE lacks
    if slow:
        untold = sum(c.word == "cannot tell" for c in slow)
        launches = "one launch a side" if all(c.p is None for c in slow) else "so few launches"
        if any(c.row.moved for c in slow):
            launches = "one launch beside other programs"
        but = f"; {launches} cannot tell {untold} of them from chance" if untold else ""
        lines.append(f"FAILED: {_slower(len(slow), fail)}{but}")
    # Rows of one launch are judged by the intervals of iterations, unless all of them moved.
    unjudged = [
        c
        for c in comparisons
        if c.word == "cannot tell" and (c.row.moved or min(map(len, c.row.sides)) > 1)
    ]
    if comparisons and not slow and len(unjudged) == len(comparisons):
        lines.append(f"FAILED: none of {format_count(len(comparisons), 'row')} could be judged")
    if wrong:
        lines.append(f"FAILED: NEW has wrong elements in {format_count(len(wrong), 'row')}")
    return lines


def _slower(rows: int, share: float) -> str:
    words = agreeing(rows, f"are slower by more than {100 * share:g}%")
    return f"{format_count(rows, 'row')} {words}"


# Number of latest campaigns that are shown as columns.
_CAMPAIGNS = 4
# A single run that deviates less from the others is not reported (a share of the time).
_MARGIN = 0.1


class HistoryCommand(RuleOptions, GateOptions, NoiseOptions, RunOptions, Command):
    """Many runs in their order, and where the times changed."""

    files: tuple[Path, ...] = option(
        "RUN  one run each, a file or a folder of records, or all of them run directories of"
        " busbar qualify; ordered by start time, else as given",
        (),
        nargs="+",
        completes=run_files,
    )
    fail_slower: str | None = option(
        "--fail-slower SHARE  exit with status 1 when the latest change made a row slower by more,"
        " such as 5%"
    )
    format: str = option("--format", "table", choices=("table", "csv", "json"))

    def run(self) -> int:
        """Print series and changes; returns the exit status, see `_history_gate`."""
        from reports.analysis.expect import parse_share
        from reports.analysis.history import history
        from reports.analysis.history import in_order as by_start
        from reports.analysis.quality import checklist
        from reports.statistics.change_points import FEWEST_RUNS, LEAST
        from reports.tables.comparison import history_csv, history_document

        if all(map(is_campaign, self.files)):
            if self.format != "table":
                raise ReportError(f"--format {self.format} is not for folders of busbar qualify")
            ended = list(filter(is_qualified, self.files))
            for path in self.files:
                if path not in ended:
                    note(f"{path}: left out: {its_verdicts(path)}")
            return _print_verdicts(in_order(list(map(read_verdicts, ended))))
        _refuse_some_campaigns(self.files)
        noise = parse_share(self.noise)
        fail = None if self.fail_slower is None else parse_share(self.fail_slower)
        readings = read_all(self.files, self.ranks)
        both = zip(self.files, readings, strict=True)
        runs = [(str(path), one.rows) for path, one in both if len(one.rows)]
        ordered = by_start(runs)
        changes = history(ordered, noise)
        forbidding = [(n, d) for n, ds in changes.differing.items() for d in ds if d.forbids]
        if forbidding and not self.anyway:
            n, difference = forbidding[0]
            more = f" and {len(forbidding) - 1} differences more" if len(forbidding) > 1 else ""
            where = f"{changes.runs[n]} is not the same setting as {changes.runs[n - 1]}"
            raise ReportError(f"{where}: {difference}{more} (--anyway goes on)")
        if self.format == "csv":
            sys.stdout.write(history_csv(changes))
        elif self.format == "json":
            print(json.dumps(history_document(changes), indent=1))
        else:
            _print_history(changes, [rows for _, rows in ordered])
            words = ["untested" if len(s.points) < 2 * LEAST else "tested" for s in changes.series]
            shown = [s.row for s in changes.series]
            print_rules(console(), checklist(shown, words=words), self)
        latest = [
            one
            for path, one in zip(self.files, readings, strict=True)
            if str(path) == changes.runs[-1]
        ]
        out = sys.stdout if self.format == "table" else sys.stderr
        if fail is None and not self.fail_unjudged:
            return 0
        short = sum(len(s.points) < FEWEST_RUNS for s in changes.series)
        why = f"have fewer than {FEWEST_RUNS} runs"
        if unjudged := self.unjudged(short, len(changes.series), why):
            print(unjudged, file=out)
        missed = int(bool(unjudged and self.fail_unjudged))
        return missed | _history_gate(changes, fail, latest, out)


def _refuse_some_campaigns(paths: Sequence[Path]) -> None:
    """Raise ReportError if some of the paths, but not all, are run directories of qualify."""
    campaigns = list(filter(is_campaign, paths))
    if campaigns and len(campaigns) < len(paths):
        raise ReportError(f"{campaigns[0]}: {its_verdicts(campaigns[0])}; the other runs are none")


def _print_verdicts(campaigns: Sequence[Qualified]) -> int:
    """Print hosts, links and uplinks whose verdict changed. Returns 1 if any is not good now."""
    from rich.markup import escape

    from reports.analysis.history import GOOD, verdict_changes

    if len(campaigns) < 2:
        raise ReportError("a history needs two runs at least that have ended")
    changed = verdict_changes(campaigns)
    shown = range(max(0, len(campaigns) - _CAMPAIGNS), len(campaigns))
    days = [campaigns[n].started.partition("+")[0].replace("T", " ") for n in shown]
    if changed:
        table = new_table("verdicts that have changed", "subject", *days, text=1 + len(days))
        for one in changed:
            table.add_row(*map(escape, (one.subject, *(one.verdicts[n] for n in shown))))
        console().print(table)
    else:
        print(f"no verdict has changed over {len(campaigns)} runs")
    print(campaigns[-1].sentence)
    return int(any(one.state != GOOD for one in campaigns[-1].verdicts))


def _print_history(changes: History, runs: Sequence[Sequence[Measurement]]) -> None:
    from reports.analysis.outliers import outliers
    from reports.statistics.change_points import FEWEST_RUNS
    from reports.tables.comparison import event_lines, history_tables

    terminal = console()
    for shown in history_tables(changes, terminal.width, ascii_only()):
        print_table(terminal, shown)
    lines = event_lines(changes)
    for line in lines:
        terminal.print(line, markup=False)
    if not lines:
        # A change needs two runs on either side; a run that differs alone is none.
        alone = {one.file: one for one in reversed(outliers(runs, _MARGIN).deviations)}
        for n, one in sorted(alone.items()):
            terminal.print(
                f"run {n + 1} ({changes.runs[n]}): time {format_change(one.ratio)} against the"
                f" other runs ({one.group}), which is no lasting change;"
                f" {program('reports outliers')} compares hosts",
                markup=False,
            )
        change = "lasting change" if alone else "change"
        what = (
            f"{format_count(len(changes.series), 'row')} over"
            f" {format_count(len(changes.runs), 'run')}"
        )
        if max(len(s.points) for s in changes.series) < FEWEST_RUNS:
            print(
                f"too few runs to tell: {what}, and a change can show from {FEWEST_RUNS} runs on;"
                f" {program('reports compare')} holds two against each other"
            )
        else:
            print(f"no {change} in {what}")


def _history_gate(
    changes: History, fail: float | None, latest: Sequence[Reading], out: TextIO
) -> int:
    """1 if a row's latest change, or an alarm since, is a slowdown above ``fail``; else 0.

    Also 1 if the latest run failed or has wrong elements. ``fail``: None without this limit.
    """
    fail = inf if fail is None else fail
    slow = [s for s in changes.series if s.cuts and s.cuts[-1].ratio > 1 + fail]
    open_ = [s for s in changes.series if s.alarm is not None and s.alarm.ratio > 1 + fail]
    for rows, what in ((slow, "since their latest change"), (open_, "in the last runs")):
        if rows:
            print(f"FAILED: {_slower(len(rows), fail)} {what}", file=out)
    wrong = sum(bool(row.wrong) for one in latest for row in one.rows)
    if wrong:
        print(
            f"FAILED: the latest run has wrong elements in {format_count(wrong, 'row')}", file=out
        )
    return int(bool(slow or open_ or wrong)) | print_broken(latest, out)


class ScalingCommand(RuleOptions, RunOptions, Command):
    """Speed-up and efficiency of runs on several numbers of ranks."""

    def run(self) -> int:
        """Print the tables, with the base case first, and the fastest by size and ranks."""
        from reports.analysis.quality import checklist
        from reports.tables.scaling import scaling, scaling_tables, winners_map

        rows = rows_of(self)
        groups = scaling(rows)
        terminal = console()
        for shown in scaling_tables(groups, terminal.width):
            print_table(terminal, shown)
        for block in winners_map(rows, terminal.width):
            print("\n".join(block) + "\n")
        shown_rows = [s.row for series in groups for s in series]
        print_rules(terminal, checklist(shown_rows), self)
        return 0
