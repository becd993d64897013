"""The command lines of launches: hosts in order, ranks a host, and nothing from the environment."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from bench.qualify.hosts import checked, from_environment, racks
from bench.qualify.launchers import MPIRUN, SRUN, SSH, Launcher, choose
from busbar.errors import Unsupported

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


def test_hosts_of_a_batch_job_count_once(tmp_path: Path) -> None:
    """PBS repeats a host for each of its slots; of a file that a user wrote that is refused."""
    path = tmp_path / "nodes"
    path.write_text("a\na\nb:4\nb slots=4  # two\n")
    assert checked(from_environment({"PBS_NODEFILE": str(path)})) == ("a", "b")
    path.write_text("a r1\nb r2\n")
    assert racks(path, ("a", "b")) == {"a": "r1", "b": "r2"}
    with pytest.raises(Unsupported, match="no rack for c"):
        racks(path, ("a", "b", "c"))
    with pytest.raises(Unsupported, match="no hosts; give --hostfile"):
        from_environment({})
