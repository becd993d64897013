"""The shm transport among processes: right results, and a killed rank is noticed and named."""

import sys
from pathlib import Path

import pytest

import native
from tests.conftest import LIMIT_S, REPO, Mpi, Run, popen, thorough
from tests.together import together

SCRIPT = str(REPO / "tests/collectives/shm_process.py")
pytestmark = pytest.mark.skipif(native.load() is None, reason=native.why_not() or "")


@pytest.mark.parametrize("ranks", [3, *thorough(2, 4)])
@pytest.mark.parametrize("mpi", ["mpich", *thorough("openmpi")], indirect=True)
def test_processes_share_their_buffers(mpi: Mpi, run: Run, ranks: int) -> None:
    """Rule: memory of another process is read and written where it lies, with the right result.

    MPI-3 shared windows, where each rank's part begins at a page, carry the same plans: on request,
    or where /proc hides others, which is no matter of the MPI.
    """
    # What hides /proc stays, so that it comes last.
    memories = ["auto", "windows", *(["hidden"] if mpi.name == "mpich" else [])]
    ways = [["windows"], *(["right", memory] for memory in memories)]
    ended = together(run, mpi, ranks, *([SCRIPT, *way] for way in ways))
    for way, done in zip(ways, ended, strict=True):
        assert done.returncode == 0, (way, done.stderr)
        if way[0] == "right":  # hidden: one schedule says that windows serve
            schedules = 1 if way[1] == "hidden" else 9
            assert int(done.stdout.split()[-1]) >= 12 * schedules, way


@pytest.mark.parametrize("algorithm", ["ring", "sharded_ps"])
def test_a_killed_rank_is_named_by_the_others(algorithm: str, tmp_path: Path) -> None:
    """Rule: SIGKILL inside a collective is noticed before any deadline; nothing stays mapped.

    Without a launcher, which might end the others before they notice.
    """
    ranks = [
        popen([sys.executable, SCRIPT, "die", str(tmp_path), str(rank), "3", algorithm])
        for rank in range(3)
    ]
    said = [rank.communicate(timeout=LIMIT_S)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [4, 4, -9]
    for line in said[:2]:
        mapped, error = line.split(" ", 1)
        assert mapped == "0"
        assert error.startswith("rank 2 died")
