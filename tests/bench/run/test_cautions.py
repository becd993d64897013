"""The end of a sweep: what makes its figures less sure than they look is said, and nothing else."""

from __future__ import annotations

import io
import sys

import numpy as np
import pytest

import bench.cli.ranks
import bench.run.rows
from bench.options.options import parse
from bench.run.screen import Screen
from bench.run.table_text import alternating
from busbar.errors import Unavailable
from busbar.host import cores
from busbar.terminal import print_note
from reports.records.measurement import Record
from tests.conftest import Run, on_threads

MARKS = {
    "-ppn 2": ("PMI_RANK", "PMI_SIZE"),
    "--map-by ppr:2:node": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    "--distribution=block": ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
}
STILL = 1e-5 * (1 + 0.01 * np.random.default_rng(1).random(60))
SWEEP = ("--ranks", "2", "-b", "1K", "-e", "4K", "-n", "60", "-A", "ring")


def _times(monkeypatch: pytest.MonkeyPatch, given_rows: list[np.ndarray]) -> None:
    """Let the placements of a sweep, one after the other, take these times."""
    given: dict[int, int] = {}

    def measured(plan: object, world: object, *rest: object) -> Record:
        turn = given[world.rank] = given.get(world.rank, -1) + 1  # type: ignore[attr-defined]
        times = tuple(given_rows[turn % len(given_rows)].tolist())
        return Record(times_s=times, iterations=len(times), stopped="iterations", timing="each")

    monkeypatch.setattr(bench.run.rows, "measure", measured)


def test_a_steady_run_is_left_in_peace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: where nothing moves a median nothing is said; nor of outliers that leave it alone."""
    outlying = STILL.copy()
    outlying[[7, 30]] *= 100  # a cv of hundreds of per cent, and the median where it was
    _times(monkeypatch, [STILL, outlying])
    status, _, err = on_threads("allreduce", *SWEEP)
    assert (status, err) == (0, "")


def test_many_unsteady_rows_are_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: one line on standard error counts rows and kinds and names the worst; exit status 0."""
    ramps = [STILL * np.linspace(1, end, 60) for end in (1.2, 1.3, 1.8, 1.0, 1.3, 1.3)]
    _times(monkeypatch, ramps)
    status, out, err = on_threads("allreduce", *SWEEP)
    assert status == 0 and err.count("\n") == 1 and "may be off" not in out
    head = "busbar: 5 of 6 rows may be off by more than 5 %; raise -n (drift 5; worst: "
    assert err.startswith(f"{head}allreduce ring 2K out, the last third is ")


def test_too_few_iterations_are_said_once() -> None:
    """Rule: below six iterations there is no interval; of a single mean nobody asked for one."""
    few = ("--ranks", "2", "-b", "1K", "-e", "4K", "-n", "3", "-A", "ring,tree")
    status, _, err = on_threads("allreduce", *few)
    assert status == 0 and err.splitlines() == [
        "busbar: 12 of 12 rows have fewer than 6 iterations: no interval is known (raise -n)"
    ]
    assert on_threads("allreduce", *few, "--timing loop")[2] == ""


def test_a_note_is_one_write(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: text and line break of a note leave together, so no launcher can part them."""

    class Writes(io.StringIO):
        def write(self, text: str) -> int:
            if text:
                written.append(text)
            return len(text)

    written: list[str] = []
    monkeypatch.setattr(sys, "stderr", Writes())
    Screen(0).note("busbar: most of all ring: cv 140 %")
    print_note("most of all ring: cv 140 %")
    assert written == ["busbar: most of all ring: cv 140 %\n"] * 2


def test_only_one_rank_speaks_and_starting_costs_nothing(run: Run) -> None:
    """Rule: what judges a run is loaded at its end, on rank 0, and without pandas."""
    heavy = "{'pandas', 'matplotlib', 'scipy', 'plotly', 'reports.analysis.cautions'}"
    code = (
        "import sys, bench.cli.main, bench.cli.start, bench.run.session\n"
        f"before = {heavy} & set(sys.modules)\n"
        "bench.cli.main.main('allreduce', '--transport inproc --ranks 2 -b 1K -e 1K -n 3 -A "
        "ring'.split())\n"
        f"print(sorted(before), sorted({heavy} & set(sys.modules)))"
    )
    done = run(sys.executable, "-c", code)
    assert done.stdout.splitlines()[-1] == "[] ['reports.analysis.cautions']"
    assert done.stderr.count("fewer than 6 iterations") == 1


@pytest.mark.parametrize(("ranks", "said"), [(2, False), (8 * len(cores()) + 1, True)])
def test_a_start_of_many_ranks_is_announced_on_a_pipe(
    ranks: int, said: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rule: a start of many ranks per core prints a line; a start of few ranks prints none."""

    def stop() -> None:
        raise Unavailable("no MPI")

    monkeypatch.setattr(bench.cli.ranks, "load_mpi", stop)
    with pytest.raises(Unavailable):
        bench.cli.ranks.start(["bench.allreduce"], ranks, parse((), "allreduce"))
    assert ("which takes a while" in capsys.readouterr().err) == said


def test_ranks_that_alternate_between_hosts_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: a line says that a ring crosses the network more often than it must, and the remedy.

    Blocks of ranks, one rank a host, and one host have no such line; nor has an order in which some
    neighbours share a host, as algorithms for a hierarchy choose.
    """
    for option, (rank, size) in MARKS.items():
        with monkeypatch.context() as patch:
            for name in (name for names in MARKS.values() for name in names):
                patch.delenv(name, raising=False)
            patch.setenv(rank, "0")
            patch.setenv(size, "4")
            assert alternating([0, 1, 0, 1]) == [
                "ranks alternate between hosts: 4 of a ring's 4 hops cross the network,"
                f" in blocks 2 ({option})"
            ]
    assert "4 of a ring's 5 hops cross the network, in blocks 2" in alternating([0, 1, 0, 1, 0])[0]
    assert "6 of a ring's 6 hops cross the network, in blocks 3" in alternating([0, 1, 2] * 2)[0]
    for nodes in ([0], [0, 0], [0, 1], [0, 0, 1, 1], [0, 1, 0], [0, 1, 2, 3], [0, 1, 1, 0, 1, 0]):
        assert alternating(nodes) == []
