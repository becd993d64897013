"""The pages about schedules are true: their examples run, their numbers are the schedules'."""

from __future__ import annotations

import doctest
from pathlib import Path

from collectives.commands.schedules import summary
from collectives.schedule.catalogue import draft, spec
from collectives.schedule.cost import cost
from tests.collectives.cases import PAIRS

DOCS = Path(__file__).parents[2] / "docs"
BEGIN, END = "<!-- costs: begin -->\n", "<!-- costs: end -->\n"


def _table() -> str:
    """The table of costs on 8 ranks, as docs/schedules.md should have it."""
    lines = [
        "| collective | algorithm | steps | rounds | total | out | in | reductions | in general |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for collective, name in PAIRS:
        found = cost(draft(collective, name, 8), spec(collective))
        numbers = (found.total, found.out, found.into, found.reduced)
        row = [collective, f"`{name}`", str(found.steps), str(found.rounds)]
        row += [f"{number:.4g}" for number in numbers]
        lines.append("| " + " | ".join([*row, summary(collective, name)]) + " |")
    return "\n".join(lines) + "\n"


def test_adding_an_algorithm_works_as_told() -> None:
    """Every example of docs/add-an-algorithm.md gives what the page says."""
    result = doctest.testfile(str(DOCS / "add-an-algorithm.md"), module_relative=False)
    assert result.attempted > 8
    assert result.failed == 0


def test_the_costs_in_the_docs_are_the_schedules() -> None:
    """The table of docs/schedules.md is counted from the schedules; paste the new one."""
    page = (DOCS / "schedules.md").read_text(encoding="utf-8")
    found = page[page.index(BEGIN) + len(BEGIN) : page.index(END)]
    assert found.strip() == _table().strip()
