"""Real limits of memory: a sweep under ulimit -v or in a cgroup leaves rows out and ends well."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import Mpi, Run, good, table_rows, thorough, under

GIB = 2**30
# What the small rows need is there; 256 MiB on 4 ranks need more than either limit leaves.
SWEEP = [
    *("-m", "bench.allreduce", "-b", "1M", "-e", "256M", "-f", "256", "-n", "1", "-w", "0"),
    *("-A", "ring,ps,library", "--limit", "none"),
]


def _judge(out: str, where: str, left_out: int) -> None:
    rows = table_rows(out)
    assert [row[0] for row in rows] == ["1048576", "268435456"] * 3
    for row in rows:
        assert {row[8], row[12]} <= {"0", "N/A"}, "a wrong result"
        assert row[0] == "268435456" or "N/A" not in row, row
    said = [line for line in out.splitlines() if line.startswith("# skipped ")]
    assert len(said) == left_out == sum(row.count("N/A") for row in rows) / 4
    assert all(where in line and " to give; it would fit with" in line for line in said), said


@pytest.mark.parametrize("mpi", ["mpich", *thorough("openmpi")], indirect=True)
def test_an_address_space_costs_rows_and_not_the_run(mpi: Mpi, run: Run) -> None:
    """Rule: under ulimit -v what does not fit is N/A with that reason; what comes after it runs.

    Also the buffers of other ranks count, which a plan maps; a library maps its own alone, so that
    its row in place runs.
    """
    limited = ["sh", "-c", f'ulimit -v {GIB // 1024}; exec "$@"', "sh"]
    out = good(run(*limited, *under(mpi, 4, *SWEEP)))
    _judge(out, "in the address space of one process (ulimit -v)", 5)


@pytest.fixture
def cgroup() -> Iterator[Path]:
    """A cgroup of either version with a limit of 1 GiB, in the one that BUSBAR_CGROUP names.

    Whose cgroups a machine's are is not for a test to guess.
    """
    given = os.environ.get("BUSBAR_CGROUP")
    if given is None:
        pytest.skip("BUSBAR_CGROUP names no cgroup to make another in")
    made = Path(given) / f"busbar-test-{os.getpid()}"
    made.mkdir()
    (limit,) = (
        f for f in map(made.joinpath, ("memory.limit_in_bytes", "memory.max")) if f.exists()
    )
    limit.write_text(str(GIB))
    yield made
    made.rmdir()


def test_a_cgroup_costs_rows_and_not_the_run(mpi: Mpi, run: Run, cgroup: Path) -> None:
    """Rule: in a cgroup what does not fit is N/A with that reason, and nothing is killed."""
    enter = ["sh", "-c", f'echo $$ > {cgroup}/cgroup.procs; exec "$@"', "sh"]
    out = good(run(*enter, *under(mpi, 4, *SWEEP)))
    _judge(out, f"/{cgroup.name} of node 0, which has ", 6)
