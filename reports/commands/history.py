"""``python -m reports history``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from busbar.commands import Command
from busbar.errors import ReportError
from busbar.options import option
from busbar.tables import new_table
from reports.analysis.qualified import GOOD, verdict_changes
from reports.commands.compare import NoiseOptions
from reports.commands.output import RunOptions, ascii_only, console, print_table, read_noting
from reports.commands.ruling import RuleOptions, print_rules
from reports.readers.qualified import Qualified, in_order, is_qualified, read_verdicts

if TYPE_CHECKING:
    from reports.analysis.history import History

# The latest campaigns whose verdicts have a column each.
_CAMPAIGNS = 4


class HistoryCommand(RuleOptions, NoiseOptions, RunOptions, Command):
    """Many runs in their order, and where the times changed."""

    files: tuple[Path, ...] = option(
        "RUN  one run each, a file or a folder of records, or all of them run directories of"
        " busbar qualify; ordered by start time, else as given",
        (),
        nargs="+",
    )
    fail_slower: str | None = option(
        "--fail-slower SHARE  exit with status 1 when the latest change made a row slower by more,"
        " such as 5%"
    )
    format: str = option("--format", "table", choices=("table", "csv"))

    def run(self) -> int:
        """Print series and changes; 1 past ``--fail-slower``."""
        from reports.analysis.expect import parse_share
        from reports.analysis.history import history
        from reports.analysis.history import in_order as by_start
        from reports.analysis.quality import checklist
        from reports.statistics.change_points import LEAST
        from reports.tables.history_show import history_csv

        if all(map(is_qualified, self.files)):
            return _print_verdicts(in_order([read_verdicts(path) for path in self.files]))
        noise = parse_share(self.noise)
        fail = None if self.fail_slower is None else parse_share(self.fail_slower)
        runs = [(str(path), read_noting(path, self.ranks).rows) for path in self.files]
        changes = history(by_start(runs), noise)
        forbidding = [(n, d) for n, ds in changes.differing.items() for d in ds if d.forbids]
        if forbidding and not self.anyway:
            n, difference = forbidding[0]
            more = f" and {len(forbidding) - 1} differences more" if len(forbidding) > 1 else ""
            where = f"{changes.runs[n]} is not the same setting as {changes.runs[n - 1]}"
            raise ReportError(f"{where}: {difference}{more} (--anyway goes on)")
        if self.format == "csv":
            sys.stdout.write(history_csv(changes))
        else:
            _print(changes)
            words = ["untested" if len(s.points) < 2 * LEAST else "tested" for s in changes.series]
            rules = checklist([s.row for s in changes.series], words=words)
            print_rules(console(), rules, self)
        return _gate(changes, fail, sys.stderr if self.format == "csv" else sys.stdout)


def _print_verdicts(campaigns: Sequence[Qualified]) -> int:
    """Print the hosts, links and uplinks whose verdict has changed; 1 where any is not good now."""
    from rich.markup import escape

    if len(campaigns) < 2:
        raise ReportError("a history needs two runs at least")
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


def _print(changes: History) -> None:
    from reports.tables.history_show import event_lines, history_tables

    terminal = console()
    for shown in history_tables(changes, terminal.width, ascii_only()):
        print_table(terminal, shown)
    lines = event_lines(changes)
    for line in lines:
        terminal.print(line, markup=False)
    if not lines:
        print(f"no change in {len(changes.series)} rows over {len(changes.runs)} runs")


def _gate(changes: History, fail: float | None, out: TextIO) -> int:
    """1 when the latest change, or what is out of the ordinary since, is slower by more."""
    if fail is None:
        return 0
    slow = [s for s in changes.series if s.cuts and s.cuts[-1].ratio > 1 + fail]
    open_ = [s for s in changes.series if s.alarm is not None and s.alarm.ratio > 1 + fail]
    for rows, what in ((slow, "since their latest change"), (open_, "in the last runs")):
        if rows:
            print(
                f"FAILED: {len(rows)} rows are slower by more than {100 * fail:g}% {what}", file=out
            )
    return 1 if slow or open_ else 0
