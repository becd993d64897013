"""The shm transport among processes: right results, and a killed rank is noticed and named."""

from pathlib import Path

import pytest

import native
from tests.conftest import LIMIT_S, REPO, Mpi, Run, under

pytestmark = pytest.mark.timeout(LIMIT_S + 30)
SCRIPT = str(REPO / "tests/collectives/shm_process.py")
EXECUTORS = [
    "numpy",
    pytest.param(
        "native", marks=pytest.mark.skipif(native.load() is None, reason=native.why_not() or "")
    ),
]


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("executor", EXECUTORS)
def test_processes_share_their_buffers(mpi: Mpi, run: Run, executor: str, ranks: int) -> None:
    """Rule: memory of another process is read and written where it lies, with the right result."""
    done = run(*under(mpi, ranks, SCRIPT, "right", executor))
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[-1]) >= 12 * 12


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_killed_rank_is_named_by_the_others(
    mpich: Mpi, run: Run, executor: str, tmp_path: Path
) -> None:
    """Rule: SIGKILL inside a collective ends it for all in an error within seconds, never a hang.

    The launcher is told not to end the others itself, so that it is our notice that ends them.
    """
    patient = mpich._replace(flags=(*mpich.flags, "-disable-auto-cleanup"))
    done = run(*under(patient, 3, SCRIPT, "die", executor, str(tmp_path)))
    assert done.returncode != 0
    for rank in (0, 1):
        spent, error = (tmp_path / str(rank)).read_text().split(" ", 1)
        assert error.startswith("rank 2 died")
        assert float(spent) < LIMIT_S / 4
