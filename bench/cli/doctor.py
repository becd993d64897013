"""``busbar doctor``: checks what a run needs on this machine, and shows remedies."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from importlib.util import find_spec
from pathlib import Path
from textwrap import wrap
from typing import NamedTuple

from bench.cli.ranks import core_ranks, gpu_ranks
from bench.launch.launch import AS_ROOT, RANK_FILES, files_for
from bench.launch.segments import room
from bench.run.memory import free_memory
from busbar.aliases import ROOMS
from busbar.commands import Command
from busbar.errors import Unavailable
from busbar.host import core_share, cores, cpu_model, numa_nodes
from busbar.installation import (
    DISTRIBUTION,
    HOME,
    busbar_version,
    checkout,
    extra,
    reinstall,
    revision,
)
from busbar.launchers import mpirun_beside
from busbar.mpi import library_version, load_mpi
from busbar.options import switch
from busbar.rooms import owners
from busbar.start import python
from busbar.status import FOUND
from busbar.terminal import make_printable
from busbar.units import format_bytes, format_count
from collectives.execution.gpu import take
from collectives.execution.gpu.take import load_nccl, version_text
from collectives.execution.shm.transport import why_not

_LIBRARIES = ("pandas", "pyarrow", "matplotlib", "plotly", "yaml", "networkx")
_PATIENCE_S, _LATE = 10.0, 124  # the status is that of timeout(1)


class CheckStatus(Enum):
    """Result of one check: ok, absent (and perhaps not needed), or broken."""

    GOOD = "ok"
    ABSENT = "--"
    WRONG = "!!"


GOOD, ABSENT, WRONG = CheckStatus


class Check(NamedTuple):
    """The result of a check: its subject, status, finding and remedy (which may be empty)."""

    name: str
    state: CheckStatus
    text: str
    remedy: str = ""


def _busbar() -> Check:
    known = revision()
    home = checkout()
    where = f"checkout {home}" if home is not None else f"installed in {HOME}"
    version = f"{busbar_version()}{f' ({known[:12]})' if known else ''}, {where}"
    strangers = sorted({who for name in ("busbar", *ROOMS) for who in owners(name, HOME)})
    strangers = [who for who in strangers if who != DISTRIBUTION]
    if strangers:
        text = f"{version}; {', '.join(strangers)} has put files of the same names there"
        return Check("busbar", WRONG, text, f"pip uninstall {strangers[0]}; {reinstall()}")
    return Check("busbar", GOOD, version)


def _python() -> Check:
    version = ".".join(map(str, sys.version_info[:3]))
    return Check("Python", GOOD, f"{version}, {sys.executable}")


def _native() -> Check:
    if not why_not():
        return Check("C++ kernels", GOOD, "built: the ranks of one host share memory (shm)")
    compiler = next(filter(None, map(shutil.which, ("c++", "g++", "clang++"))), None)
    first = "" if compiler else "install a C++20 compiler (g++ or clang++), then "
    reason = why_not().partition(";")[0]
    return Check("C++ kernels", ABSENT, reason, f"{first}{reinstall()}")


def _first(error: Exception) -> str:
    """The message of an error without its remedy."""
    return str(error).partition(";")[0]


def _mpi() -> Check:
    try:
        return Check("MPI", GOOD, library_version(load_mpi()))
    except Unavailable as error:
        return Check("MPI", ABSENT, f"{_first(error)}; ranks are threads", extra("mpi"))


def _library() -> str | None:
    mpi = _mpi()
    return mpi.text if mpi.state is GOOD else None


def _threads() -> Check:
    """The check of the MPI thread level. A child process starts MPI, so that this one does not."""
    name = "MPI threads"
    if _library() is None:
        return Check(name, ABSENT, "not needed without MPI")
    status, output = _said(python("busbar.mpi"))
    levels = [line for line in output.splitlines() if line.startswith("level ")]
    if status == _LATE:
        return Check(name, WRONG, f"MPI {output}", "try again when the machine is less busy")
    if status or not levels:
        last = (output.strip().splitlines() or ["nothing said"])[-1]
        return Check(name, WRONG, f"MPI cannot be started: {last}", "see what its launcher says")
    level, why = levels[-1].split(" ", 2)[1:]
    return Check(name, GOOD, f"{level}: {why}")


def family(text: str) -> str:
    """The vendor of a library or launcher, by its version text; empty if unknown."""
    for mark, name in (
        ("open mpi", "Open MPI"),
        ("open-mpi", "Open MPI"),
        ("openrte", "Open MPI"),
        ("prte", "Open MPI"),
        ("intel", "Intel MPI"),
        ("mvapich", "MVAPICH"),
        ("hydra", "MPICH"),
        ("mpich", "MPICH"),
    ):
        if mark in text.lower():
            return name
    return ""


def _said(command: Sequence[str]) -> tuple[int, str]:
    """Exit status and output of a short command; status 127 if it cannot be started.

    If it takes longer than `_PATIENCE_S`, the status is `_LATE`.
    """
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=_PATIENCE_S,
            check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return _LATE, f"did not answer within {_PATIENCE_S:g} s"
    except (OSError, subprocess.SubprocessError) as error:
        return 127, str(error)
    return done.returncode, done.stdout + done.stderr


def _launcher() -> Check:
    library, mpirun = _library(), mpirun_beside()
    if mpirun is None:
        text = "no mpirun beside this Python or on PATH"
        return Check("launcher", ABSENT, text, extra("mpi"))
    whose = family(_said([mpirun, "--version"])[1])
    mine = family(library or "")
    if library is None:
        return Check("launcher", ABSENT, f"{mpirun} ({whose}), but no MPI library for it")
    if mine and whose and (mine == "Open MPI") != (whose == "Open MPI"):
        text = f"{mpirun} is of {whose}, the library of {mine}: every rank would run alone"
        return Check("launcher", WRONG, text, f"put the mpirun of {mine} first on PATH")
    findings, remedies = [f"{mpirun} ({whose or 'unknown'}), what --ranks starts"], list[str]()
    if mine == "Open MPI" and os.geteuid() == 0 and not AS_ROOT.keys() <= os.environ.keys():
        findings.append("mpirun itself refuses root")
        export = " ".join(f"{name}={value}" for name, value in AS_ROOT.items())
        remedies.append(f"export {export}")
    other = shutil.which("mpirun")
    if other is not None and Path(other).resolve() != Path(mpirun).resolve():
        theirs = family(_said([other, "--version"])[1]) or "unknown"
        findings.append(f"PATH has another, {other} ({theirs})")
        remedies.append(f"write {mpirun} where you mean this one, or --ranks")
    return Check("launcher", GOOD, "; ".join(findings), "; ".join(remedies))


def _gpus() -> Check:
    if not take.driver_here():
        return Check("GPUs", ABSENT, "no NVIDIA driver here")
    control = Path("/dev/nvidiactl")
    if control.exists() and not os.access(control, os.R_OK | os.W_OK):
        text = f"{control} may not be opened by this user"
        return Check("GPUs", WRONG, text, "join the group that owns it (ls -l)")
    try:
        cupy, count = take.visible()
    except Unavailable as error:
        return Check("GPUs", WRONG, _first(error), extra("cuda13"))
    return Check("GPUs", GOOD, f"{count}, CuPy {cupy.__version__}")


def _nccl() -> Check:
    if not take.driver_here():
        return Check("NCCL", ABSENT, "not asked for without a driver")
    try:
        nccl = load_nccl()
        return Check("NCCL", GOOD, version_text(int(nccl.get_version())))
    except Unavailable as error:
        return Check("NCCL", WRONG, _first(error), extra("cuda13"))


def _memory() -> Check:
    return Check("memory", GOOD, f"{format_bytes(free_memory())} free for the ranks of this host")


def _shm() -> Check:
    ranks, library = core_ranks(), _library()
    if library is None:
        return Check("MPI's memory", ABSENT, "not needed without MPI")
    try:
        room(ranks, library)
    except Unavailable as error:
        text, _, remedy = str(error).partition("; ")
        return Check("MPI's memory", WRONG, text, remedy)
    return Check("MPI's memory", GOOD, f"room for the segments of {format_count(ranks, 'rank')}")


def _files() -> Check:
    ranks = core_ranks()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < files_for(ranks):
        text = f"{hard} at most, {ranks} ranks and their launcher need {files_for(ranks)}"
        return Check("open files", WRONG, text, "raise ulimit -n, or start fewer ranks")
    most = "without limit" if hard == resource.RLIM_INFINITY else f"{hard} at most"
    return Check("open files", GOOD, f"{most}, {RANK_FILES} or so a rank")


def _cores() -> Check:
    nodes = len(numa_nodes()) or 1
    text = f"{len(cores())} in {format_count(nodes, 'NUMA node')}, {cpu_model()}"
    if (share := core_share()) < len(cores()):
        text += f"; a cgroup's quota allows the time of {share:.3g}, and ranks beyond that wait"
    return Check("cores", GOOD, text)


def _namespaces() -> Check:
    as_root = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    status, text = _said(["unshare", *as_root, "--net", "true"])
    if status == 0:
        return Check("namespaces", GOOD, "hosts and links can be emulated (busbar cluster)")
    line = (text.strip().splitlines() or ["refused"])[-1]
    settings = "user.max_user_namespaces and kernel.apparmor_restrict_unprivileged_userns"
    return Check("namespaces", ABSENT, f"no emulated hosts: {line}", f"sysctl {settings} say why")


def _reports() -> Check:
    missing = [name for name in _LIBRARIES if find_spec(name) is None]
    if missing:
        return Check("reports", ABSENT, f"without {', '.join(missing)}", extra("reports"))
    return Check("reports", GOOD, "tables, DataFrames, plots and pages")


def _completion() -> Check:
    if find_spec("argcomplete") is None:
        return Check("completion", ABSENT, "no argcomplete", extra("completion"))
    turn_on = 'eval "$(register-python-argcomplete busbar)"'
    return Check("completion", GOOD, "of the shell's words, once it is turned on", turn_on)


def _default() -> Check:
    """The transport and ranks of a run without options, in the order of `bench.cli.start`."""
    ranks, library = core_ranks(), _library()
    if (count := gpu_ranks()) is not None:
        kind = "thread" if library is None else "rank"
        line = f"--{kind}s {count}: nccl, a GPU a {kind}"
        return Check("by default", GOOD, f"busbar allreduce {line}")
    name = "mpi, without shared memory of our own" if why_not() else "shm"
    line = f"--ranks {ranks}: {name}, beside {library}"
    if library is None or mpirun_beside() is None:
        line = f"--transport inproc --ranks {ranks}: threads of one process"
    return Check("by default", GOOD, f"busbar allreduce {line}")


CHECKS: Sequence[Callable[[], Check]] = (
    _busbar, _python, _cores, _memory, _native, _mpi, _threads, _launcher, _shm, _files, _gpus,
    _nccl, _namespaces, _reports, _completion, _default,
)  # fmt: skip


class DoctorCommand(Command):
    """Check the installation, show remedies, and show what a run would use by default.

    Exit status 1 if a check found that a run would fail.
    """

    EPILOG = "ok: works; --: not installed, and perhaps not needed; !!: a run would fail."

    json: bool = switch("--json  the findings as one JSON object")

    def run(self) -> int:
        """Print all results. Returns 0, or 1 if a check failed."""
        width = shutil.get_terminal_size().columns
        results = []
        for check in CHECKS:
            results.append(check())
            for line in () if self.json else _lines(results[-1], width):
                print(make_printable(line))
        if self.json:
            print(json.dumps(_object(results), indent=1))
        return FOUND if any(check.state is WRONG for check in results) else 0


def _object(results: Sequence[Check]) -> dict[str, object]:
    """The findings for ``--json``: whether a run would work, and every check in its order."""
    return {
        "good": all(check.state is not WRONG for check in results),
        "checks": [
            {
                "name": check.name,
                "status": check.state.name.lower(),
                "finding": check.text,
                "remedy": check.remedy,
            }
            for check in results
        ],
    }


def _lines(check: Check, width: int) -> Iterator[str]:
    """The finding, and below it the remedy on one line, so that it can be copied."""
    head = f"{check.state.value}  {check.name:<12}  "
    room = max(40, width - len(head))
    first, *more = wrap(check.text, room, break_long_words=False, break_on_hyphens=False) or [""]
    yield head + first
    yield from (" " * len(head) + line for line in more)
    if check.remedy:
        yield f"{' ' * len(head)}-> {check.remedy}"
