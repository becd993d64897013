"""A qualification of emulated hosts over real launchers: faults are named, and nothing is left."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import Mpi, Run

pytestmark = pytest.mark.usefixtures("namespaces")


def test_a_slow_port_and_a_refusing_shell_are_named(mpi: Mpi, run: Run, tmp_path: Path) -> None:
    """Either MPI's mpirun: each measurement a launch, the two faults found, the others good."""
    folder = tmp_path / "run"
    done = run(
        *(mpi.python, "-m", "bench.cluster", "--hosts", "5", "--slow", "2:50Mbit"),
        *("--shell", "1:refuse", "--once", "--", mpi.python, "-m", "bench.qualify"),
        *("-o", str(folder), "--bytes", "512K", "--repeats", "3", "--deadline", "120"),
    )
    assert done.returncode == 1, done.stderr
    verdicts = json.loads((folder / "verdicts.json").read_text())["verdicts"]
    states = {" ".join(one["subject"]): one["state"] for one in verdicts}
    assert states["host1"] == "unreachable", done.stdout
    assert states["host2"] == "slow", done.stdout
    assert {states[host] for host in ("host0", "host3", "host4")} == {"good"}, done.stdout
    slow = next(one for one in verdicts if one["subject"] == ["host2"])
    assert 0.4 < slow["ratio"] < 0.6
    assert "3 of 5 hosts are good" in done.stdout
