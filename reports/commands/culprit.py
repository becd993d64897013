"""``busbar reports culprit`` and ``outliers``: find slow ranks, GPUs, nodes, links, and files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from math import inf, log
from pathlib import Path
from typing import TYPE_CHECKING, Any

from busbar.commands import Command
from busbar.errors import ReportError
from busbar.options import option, switch
from busbar.terminal import make_printable
from busbar.units import format_count, format_size
from reports.commands.output import (
    RunOptions,
    broken_runs,
    check_ranks,
    console,
    note,
    print_failures,
    print_notes,
    print_table,
    read_all,
)
from reports.readers.qualified import is_campaign, its_verdicts
from reports.readers.reading import read_each
from reports.readers.text import row_files
from reports.records.measurement import Measurement, grouped

if TYPE_CHECKING:
    from busbar.tables import RenderedTable
    from reports.analysis.outliers import Deviation, Outliers
    from reports.analysis.stragglers import Suspect


class CulpritCommand(RunOptions, Command):
    """The rank, GPU, node or link that is slow, with the evidence."""

    files: tuple[Path, ...] = option("RUN  records measured with --per-rank", (), nargs="*")
    matrix: tuple[Path, ...] = option(
        "--matrix FILE  measured latencies and bandwidths: busbar topology measure -o FILE",
        (),
        action="append",
    )
    margin: str = option("--margin SHARE  differences up to this do not count", "10%")
    fail: bool = switch("--fail  exit with status 1 when something is slow or a run failed")

    def run(self) -> int:
        """Print the stragglers.

        With ``--fail`` also runs that failed. Returns 1 for them, and if a straggler is certain.
        """
        from reports.analysis.expect import parse_share
        from reports.analysis.machine import read_pairs
        from reports.analysis.stragglers import culprits

        margin = parse_share(self.margin)
        readings = read_all(self.files, self.ranks)
        rows = [row for one in readings for row in one.rows]
        matrices = [pairs for path in self.matrix for pairs in read_pairs(path)]
        if not matrices and not any(r.per_rank_s for r in rows):
            remedy = _how_to_measure(rows)
            for path in filter(is_campaign, self.files):
                remedy = f"{path}: {its_verdicts(path)}"
            raise ReportError(f"no times of single ranks: {remedy}")
        result = culprits(rows, matrices, margin)
        _print(result.suspects)
        if not result.suspects:
            print(result.unshown or "nobody stands out")
        for line in result.notes:
            note(line)
        if not self.fail:
            return 0
        failed = print_failures(self.files, readings)
        return failed | int(any(s.sure for s in result.suspects))


def _how_to_measure(rows: Sequence[Measurement]) -> str:
    """A command line that tells which rank is slow: these rows again, and a send-receive."""
    from reports.analysis.cautions import command_of
    from reports.analysis.stragglers import measure_ranks

    ranks = max((row.ranks for row in rows if row.ranks), default=None) or "P"
    again = command_of(rows, without=("--host", "--hostfile")) if rows else ""
    commands = [again or f"busbar allreduce --ranks {ranks}", f"busbar sendrecv --ranks {ranks}"]
    files = ("run.jsonl", "sr.jsonl")
    lines = [measure_ranks(one, rows, file) for one, file in zip(commands, files, strict=True)]
    lines.append(f"busbar reports culprit {' '.join(files)}")
    return f"give --matrix FILE, or measure: {' && '.join(lines)}"


def _print(suspects: Sequence[Suspect]) -> None:
    from rich.padding import Padding
    from rich.text import Text

    terminal = console()
    for suspect in suspects:
        head = "CULPRIT" if suspect.sure else "perhaps"
        terminal.print(f"{head} {suspect.name}", style="bold", markup=False)
        for line in suspect.evidence:
            terminal.print(Padding(Text(line), (0, 0, 0, 2)))


class OutliersCommand(RunOptions, Command):
    """Files that deviate from the others, such as one log of a benchmark per host."""

    margin: str = option("--margin SHARE  differences up to this do not count", "10%")
    format: str = option("--format", "table", choices=("table", "json"))

    def run(self) -> int:
        """Print the files that deviate.

        Returns 1 if a file is slower than the others, has wrong elements, lacks rows, or could not
        be read or was cut. Raises ReportError if there are too few files to tell.
        """
        from reports.analysis.expect import parse_share
        from reports.analysis.outliers import FEWEST, outliers
        from reports.tables.show import origin

        margin = parse_share(self.margin)
        check_ranks(self.ranks)
        given = self.files
        if len(given) == 1 and given[0].is_dir():  # a folder with a file of each host
            given = tuple(row_files(given[0])) or given
        files = read_each(given, self.ranks)
        print_notes(files.readings, failed=broken_runs(files.readings))
        paths, readings, errors = files.having_rows()
        unread = list(map(str, errors))  # of many hosts' logs each is one more finding
        result = outliers([one.rows for one in readings], margin)
        if not result.files:
            for reason in unread:
                note(reason)
            most = f"{format_count(len(given), 'file')}, of which {len(readings)} could be read"
            raise ReportError(
                f"cannot tell: no {FEWEST} files measured the same on the same devices ({most})"
            )
        names = [
            origin(one.rows[0].run) if len(one.rows) else str(path)
            for path, one in zip(paths, readings, strict=True)
        ]
        wrong = {n: sum(bool(row.wrong) for row in one.rows) for n, one in enumerate(readings)}
        failures = [
            *unread,
            *(
                f"{names[n]}: wrong elements in {format_count(count, 'row')}"
                for n, count in wrong.items()
                if count
            ),
            *(
                f"{names[n]}: lacks {format_count(count, 'row')} that most files have"
                for n, count in result.missing.items()
            ),
            *map(str, broken_runs(readings)),
        ]
        slow = any(one.ratio > 1 for one in result.deviations)
        if self.format == "json":
            print(json.dumps(_document(result, names, failures), indent=1))
            return int(slow or bool(failures))
        for failure in failures:
            print(f"FAILED {make_printable(failure)}")
        for line in _deviating(result, names):
            print(line)
        terminal = console()
        for group, unlike in grouped(result.deviations, lambda one: one.group).items():
            print_table(terminal, _table(group, unlike, names))
        for name in result.few:
            note(f"{name}: fewer than {FEWEST} files, which cannot tell")
        count, seen = len({one.file for one in result.deviations}), 100 * (result.unseen - 1)
        of = format_count(max(result.files.values()), "file")
        hidden = [f"less than {seen:.0f} %"] if result.unseen > 1 + margin else []
        if result.hides:
            alone = f" ({_alone(result.alone)})" if result.alone else ""
            hidden.append(f"a difference at fewer than half of the sizes{alone}")
        unseen = f"; {' or '.join(hidden)} may not show" if hidden else ""
        if result.unseen == inf:
            unseen = "; files of a group differ so much that no difference would show"
        bad = {n for n, one in enumerate(readings) if wrong[n] or broken_runs([one])}
        failed = len(unread) + len(bad | set(result.missing))
        also = f"; {failed} FAILED" if failed else ""
        share = f"more than {100 * margin:g} % from the others"
        print(f"{count or 'none'} of {of}: {share}{also}{unseen}")
        return int(slow or bool(failures))


def _deviating(result: Outliers, names: Sequence[str]) -> list[str]:
    """A line for each file that deviates, the greatest deviation first."""
    from busbar.units import format_change

    def amount(one: Deviation) -> float:
        return abs(log(one.ratio))

    by_file = grouped(result.deviations, lambda one: one.file)
    lines, of = [], len(result.files)
    for most in sorted((max(ones, key=amount) for ones in by_file.values()), key=amount)[::-1]:
        word = "slower" if most.ratio > 1 else "faster"
        name, change = make_printable(names[most.file]), format_change(most.ratio)
        where = f" at most, in {len(by_file[most.file])} of {of} groups of rows" if of > 1 else ""
        lines.append(f"{name}: {word} than the others, {change}{where}")
    return lines


def _alone(sizes: Sequence[int]) -> str:
    """Which sizes were judged alone, in words."""
    names = ", ".join(map(format_size, sizes))
    return f"{names} {'is' if len(sizes) == 1 else 'are'} judged alone"


def _table(group: str, rows: Sequence[Deviation], names: Sequence[str]) -> RenderedTable:
    from busbar.tables import render_rich
    from busbar.units import format_change

    return render_rich(
        f"{group}: time against the median of the other files",
        [
            ("file", "left", [make_printable(names[one.file]) for one in rows]),
            ("time", "right", [format_change(one.ratio) for one in rows]),
            ("p", "right", [f"{one.p:.1g}" for one in rows]),
            ("rows", "right", [str(one.rows) for one in rows]),
        ],
    )


def _document(found: Outliers, names: Sequence[str], failures: Sequence[str]) -> dict[str, Any]:
    """The result as a JSON document."""
    return {
        "deviations": [
            {
                "file": names[one.file],
                "rows_of": one.group,
                "rows": one.rows,
                "ratio": one.ratio,
                "p": one.p,
            }
            for one in found.deviations
        ],
        "files": dict(found.files),
        "too_few_files": list(found.few),
        "least_ratio_seen": None if found.unseen == inf else found.unseen,
        "failures": list(failures),
    }
