"""Every collective has its door, with nccl-tests' sizes and the library beside it."""

import re
from pathlib import Path

import numpy as np
import pytest

from bench.cli.main import listing, names
from bench.run.contenders import read_counts
from collectives.schedule.catalogue import spec
from tests.conftest import Mpi, Run, good, on_threads, table_rows, thorough, under

KIB = ("-b", "1K", "-e", "1K", "-n", "1")


@pytest.mark.parametrize(
    ("ranks", "kind"), [(3, "bfloat16"), (4, "float"), *thorough((3, "float"), (4, "bfloat16"))]
)
def test_every_algorithm_of_every_collective_is_right(ranks: int, kind: str) -> None:
    """Rule: one launch sweeps every collective that suits these ranks, and says the rest.

    -A all checks out; in-place is N/A exactly where the collective has none.
    """
    argv = ("-b", "4K", "-e", "4K", "-n", "1", "-A", "all", "-d", kind)
    status, out, err = on_threads("all", "--ranks", str(ranks), *argv)
    words = re.split(r"test starting: (\w+) ", out)
    tables = list(zip(words[1::2], words[2::2], strict=True))
    suits = {*names()} - ({"hypercube"} if ranks == 3 else set())
    assert status == 0 and {name for name, _ in tables} == suits, err
    assert ("left out: hypercube" in err) == (ranks == 3)
    for name, table in tables:
        rows = [row for row in table_rows(table) if row[0].isdigit()]
        in_place = "0" if spec(name).in_place else "N/A"
        assert rows and all((row[8], row[12]) == ("0", in_place) for row in rows), table


@pytest.mark.parametrize("collective", names())
def test_there_is_a_module_to_run(collective: str) -> None:
    """Rule: python -m bench.<name> exists for every benchmark, and is listed in one line."""
    door = Path(__file__).parents[3] / "bench" / f"{collective}.py"
    assert (
        f'leave("busbar", "bench.launch.control_socket:command", "{collective}")'
        in door.read_text()
    )
    assert sum(line.split()[:1] == [collective] for line in listing()) == 1


def test_all_roots_are_swept() -> None:
    """Rule: -r all gives a row a root, shown in the root column; a rootless collective shows -1."""
    _, out, _ = on_threads("broadcast", "--ranks 3", *KIB, "-A flat -r all")
    assert [row[4] for row in table_rows(out)] == ["0", "1", "2"]
    _, out, _ = on_threads("allgather", "--ranks 2", *KIB, "-A ring")
    assert [row[4] for row in table_rows(out)] == ["-1"]


def test_counts_come_from_a_file(tmp_path: Path) -> None:
    """Rule: --counts moves exactly the file's elements, zero and uneven ones too."""
    file = tmp_path / "counts.csv"
    file.write_text("# from rank (line) to rank\n0,5,1\n1000,0,0\n3,3,3\n")
    argv = ["--ranks", "3", "--counts", str(file), "-n", "1", "-A", "pairwise,direct"]
    out = good(on_threads("alltoallv", *argv))
    assert "4012" in out and "Out of bounds values : 0 OK" in out


def test_pairs_exchange_between_neighbours() -> None:
    """Rule: --pattern pairs is another specification of the same benchmark."""
    argv = ("--ranks", "4", *KIB, "-A", "direct", "--pattern", "pairs")
    status, out, _ = on_threads("sendrecv", *argv)
    assert status == 0 and "sendrecv_pairs" in out


def test_compositions_run_by_name() -> None:
    """Rule: -A halving+ring is a reduce-scatter then an all-gather; reduce+broadcast likewise."""
    argv = ("--ranks", "4", *KIB, "-A", "halving+ring,reduce+broadcast,binomial+flat")
    status, out, _ = on_threads("allreduce", *argv)
    assert status == 0 and out.count("values : 0 OK") == 3
    status, _, err = on_threads("allreduce", "--ranks 4 -A ring+nosuch")
    assert status == 2 and err.count("\n") == 1


def test_a_barrier_shows_time() -> None:
    """Rule: where nothing is moved the closing table shows microseconds."""
    _, out, _ = on_threads("barrier", "--ranks 2 -n 3 -A tree")
    figure = re.search(r"time in us\n.*tree\n#\s+0\s+(\S+)", out)
    assert figure and float(figure[1]) > 0


def test_counts_are_read_as_they_stand(tmp_path: Path) -> None:
    """Rule: a line is a sender, a column a receiver."""
    path = tmp_path / "c.csv"
    path.write_text("1,2\n3,4\n")
    assert np.array_equal(read_counts(path, 2), [[1, 2], [3, 4]])


@pytest.mark.parametrize(
    ("mpi", "ranks"),
    [("mpich", 4), *thorough(("mpich", 2), ("openmpi", 2), ("openmpi", 4))],
    indirect=["mpi"],
)
def test_all_collectives_beside_the_library_on_mpi(mpi: Mpi, run: Run, ranks: int) -> None:
    """Rule: on real MPI every algorithm and MPI's own collective are right, on every row."""
    size = ("-b", "64K", "-e", "64K", "-n", "1", "-w", "0")
    argv = ("-m", "bench", "all", "--transport", "mpi", *size, "-A", "all", "-d", "float")
    out = good(run(*under(mpi, ranks, *argv)))
    assert "FAILED" not in out
    assert out.count(" library (mpi)\n") == 2 * len(names())
