"""The limit that memory sets: probed once a size and placement, shown beside the rows."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from bench.run import roofline as roofline
from bench.run.roofline import LEAST_BYTES, Rooflines
from busbar.errors import Unsupported
from collectives.execution.inproc.transport import InprocTransport
from collectives.execution.inproc.world import run
from collectives.execution.transport import LibraryCall
from collectives.execution.world import World
from collectives.schedule.catalogue import spec
from collectives.schedule.layout import Layout
from collectives.schedule.moves import Buffer
from reports.exports.run_table import Banner, header, row
from reports.readers.codec import measurements
from reports.records.measurement import Placements
from reports.tables.summary import summary
from tests.conftest import Mpi, Run, on_threads
from tests.reports.runs import allreduce, timed
from tests.together import together

RANKS, SECONDS = 3, 2.5


class _Probed:
    """A memory whose limit is known; it writes down what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[LibraryCall, int]] = []

    def limit(self, call: LibraryCall, n: int = 5) -> float:
        self.asked.append((call, n))
        return SECONDS


def _call(collective: str, nranks: int, rank: int, elements: int, in_place: bool) -> LibraryCall:
    """A collective of so many bytes a part."""
    what = spec(collective)
    layout = Layout(what, nranks, what.parts(nranks))
    buffers = {b: np.zeros(layout.elements(rank, b, elements), np.uint8) for b in Buffer}
    return LibraryCall(what, buffers, None, elements, in_place=in_place)


def _limits(collective: str, *cases: tuple[int, bool]) -> tuple[list[list[float | None]], _Probed]:
    """The limits that every rank gives for (bytes a part, in place), and what rank 0 probed."""
    what, probed = spec(collective), [_Probed() for _ in range(RANKS)]

    def body(world: World) -> list[float | None]:
        rooflines = Rooflines(world, probed[world.rank])
        layout = Layout(what, RANKS, what.parts(RANKS))
        calls = [_call(collective, RANKS, world.rank, *case) for case in cases]
        return [rooflines.limit(layout, call) for call in calls]

    return list(run(RANKS, body, deadline=30)), probed[0]


def test_a_size_and_placement_is_probed_once() -> None:
    """Rule: what one algorithm's row has probed serves the others; in place is another memory."""
    cases = [(1 << 18, place) for place in (False, True, False, True)] + [(1 << 17, False)]
    everyone, probed = _limits("allreduce", *cases)
    assert everyone == [[SECONDS] * 5] * RANKS
    firsts = [(c.elements, c.in_place) for c, n in probed.asked if n == 1]
    assert firsts == [(1 << 18, False), (1 << 18, True), (1 << 17, False)]


def test_small_sizes_have_no_limit() -> None:
    """Rule: where signals and not bytes take the time, nothing is probed and no share is shown."""
    everyone, probed = _limits("allgather", (LEAST_BYTES // RANKS // RANKS - 1, False))
    assert everyone == [[None]] * RANKS and not probed.asked


def test_the_larger_side_decides_what_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: from so many bytes on that all ranks together read, or write, there is a limit."""
    monkeypatch.setattr(roofline, "LEAST_BYTES", 1000 * RANKS)  # a broadcast reads a third of that
    everyone, _ = _limits("broadcast", (999, False), (1000, False))
    assert [one is None for one in everyone[0]] == [True, False]


def _one(make: Callable[[World], Rooflines]) -> tuple[float | None, str]:
    def body(world: World) -> tuple[float | None, str]:
        rooflines = make(world)
        layout = Layout(spec("allreduce"), 1, spec("allreduce").parts(1))
        return rooflines.limit(layout, _call("allreduce", 1, 0, 1 << 20, False)), rooflines.why

    return run(1, body, deadline=30)[0]


CASES = [(0.0005, [1, 100]), (0.01, [1, 10]), (0.03, [1, 5]), (0.4, [1, 2]), (5.0, [1])]


@pytest.mark.parametrize(("once", "sweeps"), CASES)
def test_a_probe_keeps_to_its_time(
    monkeypatch: pytest.MonkeyPatch, once: float, sweeps: list[int]
) -> None:
    """Rule: five sweeps where a second allows, and up to 100 where a tenth of one does."""
    clock = iter(3.0 + np.arange(100) * once * (1 - 1e-9))
    monkeypatch.setattr(roofline.time, "perf_counter", lambda: next(clock))
    probed = _Probed()
    assert _one(lambda world: Rooflines(world, probed))[0] is not None
    assert [n for _, n in probed.asked] == sweeps


def _refused(_: LibraryCall, n: int = 5) -> float:
    raise Unsupported("no memory roofline: the executor is numpy")


def test_no_limit_where_nobody_can_or_may_tell() -> None:
    """Rule: --limit none probes nothing; a transport that cannot says why, once."""
    able, unable = _Probed(), _Probed()
    unable.limit = _refused  # type: ignore[method-assign]
    assert _one(lambda world: Rooflines(world, able, wanted=False)) == (None, "") and not able.asked
    assert _one(lambda world: Rooflines(world, InprocTransport(world))) == (None, "")
    why = "no memory roofline: the executor is numpy"
    assert _one(lambda world: Rooflines(world, unable)) == (None, why)


def _result(limit: float | None) -> Placements:
    half = timed((2e-3,) * 6, limit_s=limit)
    return allreduce("ring", 2, 1 << 20, half, half, transport="shm")


def test_the_share_stands_in_the_closing_table_and_right_of_their_columns() -> None:
    """Rule: nccl-tests' columns stay where they are.

    Ours are comments, or right of the last one.
    """
    known, unknown = _result(1.5e-3), _result(None)
    assert re.search(r"\n# +1048576 +\S+ +75%\n", "\n".join(summary(known.every)))
    assert not any("limit" in line for line in summary(unknown.every))
    assert row(known, limit=True) == row(known) + "      75      75"
    assert row(unknown, limit=True) == row(known) + "     N/A     N/A"
    assert row(known) == row(unknown)
    banner = Banner("p", "v", 1, 2, 2, True, 1, 5, 1, [])
    for mine, theirs in zip(header(banner, limit=True), header(banner), strict=True):
        assert mine.startswith(theirs.rstrip())


def test_a_sweep_on_shared_memory_has_limits(mpich: Mpi, run: Run, tmp_path: Path) -> None:
    """Rule: on shm records of schedules and library carry the limit; --limit none leaves it out."""
    argv = ["-b", "256K", "-e", "256K", "-n", "6", "--transport", "shm", "-A", "ring,library"]
    asked = {limit: tmp_path / f"{limit}.jsonl" for limit in ("column", "none")}
    commands = [
        ("-m", "bench.allreduce", *argv, "--limit", limit, "--out", str(out))
        for limit, out in asked.items()
    ]
    for (limit, out), done in zip(asked.items(), together(run, mpich, 2, *commands), strict=True):
        known = limit == "column"
        if "no memory roofline" in done.stderr:
            pytest.skip("no native extension here")
        assert done.returncode == 0, done.stderr
        found = measurements(out.read_text())
        assert len(found) == 4 and all((one.limit_s is not None) == known for one in found)
        assert ("limit%" in done.stdout) == known and ("limit that" in done.stdout) == known


def test_other_transports_have_no_limit(tmp_path: Path) -> None:
    """Rule: where the transport knows no roofline, record and table say nothing of one."""
    out = tmp_path / "r.jsonl"
    status, text, _ = on_threads("allreduce", "--ranks 2 -b 1M -e 1M -n 2 --out", str(out))
    assert status == 0 and "limit" not in text
    assert "limit_s" not in json.loads(out.read_text().splitlines()[1])
