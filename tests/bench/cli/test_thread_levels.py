"""MPI's thread level: which one is asked for, why, and what is said of it."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest

from bench.trials.ab import PairedRows
from busbar import launchers, mpi
from busbar.errors import Unsupported
from busbar.launchers import local_size, share_cores
from busbar.mpi import ThreadLevel, remarks, wanted
from reports.analysis.compare import differences
from reports.records.measurement import Measurement
from reports.tables.show import heading
from tests.conftest import Mpi, Run, good, thorough, under
from tests.reports.runs import allreduce, rows

MPICH, OPEN_MPI = "MPICH 5.0.2", "Open MPI v5.0.11"
BENCH = ("-m", "bench.allreduce", "-A", "library", "--sizes", "8", "-n", "2", "--limit", "none")


class _Rc:
    """mpi4py.rc, as far as levels go."""

    threads = True
    thread_level = "multiple"


@pytest.mark.parametrize(
    ("library", "shared", "expected"),
    [(MPICH, False, "funneled"), (MPICH, True, "multiple"), (OPEN_MPI, True, "funneled")],
)
def test_the_lowest_level_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, library: str, shared: bool, expected: str
) -> None:
    """Rule: a run asks for what it needs, and for more only where MPICH's ranks share cores."""
    monkeypatch.setattr(mpi, "share_cores", lambda env: shared)
    level = wanted(library, rc=_Rc(), env={})
    assert level.name == expected and mpi.OPTION in level.why
    assert ("share cores" in level.why) == (expected == "multiple")
    exchanging = wanted(library, needed="serialized", rc=_Rc(), env={})
    assert exchanging.name == ("multiple" if expected == "multiple" else "serialized")


def test_the_users_word_counts_in_this_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: the option, then mpi4py's variables, then mpi4py.rc, each named as the reason."""
    monkeypatch.setattr(mpi, "share_cores", lambda env: True)
    rc = _Rc()
    rc.thread_level = "serialized"
    env = {"MPI4PY_RC_THREAD_LEVEL": "Single"}
    assert wanted(MPICH, "funneled", rc=rc, env=env) == ThreadLevel("funneled", "--mpi-threads")
    assert wanted(MPICH, rc=rc, env=env) == ("single", "MPI4PY_RC_THREAD_LEVEL=single")
    assert wanted(MPICH, rc=rc, env={"MPI4PY_RC_THREADS": "0"}).name == "single"
    assert wanted(MPICH, rc=rc, env={}).name == "serialized"
    rc.threads = False
    assert wanted(MPICH, rc=rc, env={}) == ("single", "mpi4py.rc.threads is False")
    # What mpi4py's own default is may be meant, where it is written.
    env = {"MPI4PY_RC_THREAD_LEVEL": "multiple"}
    assert wanted(OPEN_MPI, rc=_Rc(), env=env).name == "multiple"
    with pytest.raises(Unsupported, match="MPI4PY_RC_THREAD_LEVEL='sigle': MPI has single,"):
        wanted(MPICH, rc=rc, env={"MPI4PY_RC_THREAD_LEVEL": "sigle"})


@pytest.mark.parametrize(
    ("env", "ranks"),
    [
        ({"MPI_LOCALNRANKS": "4"}, 4),
        ({"OMPI_COMM_WORLD_LOCAL_SIZE": "2"}, 2),
        ({"SLURM_STEP_TASKS_PER_NODE": "4(x2),3", "SLURM_NODEID": "1"}, 4),
        ({"SLURM_STEP_TASKS_PER_NODE": "4(x2),3", "SLURM_NODEID": "2"}, 3),
        ({"SLURM_STEP_TASKS_PER_NODE": "4(x2),3", "SLURM_NODEID": "3"}, None),
        ({"SLURM_STEP_TASKS_PER_NODE": "x", "SLURM_NODEID": "0"}, None),
        ({"PMI_SIZE": "4"}, None),
    ],
)
def test_ranks_of_this_host_are_the_launchers_word(env: dict[str, str], ranks: int | None) -> None:
    """Rule: each launcher's variables are known; who does not say is not guessed at."""
    assert local_size(env) == ranks


def _process(proc: Path, name: str, comm: str, parent: str, cpus: str) -> None:
    folder = proc / name
    folder.mkdir(parents=True)
    text = f"Name:\t{comm}\nPPid:\t{parent}\nCpus_allowed_list:\t{cpus}\n"
    (folder / "status").write_text(text)


