"""The twelve rules in reports: one line, or with ``--rules`` each verdict and its reason."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from busbar.options import OptionGroup, switch
from busbar.tables import new_table

if TYPE_CHECKING:
    from rich.console import Console

    from reports.analysis.quality import Rule


class RuleOptions(OptionGroup):
    """Whether the rules are printed."""

    rules: bool = switch(
        "--rules  print Hoefler and Belli's twelve rules, each with its verdict and the reason"
    )


def print_rules(terminal: Console, rules: Sequence[Rule], options: RuleOptions) -> None:
    """Print the verdicts on what was just reported."""
    from reports.analysis.quality import in_one_line

    if not options.rules:
        terminal.print(in_one_line(rules), style="dim", markup=False)
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
