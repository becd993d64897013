"""The command lines of launches: hosts in order, ranks a host, and nothing from the environment."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import pytest

from bench.launch.hostfile import MOST_HOSTS, from_file, from_words
from bench.qualify.hosts import check_in_job, checked, from_environment, racks
from bench.qualify.launchers import MOST_JOINED, MPIRUN, SRUN, SSH, Launcher, choose
from busbar.errors import Unavailable, Unsupported

WORKER = ["python", "worker.py", "pairs"]


def test_each_launcher_is_told_hosts_and_ranks() -> None:
    """Two ranks on each of two hosts, host by host, by every launcher's own words."""
    hosts = ("b", "a")
    mpich = Launcher(MPIRUN, "mpirun").words(hosts, 2, WORKER)
    assert mpich == ["mpirun", "-hosts", "b,a", "-ppn", "2", "-n", "4", *WORKER]
    open_mpi = Launcher(MPIRUN, "mpirun", open_mpi=True).words(hosts, 2, WORKER)
    assert open_mpi[:3] == ["mpirun", "--host", "b:2,a:2"]
    srun = Launcher(SRUN, "srun", more=("--mpi=pmi2",)).words(hosts, 2, WORKER)
    assert {"--nodes=2", "--ntasks=4", "--ntasks-per-node=2", "--nodelist=b,a"} <= {*srun}
    assert srun[-4:] == ["--mpi=pmi2", *WORKER]


def test_a_remote_shell_gets_one_quoted_command() -> None:
    """The shell on the host reads the worker's words as they are, and leaves no process between."""
    words = Launcher(SSH, "ssh").words(("a",), 1, ["python", "a b;c"])
    assert words[:3] == ["ssh", "-oBatchMode=yes", "a"]
    assert shlex.split(words[3]) == ["exec", "python", "a b;c"]


def test_a_launch_does_not_take_hosts_from_the_environment() -> None:
    """A host file of the whole job would bring other hosts into a launch."""
    env = {"HYDRA_HOST_FILE": "x", "PRTE_MCA_prte_default_hostfile": "x", "PATH": "/bin"}
    kept = Launcher(MPIRUN, "mpirun").environment(env, run_as_root=False)
    assert "x" not in kept.values()
    assert kept["PATH"] == "/bin"


def test_srun_outside_a_job_is_refused() -> None:
    """Without an allocation srun would wait in the queue for each launch."""
    with pytest.raises(Unsupported, match="this is no Slurm job"):
        choose(SRUN, (), "ssh", {})


@pytest.mark.parametrize(
    ("cpus", "ranks", "over"),
    [
        ("1(x3)", 2, True),
        ("64(x2),1", 2, True),
        ("64(x2),2", 2, False),
        ("4", 8, True),
        ("", 2, False),
    ],
)
def test_a_job_with_fewer_cpus_than_ranks_is_no_fault_of_its_hosts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cpus: str, ranks: int, over: bool
) -> None:
    """Rule: srun may put two ranks on a node's only CPU; else every host alone would fail."""
    (tmp_path / "srun").touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    env = {"SLURM_JOB_ID": "1", "SLURM_JOB_CPUS_PER_NODE": cpus}
    words = choose(None, (), "ssh", env).words(("a",), ranks, WORKER)
    assert ("--overcommit" in words) == over


