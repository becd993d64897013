"""Launchers: command lines for each, runs under them, their progress, and how a run ended.

A run writes its progress to standard error (`bench.run.screen`); `show_progress` shows it in a
notebook or on a terminal.
"""

from __future__ import annotations

import os
import re
import resource
import shlex
import shutil
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from html import escape
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from typing import Any, NamedTuple

from bench.launch import child
from bench.launch.hostfile import from_file, states_slots
from busbar.errors import BusbarError, StoreError, Unavailable, Unsupported
from busbar.files import reason
from busbar.installation import extra
from busbar.launchers import find_program
from busbar.start import python
from busbar.status import FOUND, MEANING
from busbar.terminal import open_console

# Files that a rank opens, and that its launcher opens for each rank (observed with MPICH 5).
RANK_FILES, _LAUNCHER_FILES = 48, 4
_PROGRESS = re.compile(r"busbar: (\d{1,9})(?: of (\d{1,9}))? done, [^:]*: (.*)")


class RunProgress(NamedTuple):
    """The number of completed placements of rows, and the present one.

    ``of``: their total number, or 0 if a run continues until it is ended.
    """

    done: int
    of: int
    doing: str


def parse_progress(line: str) -> RunProgress | None:
    """Parse the progress in a line; None for any other line."""
    match = _PROGRESS.fullmatch(line.strip())
    return None if match is None else RunProgress(int(match[1]), int(match[2] or 0), match[3])


def error_messages(err: str) -> list[str]:
    """The messages of a run that are not progress, without their prefix."""
    lines = (
        line
        for line in err.splitlines()
        if line.startswith("busbar: ") and parse_progress(line) is None
    )
    return [line.removeprefix("busbar: ") for line in lines]


OnLine = Callable[[str], object]
"""Called with a line of a run's standard error."""
Show = Callable[[RunProgress], object]
#: Variables without which Open MPI's launcher refuses root.
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
#: Variables with which MPI's launchers read hosts from a file. The last one is of Open MPI 4, and
#: Kubeflow's MPI operator sets it.
HOST_VARIABLES = (
    "HYDRA_HOST_FILE", "PRTE_MCA_prte_default_hostfile", "OMPI_MCA_orte_default_hostfile",
)  # fmt: skip


class LaunchFailed(BusbarError):
    """A run that this process started has failed; the message is the run's last one."""

    def __init__(self, message: str, status: int = FOUND) -> None:
        """``status``: this command's exit status."""
        super().__init__(message)
        self.exit_status = status


class Interrupted(BusbarError):
    """A signal ended this process during a run."""

    def __init__(self, number: int, kept: str = "") -> None:
        """``kept``: text about where the rows measured so far are, for the message."""
        super().__init__(f"interrupted{kept}")
        self.exit_status = 128 + number


def launcher(
    ranks: int, library: str, mpirun: str, env: Mapping[str, str], map_by: str = "slot"
) -> tuple[list[str], dict[str, str]]:
    """The launcher's part of a command line on this host, and the environment that it needs.

    ``library`` is the MPI library's version text: Open MPI refuses root, and more ranks than cores,
    by default. ``map_by``: Open MPI's policy to map ranks to hosts.
    """
    extra: dict[str, str] = {}
    command = [mpirun, "-n", str(ranks)]
    if "Open MPI" in library:
        # With only an option to oversubscribe, it puts all ranks on the first of several hosts.
        command[1:1] = ["--map-by", f"{map_by}:oversubscribe"]
        if os.geteuid() == 0:
            extra = {**AS_ROOT}
    return command, {**env, **extra}


