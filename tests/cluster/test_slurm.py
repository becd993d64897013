"""A job that `busbar recipe slurm` wrote, under the real Slurm on emulated hosts."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.conftest import REPO, Mpi, Run, table_rows

pytestmark = pytest.mark.usefixtures("namespaces")

_TREE = "SwitchName=leaf0 Nodes=host[0-1]\n"


@pytest.fixture
def slurm_root() -> str:
    """Where Slurm is: the folder in BUSBAR_SLURM_ROOT, or the machine's own."""
    for root in (os.environ.get("BUSBAR_SLURM_ROOT", ""), "/"):
        if root and (Path(root) / "usr/sbin/slurmctld-wlm").exists():
            return root
    return pytest.skip("no Slurm of Debian here, and no BUSBAR_SLURM_ROOT")


def test_a_recipe_runs_on_all_nodes(slurm_root: str, mpich: Mpi, run: Run, tmp_path: Path) -> None:
    """Rule: sbatch takes the script as it is written, and every node has its ranks."""
    job, tree = tmp_path / "job.sh", tmp_path / "topology.conf"
    tree.write_text(_TREE)
    options = ("-N", "2", "--ranks-per-node", "2", "-o", str(job))
    measure = ("allreduce", "-A", "library", "-b", "4K", "-e", "4K", "-n", "2", "-T", "60")
    assert run(mpich.python, "-m", "bench.recipe", "slurm", *options, "--", *measure).stderr == ""
    script = str(REPO / "benchmarks" / "cluster_slurm.sh")
    done = run(
        *(mpich.python, "-m", "bench.cluster", "--hosts", "2", "--once", "--"),
        *("sh", script, slurm_root, str(tree), "2", "", "sbatch", "--wait", str(job)),
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    (output,) = tmp_path.glob("busbar-allreduce-*.out")
    ranks = [line.split() for line in output.read_text().splitlines() if line.startswith("#  Rank")]
    assert [words[8] for words in ranks] == ["host0", "host0", "host1", "host1"]
    assert table_rows(output.read_text())
