"""`run`: a benchmark as a function call. Its ranks are separate processes, as a command's are."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import structs

from bench.api.measured import MeasuredRows, load
from bench.cli.main import names
from bench.launch.launch import (
    error_messages,
    folder_for_rows,
    run_of_its_own,
    show_progress,
)
from bench.options.options import PT2PT, make_parser, parse
from busbar.arguments import unknown
from busbar.errors import BusbarError, RankFailure, Unavailable, Unsupported
from busbar.host import cores
from busbar.launchers import launched
from busbar.status import BAD, FOUND, GOOD, MISSING, RANK_LOST
from busbar.units import format_count
from reports.analysis.cautions import is_in_brief

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from bench.api.keywords import Keywords

_STEPS = "step"

_ERRORS: Mapping[int, type[BusbarError]] = {
    BAD: Unsupported,
    MISSING: Unavailable,
    RANK_LOST: RankFailure,
}


def run(
    collective: str = "allreduce",
    *,
    ranks: int | str | Sequence[int] | None = None,
    algorithms: str | Sequence[str] | None = None,
    sizes: Sequence[int | str] | None = None,
    dtype: str | Sequence[str] | None = None,
    out: str | Path | Sequence[str | Path] | None = None,
    launcher: str | None = None,
    progress: bool | None = None,
    **options: Unpack[Keywords],
) -> MeasuredRows:
    """Measure a collective. Returns the rows, and prints nothing.

    ``ranks``: ranks on this host (default: one for each core), or several counts to measure in
    turn. ``algorithms``: as for ``-A``. ``sizes``: bytes, or text such as ``"64K"`` (default: 1 MB
    to 1 GB). ``dtype``: as ``datatype``. ``out``: a file, or several, to write the records to.
    ``launcher``: a cluster's launcher, such as ``srun -n {ranks}``, which must start as many ranks
    as are given. ``progress``: shows a bar in a notebook or on a terminal, unless False. Other
    keywords are the command's options: ``placement="out"``, ``budget=0.5``, ``transport="mpi"``.

    Raises Unsupported for invalid options, Unavailable if something needed is missing, RankFailure
    if a rank was lost. Rows with wrong results are returned too, and counted in ``wrong``.
    """
    if launched() is not None:
        raise Unsupported("busbar.run starts ranks of its own; call it without mpirun")
    if collective in (PT2PT, _STEPS):
        raise Unsupported(
            f"busbar.run: {collective} is a command: busbar {collective} --out FILE,"
            " then busbar.load(FILE)"
        )
    if collective not in names():
        raise unknown("collective", str(collective), names())
    if options.get("dry_run"):
        raise Unsupported("busbar.run: a dry run prints a plan; use the command with --dry-run")
    more: dict[str, object] = {**options}
    named = {"algorithms": ("algorithm", algorithms), "dtype": ("datatype", dtype)}
    for name, (of_command, value) in {**named, "sizes": ("sizes", sizes)}.items():
        if value is not None:
            if more.get(of_command) is not None:
                raise Unsupported(f"busbar.run: {name} excludes {of_command}; give one of them")
            more[of_command] = value
    outs = [out] if isinstance(out, (str, Path)) else list(out or ())
    argv = make_parser(collective).words(more, "busbar.run")
    usual = max(2, len(cores()))
    given: list[object] = [usual if ranks is None else ranks]
    if isinstance(ranks, Iterable) and not isinstance(ranks, str):
        given = list(ranks)
    if not given:
        raise Unsupported("busbar.run: ranks has no items")
    counts: list[int] = []
    elsewhere = launcher is not None
    for text in map(str, given):  # all of them before anything is started
        parsed = parse([*argv, "--ranks", text], collective)
        counts += parsed.rank_list
        elsewhere |= parsed.on_hosts
    fixed = launcher is not None and "{ranks}" not in launcher
    if fixed and len(counts) > 1:
        raise Unsupported(
            f"busbar.run: {launcher} starts the same ranks for every count; write {{ranks}} in it"
        )
    known = ranks is not None or not fixed
    with folder_for_rows(elsewhere=elsewhere) as folder:
        rows = folder / "rows.jsonl"
        notes: list[str] = []
        for count in counts:
            files = [f"--out={rows}", f"--after={rows}", *(f"--out={one}" for one in outs)]
            title = f"{collective}, {format_count(count, 'rank')}" if known else collective
            with show_progress(title, progress) as on_line:
                ended = run_of_its_own(
                    [f"bench.{collective}"],
                    count,
                    [*argv, *files],
                    command=launcher,
                    check_ranks=known,
                    on_line=on_line,
                    stdout=subprocess.DEVNULL,
                )
            if ended.interrupted == signal.SIGINT:
                raise KeyboardInterrupt
            if ended.interrupted:
                break
            errors = error_messages(ended.err)
            if ended.status not in (GOOD, FOUND):
                kind = _ERRORS.get(ended.status, RankFailure)
                raise kind(errors[-1] if errors else f"ended with status {ended.status}")
            notes += errors
        measured = None if ended.interrupted else load(rows)
    if measured is None:  # the ranks and files are gone, as if the signal had come here alone
        signal.raise_signal(ended.interrupted)
        name = signal.Signals(ended.interrupted).name
        raise RankFailure(f"the ranks were ended because {name} came to this process")
    source = str(outs[0]) if outs else "busbar.run"  # in place of the file that is gone
    runs = {id(row.run): replace(row.run, source=source) for row in measured}
    return MeasuredRows(
        (structs.replace(row, run=runs[id(row.run)]) for row in measured),
        (*measured.notes, *(note for note in notes if not is_in_brief(note))),
        filter(is_in_brief, notes),
    )