def test_ranks_that_are_bound_do_not_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: the cores of a host's ranks are their launcher's, whatever each is bound to."""
    _process(tmp_path, "self", "python", "5", "0")
    _process(tmp_path, "5", "sh", "4", "0")
    _process(tmp_path, "4", "hydra_pmi_proxy", "3", "0-3")
    _process(tmp_path, "3", "mpiexec.hydra", "1", "0-7")
    assert launchers._launchers_cores(proc=tmp_path) == {0, 1, 2, 3}
    _process(tmp_path / "alone", "self", "python", "0", "0")
    assert launchers._launchers_cores(proc=tmp_path / "alone") == set()
    looks = itertools.cycle([{0}, {0, 1}, {2}, {3}])  # a launcher that explores the machine
    monkeypatch.setattr(launchers, "_launchers_cores", lambda: next(looks))
    assert not share_cores({"MPI_LOCALNRANKS": "4"}) and share_cores({"MPI_LOCALNRANKS": "5"})
    assert not share_cores({})


def test_shared_cores_below_multiple_are_said() -> None:
    """Rule: where ranks share cores after all, a line says what the other level would do."""
    low, high = ThreadLevel("funneled", "why"), ThreadLevel("multiple", "why")
    assert remarks(low, MPICH, False) == ["MPI thread level funneled: why"]
    assert "--mpi-threads multiple" in remarks(low, MPICH, True, {"MPI_LOCALNRANKS": "2"})[1]
    # A rank alone on its host, as on emulated hosts, has no shared memory to poll.
    assert len(remarks(low, MPICH, True, {"MPI_LOCALNRANKS": "1"})) == 1
    assert len(remarks(high, MPICH, True)) == len(remarks(low, OPEN_MPI, True)) == 1


def _rows(level: str, transport: str = "mpi") -> list[Measurement]:
    return rows(
        [
            allreduce("library", 2, size, [1e-5] * 9, transport=transport,
                      environment={"library": MPICH, "mpi_threads": level})
            for size in (1024, 4096)
        ]
    )  # fmt: skip


def test_levels_are_not_compared_unless_that_is_meant() -> None:
    """Rule: a difference of levels forbids a comparison of rows over MPI, and of no others.

    `bench.ab`, whose sides may differ in just that, says it.
    """
    base, new = _rows("multiple"), _rows("funneled")
    (found,) = differences(base, new)
    assert found.forbids and str(found) == (
        "MPI thread level: 2 rows over MPI, multiple -> funneled"
    )
    assert not differences(base, _rows("multiple"))
    assert not differences(_rows(""), new)  # an older record does not know
    assert not differences(_rows("multiple", "shm"), _rows("funneled", "shm"))
    pairs = PairedRows(0.01)
    pairs.add(base, new)
    assert pairs.against == "MPI thread level multiple against funneled"


def test_tables_of_records_name_the_level() -> None:
    """Rule: the heading of a table with rows over MPI has its level, that of others has none."""
    assert "MPI thread level funneled" in heading(_rows("funneled"))
    assert "thread level" not in heading(_rows("funneled", "shm"))


@pytest.mark.parametrize("mpi", ["mpich", *thorough("openmpi")], indirect=True)
def test_what_is_provided_stands_above_the_rows(mpi: Mpi, run: Run, tmp_path: Path) -> None:
    """Rule: what MPI provides is in the heading and in the record; the option asks for another."""
    for more, level in (((), ""), (("--mpi-threads", "single"), "single")):
        file = tmp_path / f"{level}.jsonl"
        out = good(run(*under(mpi, 2, *BENCH, "--out", str(file), *more)))
        said = re.search(r"^# MPI thread level (\w+): (.*)$", out, re.MULTILINE)
        assert said and (not level or (said[1], said[2]) == (level, "--mpi-threads"))
        assert f'"mpi_threads":"{said[1]}"' in file.read_text().replace(" ", "")
        assert out.count(f"# MPI thread level {said[1]}\n") == 1  # of the closing report


@pytest.mark.parametrize("mpi", ["mpich", *thorough("openmpi")], indirect=True)
def test_ranks_of_different_levels_are_refused(mpi: Mpi, run: Run) -> None:
    """Rule: MPICH's ranks crash in a collective where levels differ, so they do not come so far."""
    code = (
        "import os, sys; rank = os.environ.get('PMI_RANK') or os.environ['OMPI_COMM_WORLD_RANK'];"
        "os.environ['MPI4PY_RC_THREAD_LEVEL'] = 'multiple' if rank == '1' else 'single';"
        "from bench.cli.main import main; sys.exit(main('allreduce', sys.argv[1:]))"
    )
    done = run(*under(mpi, 2, "-c", code, *BENCH[2:]))
    assert done.returncode == 2, done
    assert "ranks 0 and 1 have different thread levels of MPI" in done.stderr
    assert "give --mpi-threads LEVEL to all" in done.stderr.replace("Give", "give")
    assert done.stderr.count("busbar:") == 1