def test_hosts_of_a_file_count_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Rule: a host file may repeat a host for each of its slots, as PBS does; a list has a note."""
    path = tmp_path / "nodes"
    path.write_text("a\na\nb:4\nb slots=4  # two\n")
    assert checked(from_environment({"PBS_NODEFILE": str(path)})) == ("a", "b")
    assert checked(from_file(path)) == ("a", "b")
    assert checked(from_words("a,b,a")) == ("a", "b")
    assert "--hosts: a is named more than once" in capsys.readouterr().err
    path.write_text("a r1\nb r2\n")
    assert racks(path, ("a", "b")) == {"a": "r1", "b": "r2"}
    with pytest.raises(Unsupported, match="no rack for c"):
        racks(path, ("a", "b", "c"))
    with pytest.raises(Unsupported, match="no hosts; give --hostfile"):
        from_environment({})


@pytest.mark.parametrize(
    "variable",
    [
        "HYDRA_HOST_FILE",
        "PRTE_MCA_prte_default_hostfile",
        "OMPI_MCA_orte_default_hostfile",  # an MPIJob's with Open MPI
    ],
)
def test_hosts_of_an_mpi_launcher_are_the_jobs(tmp_path: Path, variable: str) -> None:
    """Rule: without options the hosts are those of the job, by either MPI; no launch gets all."""
    path = tmp_path / "hosts"
    path.write_text("a slots=8\nb slots=8\n")
    env = {variable: str(path)}
    assert checked(from_environment(env)) == ("a", "b")
    assert variable not in Launcher(MPIRUN, "mpirun").environment(env, run_as_root=False)


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("node[001-003,200],b", ["node001", "node002", "node003", "node200", "b"]),
        (
            "r[1-2]n[08-10]-ib, c",
            [f"r{r}n{n}-ib" for r in "12" for n in ("08", "09", "10")] + ["c"],
        ),
        ("n[9-11]", ["n9", "n10", "n11"]),
        ("a[2-1]", ["a[2-1]"]),
        ("a[1-2", ["a[1-2"]),
        ("a[x],b", ["a[x]", "b"]),
        ("", []),
    ],
)
def test_hosts_may_be_written_as_slurm_does(text: str, hosts: list[str], tmp_path: Path) -> None:
    """Rule: brackets are lists of numbers, with leading zeros; anything else is no host name."""
    assert [name for name, _ in from_words(text)] == hosts
    file = tmp_path / "hosts"
    file.write_text("n[1-2]:8\nn[3,4] slots=8\nn[5-6],m\n")
    assert checked(from_file(file)) == ("n1", "n2", "n3", "n4", "n5", "n6", "m")
    file.write_text("a, b ,c\nd:2 binding=user:0,1\n e  slots = 2 max_slots=4 # f\n")
    assert checked(from_file(file)) == ("a", "b", "c", "d", "e")
    file.write_text("n[1-2] a\nn3 b\n")
    assert racks(file, ("n1", "n2", "n3")) == {"n1": "a", "n2": "a", "n3": "b"}


@pytest.mark.parametrize("text", ["a,,b", "a,b,", ",a", "a, ,b", ","])
def test_an_empty_name_is_refused(text: str) -> None:
    """Rule: an empty name in a list is refused, so that no host is left out without a word."""
    with pytest.raises(Unsupported, match="has an empty name beside a comma"):
        from_words(text)


def test_a_list_of_too_many_hosts_is_refused_before_it_is_written_out() -> None:
    """Rule: a slip in a range, such as one digit more, takes no memory for its names."""
    for text in ("n[1-999999999]", "r[1-60000]n[1-60000]n[1-60000]"):
        with pytest.raises(Unsupported, match=rf"hosts; a list has at most {MOST_HOSTS:,}"):
            from_words(text)
    with pytest.raises(Unsupported, match="a name has at most 8 ranges"):
        from_words("n" + "[1]" * 5000)


def test_hosts_of_another_slurm_job_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule: a host without a share in the job is not taken for one that does not answer.

    A campaign that is resumed in a new job often has other hosts than the job.
    """
    scontrol = tmp_path / "scontrol"
    scontrol.write_text("#!/bin/sh\nprintf 'n1\\nn2\\n'\n")
    scontrol.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    env = {"SLURM_JOB_NODELIST": "n[1-2]"}
    check_in_job(("n1", "n2"), env)
    with pytest.raises(Unsupported, match=r"^n3 and 1 more host are not in this Slurm job"):
        check_in_job(("n1", "n3", "n4"), env)
    check_in_job(("n3",), {})
    scontrol.write_text("#!/bin/sh\nexit 1\n")
    check_in_job(("n3",), env)  # Slurm does not say what the job has
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    with pytest.raises(Unavailable, match="no scontrol on its PATH; give --hosts"):
        from_environment(env)


@pytest.mark.parametrize("kind", ["mpich", "open mpi", "srun"])
def test_a_launch_has_as_many_hosts_as_can_be_started(kind: str) -> None:
    """Rule: too many hosts, or names too long for a command line, are not tried.

    The attempt would end the campaign, and each that resumes it.
    """
    launcher = Launcher(SRUN if kind == "srun" else MPIRUN, kind, open_mpi=kind == "open mpi")
    short = [f"n{number}" for number in range(MOST_JOINED + 1)]
    long = [f"{number}.{'x' * 60}" for number in range(2500)]
    assert launcher.can_start(short[:-1], 8) and launcher.can_start(long[:1500], 8)
    assert not launcher.can_start(short, 1)
    assert not launcher.can_start(long, 1)
    assert not Launcher(SSH, "ssh").can_start(short[:2], 1)
    assert Launcher(SSH, "ssh").can_start(short[:1], 1)
