"""``python -m reports compare``."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from busbar.arguments import Parser
from busbar.commands import Command
from busbar.errors import ReportError
from busbar.options import OptionGroup, Self, option, switch
from reports.commands.expecting import ExpectOptions, expect, wanted
from reports.commands.output import LogOptions, console, note, print_table, read_noting
from reports.commands.ruling import RuleOptions, print_rules

if TYPE_CHECKING:
    from reports.analysis.compare import Comparison
    from reports.analysis.differences import Difference
    from reports.analysis.quality import Rule
    from reports.records.measurement import Measurement

#: What the word ``--`` is to `sides`: argparse would drop it, and no name of a file holds it.
AGAINST = "\0--"


class NoiseOptions(OptionGroup):
    """How two runs are compared."""

    noise: str = option("--noise SHARE  differences up to this do not count", "1%")
    anyway: bool = switch("--anyway  compare even if machine or mapping differ")


class CompareCommand(ExpectOptions, RuleOptions, NoiseOptions, LogOptions, Command):
    """NEW against BASE: faster, slower or indistinguishable."""

    USAGE = "%(prog)s BASE NEW [options]\n       %(prog)s BASE… -- NEW… [options]"

    files: tuple[str, ...] = option(
        "RUN  a run or a folder of records for each side; -- between several launches a side",
        nargs="+",
    )
    fail_slower: str | None = option(
        "--fail-slower SHARE  exit with status 1 when a row is slower by more than this, such as 5%"
    )
    format: str = option("--format", "table", choices=("table", "md"))
    fail_missing: bool = switch(
        "--fail-missing  exit with status 1 when BASE has rows that NEW lacks"
    )

    @classmethod
    def parse(cls, argv: Sequence[str], parser: Parser, **more: object) -> Self:
        """The options; files may also stand behind an option, and ``--`` between files."""
        words = [AGAINST if word == "--" else word for word in argv]
        parsed, rest = parser.parse_known_args(words)
        if any(word.startswith("-") for word in rest):
            parser.error(f"unrecognized arguments: {' '.join(rest)}")
        parsed.files += rest
        return cls.of(parsed, argv, **more)

    def run(self) -> int:
        """Print the comparison; 1 past ``--fail-slower`` or when NEW misses an expectation."""
        from reports.analysis.cautions import warnings_of
        from reports.analysis.expect import parse_share

        selection = wanted(self)
        fail = None if self.fail_slower is None else parse_share(self.fail_slower)
        base, new = (
            [row for path in side for row in read_noting(path, self.ranks).rows]
            for side in sides(self.files)
        )
        comparisons, differing, lost = compared(base, new, self)
        rules = rules_of(base, new, comparisons, selection.limit)
        if self.format == "md":
            from reports.tables.markdown import comparison_markdown

            sys.stdout.write(comparison_markdown(comparisons, differing, rules))
        else:
            _print(comparisons, rules, self)
        if any(c.word == "untested" for c in comparisons):
            note("untested: single figures have no interval; keep raw times to have a test")
        for name, rows in (("BASE", base), ("NEW", new)):
            for warning in warnings_of(rows):
                note(f"{name}: {warning}")
        missing = int(self.fail_missing and lost > 0)
        if missing:
            print(f"FAILED: {lost} rows of BASE are missing in NEW")
        return max(_gate(comparisons, fail), missing, expect(selection, new))


def compared(
    base: Sequence[Measurement], new: Sequence[Measurement], options: NoiseOptions
) -> tuple[list[Comparison], list[Difference], int]:
    """Every shared row's word, the differences of the runs, and how many rows NEW lacks.

    Differences are said on stderr too.

    Raises ReportError when machine or mapping differ (without ``--anyway``) or no row is shared.
    """
    from reports.analysis.compare import compare, join
    from reports.analysis.differences import differences
    from reports.analysis.expect import parse_share

    noise = parse_share(options.noise)
    unlike = differences(base, new)
    forbidding = [d for d in unlike if d.forbids]
    if forbidding and not options.anyway:
        what = "; ".join(map(str, forbidding))
        raise ReportError(f"BASE and NEW are not the same setting: {what} (--anyway compares them)")
    for difference in unlike:
        note(f"differs: {difference}")
    joined, lost, added = join(base, new)
    for rows, name in ((lost, "BASE"), (added, "NEW")):
        if rows:
            note(f"{len(rows)} rows are only in {name}")
    return compare(joined, noise), unlike, len(lost)


def sides(words: Sequence[str]) -> tuple[list[Path], list[Path]]:
    """The files of BASE and of NEW: two, or those on either side of ``--`` (`AGAINST`).

    Raises ReportError for anything else, and for a file that is given twice on a side: as launches
    of its own it would count for more than it is.
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
    """The twelve rules held against a comparison."""
    from reports.analysis.quality import checklist

    return checklist([*base, *new], limit=limit, words=[c.word for c in comparisons])


def _print(
    comparisons: Sequence[Comparison], rules: Sequence[Rule], options: CompareCommand
) -> None:
    from reports.tables.comparison import clocks, comparison_tables, counts_of, remedy, resolution

    terminal = console()
    for shown in comparison_tables(comparisons, terminal.width):
        print_table(terminal, shown)
    print(counts_of(comparisons))
    for text in filter(None, (tell(comparisons) for tell in (remedy, resolution, clocks))):
        terminal.print(text, markup=False, highlight=False)
    print_rules(terminal, rules, options)


def _may_be_slower(c: Comparison) -> bool:
    """Whether it is, or may be for all that is known: what was not tested has not been passed."""
    of_one_launch = c.word == "cannot tell" and c.low is not None and c.low > 1
    return c.word in ("slower", "untested") or of_one_launch


def _gate(comparisons: Sequence[Comparison], fail: float | None) -> int:
    """1 when a row is past ``--fail-slower`` or has wrong elements; without the option, 0."""
    if fail is None:
        return 0
    slow = [c for c in comparisons if c.ratio > 1 + fail and _may_be_slower(c)]
    wrong = [c for c in comparisons if c.row.new.wrong]
    if slow:
        print(f"FAILED: {len(slow)} rows are slower by more than {100 * fail:g}%")
    if wrong:
        print(f"FAILED: {len(wrong)} rows of NEW have wrong elements")
    return 1 if slow or wrong else 0
