"""``--split`` on the host: groups run at once, and every one of them is reported."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import Mpi, Run, good, in_process, table_rows, thorough

SMALL = ["-b", "1K", "-e", "2K", "-n", "3", "-A", "ring"]


def test_groups_of_threads_of_different_sizes(tmp_path: Path) -> None:
    """Rule: groups need not be of one size; each has its table and its file."""
    file = tmp_path / "run.jsonl"
    more = ["--split", "div:2", "--out", str(file)]
    out = good(in_process("allreduce", "--threads 3 --transport inproc", *SMALL, *more))
    assert "# group 0 of 2: ranks 0 1\n" in out and "# group 1 of 2: ranks 2\n" in out
    for number, size in ((0, 2), (1, 1)):
        first, *rows, _ = (tmp_path / f"run.group{number}.jsonl").read_text().splitlines()
        assert json.loads(first)["environment"]["group"]["number"] == number
        assert [json.loads(row)["ranks"] for row in rows] == [size] * 4


def test_an_error_of_one_group_ends_all(tmp_path: Path) -> None:
    """Rule: no group waits for one whose options do not fit it, or whose results are there."""
    small = "-b 8 -e 8 -n 1 -A binomial --limit none"
    status, out, err = in_process("broadcast", "--threads 3 --split div:2 -r 1", small)
    assert status == 2 and not out and err.count("\n") == 1 and "group 1: " in err
    (tmp_path / "run.group1.jsonl").write_text("results\n")
    file = f"--out {tmp_path}/run.jsonl"
    status, out, err = in_process("broadcast", "--threads 4 --split div:2", small, file)
    assert status == 2 and not out and "run.group1.jsonl: has results already" in err
    assert [path.name for path in tmp_path.iterdir()] == ["run.group1.jsonl"]


def test_a_file_of_the_name_without_a_group_is_not_in_the_way(tmp_path: Path) -> None:
    """Rule: groups write files of their own, so the plain name is not refused."""
    (tmp_path / "run.jsonl").write_text("results\n")
    file = f"--out {tmp_path}/run.jsonl"
    good(in_process("allreduce", "--threads 2 --split mod:1 -b 8 -e 8 -n 1 -A ring", file))
    assert (tmp_path / "run.jsonl").read_text() == "results\n"


@pytest.mark.parametrize("transport", ["auto", *thorough("mpi")])
def test_groups_under_mpi(mpich: Mpi, run: Run, transport: str) -> None:
    """Rule: the same as processes, each group with its own library and shared memory."""
    program = (mpich.python, "-m", "bench.allreduce", "--transport", transport, *SMALL)
    out = good(run(mpich.mpirun, "-n", "4", *program, "--split", "mod:2"))
    titles = [line for line in out.splitlines() if line.startswith("# group")]
    assert titles == ["# group 0 of 2: ranks 0 2", "# group 1 of 2: ranks 1 3"]
    assert len(table_rows(out)) == 4