def hosts_launcher(
    ranks: int,
    library: str,
    mpirun: str | None,
    env: Mapping[str, str],
    hosts: Sequence[str],
    file: Path | None = None,
) -> tuple[list[str], dict[str, str]]:
    """Like `launcher`, with ranks on ``hosts``, or on those in a file that the launcher reads.

    Successive ranks are on one host until it has its share: as many as the file says, else the same
    number on each host. In a Slurm job srun starts them. Raises Unavailable without a launcher,
    Unsupported for a file that is another MPI's.
    """
    srun = shutil.which("srun") if env.get("SLURM_JOB_ID") else None
    names = ",".join(hosts)
    if srun is not None:
        place, count = [f"--nodelist={names}"], len(hosts)
        if file is not None:
            place, count = [f"--nodefile={file}"], len(from_file(file))
        # Without these a step has all nodes of the job, and where Slurm packs nodes
        # (CR_Pack_Nodes) the first one gets nearly all ranks. A job may have another distribution.
        place += [f"--nodes={count}", f"--ntasks-per-node={-(-ranks // count)}"]
        place += ["--distribution=block"]
        return [srun, *place, f"--ntasks={ranks}", "--kill-on-bad-exit=1"], dict(env)
    if mpirun is None:
        raise Unavailable(f"no mpirun beside this Python or on PATH; {extra('mpi')}")
    kept = {name: value for name, value in env.items() if name not in HOST_VARIABLES}
    open_mpi = "Open MPI" in library
    if file is None:
        each = -(-ranks // len(hosts))
        command, kept = launcher(ranks, library, mpirun, kept)
        slots = ",".join(f"{host}:{each}" for host in hosts)
        command[1:1] = ["--host" if open_mpi else "-hosts", slots]
        return command, kept
    form = states_slots(file)
    if form == "slots=" and not open_mpi:
        raise Unsupported(f"--hostfile {file}: slots= is Open MPI's; MPICH reads HOST:RANKS")
    if form == "HOST:RANKS" and open_mpi:
        raise Unsupported(f"--hostfile {file}: HOST:RANKS is MPICH's; Open MPI reads HOST slots=2")
    # Of hosts alone MPICH takes one after the other for each rank, and Open MPI fills the first.
    each = 0 if form else -(-ranks // len(from_file(file)))
    map_by = f"ppr:{each}:node" if each else "slot"
    command, kept = launcher(ranks, library, mpirun, kept, map_by)
    blocks = ["-ppn", str(each)] if each and not open_mpi else []
    command[1:1] = ["--hostfile" if open_mpi else "-f", str(file), *blocks]
    return command, kept


def run_of_its_own(
    module: Sequence[str],
    ranks: int,
    argv: Sequence[str],
    *,
    command: str | None = None,
    check_ranks: bool = True,
    variables: Mapping[str, str] | None = None,
    on_line: OnLine | None = None,
    within: float | None = None,
    on_signal: Callable[[int], object] = lambda count: None,
    **streams: Any,
) -> child.Ended:
    """Run ``python -m`` module on ``ranks`` ranks as a separate run, and wait for its end.

    ``command``: a cluster's launcher with ``{ranks}`` in it; None: the run starts its ranks on this
    host (``--ranks``). ``check_ranks``: False if the launcher may start any number; else another
    number than ``ranks`` ends the run with an error. ``variables`` are added to the environment.
    ``on_line``, ``within``, ``on_signal`` and ``streams``: see `bench.launch.child.run`. Raises
    Unavailable if nothing can be started.
    """
    own = python(*module, *argv)
    if command is None:
        words, stop_signal = [*own, "--ranks", str(ranks)], None  # the last of an option counts
    else:
        program, *more = _words(command)
        start = [word.replace("{ranks}", str(ranks)) for word in (find_program(program), *more)]
        expected = ["--expected-ranks", str(ranks)] if check_ranks else []
        # At SIGINT srun only prints its state.
        words, stop_signal = [*start, *own, *expected], signal.SIGTERM
    env = {**os.environ, **(variables or {})}
    return child.run(
        words, env, stop_signal, on_line=on_line, within=within, on_signal=on_signal, **streams
    )


@contextmanager
def folder_for_rows(*, elsewhere: bool) -> Iterator[Path]:
    """A folder to which launches write rows for this process, removed when the context ends.

    ``elsewhere``: their rank 0 may be on another host. Then the folder is in the working directory,
    which hosts often share, and not in the one for temporary files. Raises StoreError.
    """
    where, prefix = (Path(), ".busbar-") if elsewhere else (Path(gettempdir()), "busbar-")
    try:
        folder = TemporaryDirectory(prefix=prefix, dir=where.absolute(), ignore_cleanup_errors=True)
    except OSError as error:
        name = "the working directory" if elsewhere else where
        raise StoreError(f"{name}: cannot be written: {reason(where, error)}") from None
    with folder as name:
        yield Path(name)


def succeeded(name: str, ended: child.Ended, *, ours: bool = True) -> None:
    """Raise Interrupted or LaunchFailed if a run failed.

    ``ours``: it is a run of Busbar, so its exit status has the same meaning as this command's.
    """
    if ended.interrupted:
        raise Interrupted(ended.interrupted)
    if ended.status:
        messages = error_messages(ended.err) or ended.err.strip().splitlines() or ["nothing said"]
        status = ended.status if ours and ended.status in MEANING else FOUND
        raise LaunchFailed(f"{name}: exit status {ended.status}: {messages[-1]}", status)


def _words(command: str) -> list[str]:
    """Split a command line. Raises Unsupported if a quote is not closed."""
    try:
        return shlex.split(command)
    except ValueError as error:
        raise Unsupported(f"--launcher {command!r}: {str(error).lower()}") from None


def files_for(ranks: int) -> int:
    """How many files a process may need to open in a run of ``ranks`` ranks on this host."""
    return RANK_FILES + _LAUNCHER_FILES * ranks


def room_for_files(ranks: int) -> None:
    """Raise the limit of open files as far as needed. Raises Unavailable if that is not possible.

    At the limit a launcher fails with an assertion that does not name the reason.
    """
    need = files_for(ranks)
    allowed = raise_file_limit(need)
    if allowed < need:
        raise Unavailable(
            f"at most {allowed} files may be open (ulimit -n); {ranks} ranks and their launcher"
            f" need about {need}. Raise it, start fewer, or use --transport inproc"
        )


def raise_file_limit(need: int) -> int:
    """Raise this process's limit of open files to ``need``, or to the hard limit if that is lower.

    Returns how many of these files may be open.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= need:
        return need
    allowed = need if hard == resource.RLIM_INFINITY else min(need, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    return allowed


@contextmanager
def show_progress(
    title: str, wanted: bool | None, begin: Callable[[], RunProgress] | None = None
) -> Iterator[OnLine]:
    """Show a run's progress; yields a function to call with each line of its standard error.

    The display disappears at the end of the run. Nothing is shown outside of terminals and
    notebooks, or if not ``wanted``. ``begin``: what is shown before the first line, if known.
    """
    display = None if wanted is False else _notebook()
    here: AbstractContextManager[Show] = nullcontext(lambda at: None)
    if display is not None:
        here = _in_notebook(display, title)
    elif wanted is not False and sys.stderr is not None and sys.stderr.isatty():
        here = _on_terminal(title)
    else:
        begin = None
    with here as show:
        if begin is not None:
            show(begin())
        yield lambda line: (at := parse_progress(line)) and show(at)


def _notebook() -> Any:
    """IPython's ``display`` if this process is a notebook's kernel; else None."""
    if "ipykernel" not in sys.modules or "IPython" not in sys.modules:
        return None
    from IPython import get_ipython
    from IPython.display import display

    here = get_ipython()
    return display if here is not None and type(here).__module__.startswith("ipykernel.") else None


@contextmanager
def _in_notebook(display: Any, title: str) -> Iterator[Show]:
    def html(done: int, of: int, doing: str) -> dict[str, str]:
        bar = f'<progress value="{done}" max="{max(1, of)}"></progress>'
        text = f"{done} of {of or '?'}" + (f": {doing}" if doing else "")
        return {
            "text/html": f"{escape(title)} {bar} {escape(text)}",
            "text/plain": f"{title}: {text}",
        }

    handle = display(html(0, 0, ""), raw=True, display_id=True)
    try:
        yield lambda at: handle.update(html(*at), raw=True)
    finally:
        handle.update({"text/plain": ""}, raw=True)


@contextmanager
def _on_terminal(title: str) -> Iterator[Show]:
    from rich.progress import Progress

    with Progress(console=open_console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=None)
        yield lambda at: bar.update(
            task,
            completed=at.done,
            total=at.of or None,
            description=": ".join(filter(None, (title, at.doing))),
        )
