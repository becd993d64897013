"""The options ``--expect``, ``--expect-file`` and ``--limit``, and their effect."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from busbar.options import OptionGroup, option
from reports.records.measurement import Measurement

if TYPE_CHECKING:
    from reports.analysis.expect import Expectation


class Wanted(NamedTuple):
    """Rules, and what ``limit`` stands for in them, in bytes per second."""

    rules: Sequence[Expectation]
    limit: float | None


class ExpectOptions(OptionGroup):
    """The rules that rows are held against."""

    expect: tuple[str, ...] = option(
        "--expect RULE  exit with status 1 when a row misses it: 'allreduce,>=64M: busbw >="
        " 0.8*limit'",
        (),
        action="append",
    )
    expect_file: Path | None = option("--expect-file FILE  a YAML file with such rules")
    limit: str | None = option("--limit RATE  the value of limit in rules, such as 480GB/s")


def wanted(options: ExpectOptions) -> Wanted:
    """The rules in the options, parsed before anything is read or printed. Raises ReportError."""
    from reports.analysis.expect import parse_rate
    from reports.analysis.expect_text import from_file, parse

    rules, limit = [parse(text) for text in options.expect], None
    if options.expect_file is not None:
        more, limit = from_file(options.expect_file)
        rules += more
    if options.limit is not None:
        limit = parse_rate(options.limit)
    return Wanted(rules, limit)


def expect(wanted: Wanted, rows: Sequence[Measurement]) -> int:
    """Hold rows against the rules; 1 when one is not kept, with what failed, by node."""
    from reports.analysis.expect import check

    if not wanted.rules:
        return 0
    failures = check(wanted.rules, rows, wanted.limit)
    for failure in (f for f in failures if f.row is None):
        print(f"FAILED {failure.text}")
    for node in dict.fromkeys(f.nodes for f in failures if f.row):
        mine = [f for f in failures if f.row and f.nodes == node]
        print(f"FAILED on {node}:")
        for failure in mine:
            print(f"  {failure.text}")
        _who([f.row for f in mine if f.row])
    if not failures:
        print(f"all {len(wanted.rules)} expectations kept")
    return 1 if failures else 0


def _who(rows: Sequence[Measurement]) -> None:
    """Name the slow one of several nodes, if the ranks' own times show it."""
    if any(r.per_rank_s for r in rows):
        from reports.analysis.stragglers import culprits

        for suspect in culprits(list({id(r): r for r in rows}.values())).suspects:
            if suspect.sure:
                print(f"  slow there: {suspect.name}: {suspect.evidence[0]}")
