"""``--ranks N``: start a run on this host with the launcher that belongs to its MPI."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from signal import SIGTERM

from bench.launch import child
from bench.launch.child import SOFTLY
from bench.launch.launch import hosts_launcher, launcher, room_for_files
from bench.launch.ranks import RankRun
from bench.launch.segments import room
from bench.options.options import Options, RunOptions
from bench.run.recorder import closing, closing_sentences, kept_in, repeated
from bench.run.screen import Screen
from bench.run.table_text import COLUMNS, for_ranks
from busbar.arguments import STARTED, started
from busbar.errors import Unavailable
from busbar.host import core_share, cores
from busbar.installation import extra
from busbar.launchers import find_mpirun, is_internal, mpirun_beside
from busbar.mpi import library_version, load_mpi
from busbar.start import python
from busbar.status import EARLY, MEANING, RANK_LOST
from busbar.terminal import make_lines_printable, print_note
from busbar.units import format_count
from collectives.execution.gpu import take
from collectives.execution.registry import transports
from reports.readers.codec import measurements

_MANY_PER_CORE = 8  # ranks, from which on their start takes long enough to wonder


def core_ranks() -> int:
    """One rank for each core that this process may use; at least two, since one sends nothing."""
    return max(2, int(core_share()))


def gpu_ranks() -> int | None:
    """How many GPUs a run with ``--transport auto`` uses, one a rank; None if it uses the host."""
    if not take.driver_here():
        return None
    try:
        _, count = take.visible()
        take.load_nccl()
    except Unavailable:
        return None
    return count


def default_ranks(options: Options) -> tuple[int, str]:
    """The number of ranks where no option and no launcher gives one, and what each has.

    One rank for each GPU if the run uses GPUs, else one for each core, but at least two. Raises
    Unavailable if GPUs are required and there is none.
    """
    count = len(options.gpus or ())
    if not count and (options.asks_for_gpus or options.names_gpu_transport):
        count = max(1 + options.oversubscribe_gpu, take.visible()[1])
    if not count and options.transport not in transports():
        count = gpu_ranks() or 0
    return (count, "GPU") if count else (core_ranks(), "core")


def why_no_processes() -> str:
    """Why ranks on this host cannot be MPI processes; empty if they can."""
    try:
        load_mpi()
        find_mpirun()
    except Unavailable as error:
        return str(error)
    return ""


def start(module: Sequence[str], ranks: int, options: RunOptions, lost: str = "") -> int:
    """Run ``python -m MODULE`` on ``ranks`` ranks under the launcher. Returns the exit status.

    ``module``: its name, and the words before the options. ``lost``: a sentence added to the report
    of a lost rank.

    Raises Unavailable without an MPI or its launcher, or if the limit of open files or the shared
    memory is too small.
    """
    on_terminal = sys.stderr is not None and sys.stderr.isatty()
    crowded = ranks > _MANY_PER_CORE * len(cores()) and not options.on_hosts
    if (on_terminal or crowded) and not options.quiet:
        where = f" on {format_count(len(cores()), 'core')}, which takes a while" * crowded
        print_note(f"starting {format_count(ranks, 'rank')}{where}")
    library = library_version(load_mpi())
    mpirun = mpirun_beside()
    if options.on_hosts:
        return _start_on_hosts(module, ranks, options, library, mpirun)
    room_for_files(ranks)
    if mpirun is None:
        raise Unavailable(
            f"no mpirun beside this Python or on PATH; {extra('mpi')}, or use --transport inproc"
        )
    room(ranks, library)
    command, env = launcher(ranks, library, mpirun, _environment())
    command += python(*module, *options.argv)
    soft = SOFTLY if "Open MPI" in library else SIGTERM
    run = RankRun(command, env, ranks, options.timeout, soft)
    status = run.wait()
    why = run.why or ("rank 0 did not arrive" if status == RANK_LOST else "")
    if run.unreported and why:
        _report(run.unreported, why, options)
    if run.why:
        more = f"; {lost}" if run.lost and lost else ""
        print_note(f"{run.why}{more}{kept_in(options)}")
    return status


def _environment() -> dict[str, str]:
    inherited = {k: v for k, v in os.environ.items() if k != COLUMNS}
    return {STARTED: started(), **inherited, **for_ranks()}


def _start_on_hosts(
    module: Sequence[str], ranks: int, options: RunOptions, library: str, mpirun: str | None
) -> int:
    """As `start`, but on other hosts. Ranks have no socket to this process, as under mpirun."""
    command, env = hosts_launcher(
        ranks, library, mpirun, _environment(), options.hosts, options.hostfile
    )
    soft = SOFTLY if "Open MPI" in library and command[0] == mpirun else SIGTERM
    # Ranks with this option know that --host has been obeyed.
    words = [*command, *python(*module, *options.argv, "--expected-ranks", str(ranks))]
    reasons: list[str] = []
    ended = child.run(words, env, soft, on_line=lambda line: _pass_on(line, reasons))
    if ended.interrupted:
        return 128 + ended.interrupted
    if ended.status in MEANING:
        return ended.status
    where = ", ".join(options.hosts) or f"the hosts of {options.hostfile}"
    said = "its own lines above say why" if reasons else "it gave no reason"
    print_note(
        f"{words[0]} on {where} ended with status {ended.status}; {said}"
        " (docs/launching.md: ranks on several hosts)"
    )
    return RANK_LOST


def _pass_on(line: str, reasons: list[str]) -> None:
    """Print a line of a launcher or its ranks, but not where in its source a launcher failed.

    ``reasons`` gets the lines printed.
    """
    if not is_internal(line):
        reasons.append(line)
        sys.stderr.write(make_lines_printable(line))
        sys.stderr.flush()


def _report(records: bytes, why: str, options: RunOptions) -> None:
    """Print the closing report, or sentences, of a run whose rank 0 could not print it."""
    conclude = closing_sentences if options.quiet else closing
    rows = measurements(records.decode())
    lines = conclude(rows, options.statistic, more=repeated(options))
    Screen(0).lines([f"{EARLY} {why}", *lines])
