"""The ipc transport among processes that map each other's memory by handles, on the stand-in."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.conftest import LIMIT_S, REPO, environment
from tests.gpu_standin import library

SCRIPT = str(REPO / "tests/collectives/ipc_process.py")


def _ranks(folder: Path, what: str, n: int) -> tuple[list[int], list[str]]:
    """Exit statuses and what was said, of so many processes without a launcher."""
    library()  # built once, and found by the others through the environment
    ranks = [
        subprocess.Popen(
            [sys.executable, SCRIPT, what, str(folder), str(rank), str(n)],
            env=environment(),
            cwd=REPO,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(n)
    ]
    said = [rank.communicate(timeout=LIMIT_S)[0] for rank in ranks]
    return [rank.returncode for rank in ranks], said


def test_processes_reach_each_others_memory(tmp_path: Path) -> None:
    """Rule: memory of another process is read, written and signalled to through its handle."""
    statuses, said = _ranks(tmp_path, "right", 3)
    assert statuses == [0, 0, 0]
    assert all(int(line.split()[-1]) >= 30 for line in said)


def test_a_killed_rank_is_named_by_the_others(tmp_path: Path) -> None:
    """Rule: SIGKILL of a rank ends every launch that waits for it, and all ranks name it."""
    statuses, said = _ranks(tmp_path, "die", 3)
    assert statuses == [4, 4, -9]
    # Who waited for a rank that stopped only because of the dead one may name that.
    assert any(line.startswith("rank 2 died") for line in said[:2])
    assert all("rank 2 died" in line or "failed in a collective" in line for line in said[:2])
