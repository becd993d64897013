"""``--ranks 2,4,8`` and ``--launches N``: several launches, and the table over all of them."""

from __future__ import annotations

import shlex
import signal
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from shutil import copyfile

from bench.launch.launch import folder_for_rows, run_of_its_own
from bench.options.launching import LaunchTurn, turns
from bench.options.options import RunOptions
from bench.run.recorder import kept_in, repeated
from bench.run.screen import Screen
from bench.run.table_text import report_width
from busbar.errors import ReportError, Unsupported
from busbar.launchers import launched
from busbar.status import BY_SIGNAL, CLOSED, EARLY, MISSING
from busbar.terminal import print_note
from busbar.units import format_count
from reports.analysis.launches import over_launches
from reports.commands.output import ascii_only
from reports.readers.reading import read
from reports.records.measurement import Measurement
from reports.records.table import launch_name
from reports.tables.scaling import (
    answer,
    caution_lines,
    conclusion_lines,
    winners_map,
)
from reports.tables.show import texts

#: Errors that end all launches: nothing can be started, or standard output is closed.
_FINAL = (MISSING, CLOSED)
_NOT_KEPT = "; raw times are not kept (--out FILE.jsonl keeps them)"


def several(
    module: Sequence[str],
    options: RunOptions,
    closing: Callable[[Path, str], list[str]] | None = None,
    *,
    details: bool = True,
) -> int:
    """Run ``python -m MODULE`` with these options in several launches. Returns the exit status.

    With several rank counts, each round of launches runs every count once; several rounds shuffle
    the order of counts. If a launch fails, the others still run, and the highest status is
    returned. A signal ends the current launch, which reports its results, and skips the rest;
    results so far are shown, and the status is the signal's. ``closing``: makes the closing lines
    from the file of all rows and the words of `repeated`, instead of the usual ones. ``details``:
    print the tables of every launch, too. Raises Unsupported under a launcher.
    """
    counts = options.launch_counts
    what = f"--ranks {','.join(map(str, counts))}"
    if options.launches > 1:
        what = f"--launches {options.launches}"
    if launched() is not None:
        raise Unsupported(f"{what} starts launches of its own; run it without mpirun")
    if not counts[0]:
        raise Unsupported(f"{what} starts the ranks itself; say how many: --ranks N")
    worst = 0
    with folder_for_rows(elsewhere=options.on_hosts) as folder:
        rows = folder / "rows.jsonl"
        if options.after is not None and options.after.exists():
            copyfile(options.after, rows)
        planned = turns(counts, options.launches, options.seed)
        share = [] if options.total is None else [f"--total={options.total / len(planned)}"]
        for at, (ranks, one) in enumerate(planned, 1):
            if not options.quiet:
                _tell(ranks, at, len(planned), one, bool(options.out))
            more = ["--out", str(rows), "--after", str(rows), *share, *(one.words if one else ())]
            # Rows of repeated launches are combined and shown below.
            left_out = one or not details or (options.quiet and not options.json)
            stdout = subprocess.DEVNULL if left_out else None
            ended = run_of_its_own(module, ranks, [*options.argv, *more], stdout=stdout)
            worst = 128 + ended.interrupted if ended.interrupted else max(worst, ended.status)
            if ended.interrupted or ended.status in _FINAL:
                break
        every = _rows_in(rows)
        lines = closing(rows, repeated(options)) if closing else _closing(every, options, details)
        if options.quiet:
            _note_in_brief(every)
        if ended.interrupted:
            if kept := kept_in(options):
                print_note(kept.removeprefix("; "))
            if stdout is not None:
                name = signal.Signals(ended.interrupted).name
                known = len({launch_name(row.run) for row in every})
                done = _measured(at, len(planned), options.launches > 1, known)
                lines = [f"{EARLY} {BY_SIGNAL} {name}", done, *lines]
        Screen(0).lines(lines)
    return worst


def _measured(at: int, of: int, repeated_ones: bool, known: int) -> str:
    """How many launches, or rank counts, were measured when number ``at`` was interrupted.

    ``known``: launches that have rows.
    """
    single, more = ("launch", "launches") if repeated_ones else ("rank count", "rank counts")
    part = f"; the rows that {single} {at} had finished count, too" if known >= at else ""
    return f"# {more} measured in full: {at - 1} of {of}{part}"


def _tell(ranks: int, at: int, of: int, one: LaunchTurn | None, is_kept: bool) -> None:
    """Print what is launched; with the first launch also that raw times are not kept."""
    place = f"rank count {at} of {of}"
    if one:
        place = f"launch {one.number} of {one.of}, rows in the order of seed {one.seed}"
    print_note(f"{format_count(ranks, 'rank')}, {place}{'' if is_kept or at > 1 else _NOT_KEPT}")


def _rows_in(path: Path) -> Sequence[Measurement]:
    """The rows in a file of records; none if there is no row, or no file."""
    try:
        return read(path).rows
    except ReportError:
        return []


def _note_in_brief(every: Sequence[Measurement]) -> None:
    """Print on standard error what iterations of all launches show; quiet launches leave it out."""
    from reports.analysis.cautions import in_brief  # slow to import

    for text in in_brief(every):
        print_note(text)


def _closing(every: Sequence[Measurement], options: RunOptions, details: bool) -> list[str]:
    """The map of rank counts, the table over launches, and closing sentences; empty without rows.

    Without ``details``, the last line explains how to see every row of several rank counts.
    """
    if not every:
        return []
    more = repeated(options)
    if options.quiet:
        if options.json:  # the launches have printed the rows
            return []
        width = report_width()
        cautions = caution_lines(every, width, more=more)
        return [*conclusion_lines(every, width, more), *cautions]
    width = report_width() - len("# ")
    together: Sequence[Measurement] = over_launches(every)
    lines = [line for one in winners_map(every, width) for line in (*one, "")]
    if together is not every and (details or not options.rank_counts):
        lines += [*texts(together, width, ascii_only()), ""]
    # The map of several counts of ranks has the fastest at each size already.
    in_full = [] if options.rank_counts else answer(every, width, more=more)
    lines += in_full or conclusion_lines(every, width, more)
    lines += caution_lines(every, width, more=more)
    if options.rank_counts and not details:
        if options.out:
            lines.append(f"every row: busbar reports show {shlex.quote(str(options.out[0]))}")
        else:
            lines.append("every row: --details, or --out FILE.jsonl for busbar reports show")
    return [f"# {line}".rstrip() for line in lines]
