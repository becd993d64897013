"""A qualification of emulated hosts over real launchers: faults are named, and nothing is left."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import Mpi, Run, good, thorough

pytestmark = pytest.mark.usefixtures("namespaces")
SMALL = ("--bytes", "512K", "--repeats", "2", "--deadline", "120")


def test_a_refusing_shell_is_named(mpich: Mpi, run: Run, tmp_path: Path) -> None:
    """The shortest campaign with a fault over a real launcher: two hosts of three are good.

    The two have one pair, which only a minimum judges.
    """
    folder, minimum = tmp_path / "run", ("--minimum", "both=0.0001GB/s")
    done = run(
        *(mpich.python, "-m", "bench.cluster", "--hosts", "3", "--shell", "1:refuse", "--once"),
        *("--", mpich.python, "-m", "bench.qualify", "-o", str(folder), *SMALL, *minimum),
    )
    assert done.returncode == 1, done.stderr
    states = _states(folder)
    assert states["host1"] == "unreachable", done.stdout
    assert states["host0"] == states["host2"] == "good", done.stdout


@pytest.mark.parametrize("mpi", thorough("mpich", "openmpi"), indirect=True)
def test_a_slow_port_and_a_refusing_shell_are_named(mpi: Mpi, run: Run, tmp_path: Path) -> None:
    """Either MPI's mpirun: each measurement a launch, the two faults found, the others good."""
    folder = tmp_path / "run"
    done = run(
        *(mpi.python, "-m", "bench.cluster", "--hosts", "5", "--slow", "2:50Mbit"),
        *("--shell", "1:refuse", "--once", "--", mpi.python, "-m", "bench.qualify"),
        *("-o", str(folder), *SMALL),
    )
    assert done.returncode == 1, done.stderr
    states = _states(folder)
    assert states["host1"] == "unreachable", done.stdout
    assert states["host2"] == "slow", done.stdout
    assert {states[host] for host in ("host0", "host3", "host4")} == {"good"}, done.stdout
    verdicts = json.loads((folder / "verdicts.json").read_text())["verdicts"]
    slow = next(one for one in verdicts if one["subject"] == ["host2"])
    assert 0.2 < slow["ratio"] < 0.6, "half a port; less beside other work"
    assert "3 of 5 hosts are good" in done.stdout


# Runs a campaign of which a host hangs, kills it when launches are under way, and waits until no
# process of a launch is left: launchers, guards and ranks have the odd size in their words.
_KILLED = """
import os, signal, subprocess, sys, time
from pathlib import Path

def launches():
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\\0")
        except OSError:
            continue
        if b"524296" in words and int(path.parent.name) != campaign.pid:
            found.append(path.parent.name)
    return found

words = [sys.executable, "-m", "bench.qualify", "-o", sys.argv[1], "--bytes", "524296"]
campaign = subprocess.Popen([*words, "--deadline", "300"])
end = time.monotonic() + 60
while len(launches()) < 4:
    assert time.monotonic() < end, "no launches"
    time.sleep(0.01)
campaign.send_signal(signal.SIGKILL)
campaign.wait()
end = time.monotonic() + 30
while launches():
    assert time.monotonic() < end, f"left: {launches()}"
    time.sleep(0.05)
"""


@pytest.mark.parametrize("mpi", thorough("mpich", "openmpi"), indirect=True)
def test_killed_it_leaves_no_process_on_any_host(mpi: Mpi, run: Run, tmp_path: Path) -> None:
    """SIGKILL while launches are under way, of which one host's shell hangs: all of them end."""
    words = (mpi.python, "-c", _KILLED, str(tmp_path / "run"))
    good(
        run(
            *(mpi.python, "-m", "bench.cluster", "--hosts", "4", "--shell", "2:hang"),
            *("--once", "--", *words),
        )
    )


def _states(folder: Path) -> dict[str, str]:
    verdicts = json.loads((folder / "verdicts.json").read_text())["verdicts"]
    return {" ".join(one["subject"]): one["state"] for one in verdicts}
