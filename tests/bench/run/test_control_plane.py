"""The control plane of many ranks: what a row sends, counted without any rank but one."""

from __future__ import annotations

import json
from math import log2
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import NDArray

from bench.cli import start
from bench.launch.control_socket import ControlSocket
from bench.options.options import parse
from bench.run import memory, noise
from bench.run.environment import RunContext
from bench.run.rows import Bench
from bench.timing.measure import MOST_PER_RANK, FunctionAction, Timing, measure
from bench.timing.starts import BarrierStart
from collectives.execution.program import Program
from collectives.execution.transport import Action, Buffers, LibraryCall, Transport
from collectives.execution.world import World
from collectives.schedule.ops import Op
from reports.readers.codec import measurements
from reports.records.measurement import Record
from tests.bench.run.simulated_world import SimulatedWorld
from tests.conftest import thorough

SIZES = 1024, 4096


IDLE = FunctionAction(lambda: None)


def _measured(world: SimulatedWorld, iterations: int, per_rank: bool) -> Any:
    of = cast("World", world)
    rules = Timing(0, iterations, per_rank=per_rank)
    return measure(IDLE, of, rules, BarrierStart(of, "max", loop=False))


def _recorded(world: SimulatedWorld) -> None:
    """What `Bench` agrees on after a row: results and bytes, and whether all had memory."""
    row = cast("Any", object.__new__(Bench))
    row._world, row.complaint, row._check = world, "", "1"
    row._arena = SimpleNamespace(take=lambda _: None)
    assert row._taken({}) == ""

    case = SimpleNamespace(schedule=object(), worksharing=False)
    proof = SimpleNamespace(wrong=(0, -1, "", ""))
    record = row._record(case, Record(times_s=(1.0,)), proof, (10, 20))
    assert (record.sent_bytes, record.received_bytes) == (10, 20)
    assert record.total_bytes == 10 * world.size
    assert record.wrong == 0


@pytest.mark.parametrize(
    "step",
    [lambda w: _measured(w, 10, False), _recorded],
    ids=["times", "record"],
)
def test_a_row_costs_no_more_than_p_log_p(step: Any) -> None:
    """Messages and bytes of a row's times and results over all ranks: 4 times the ranks, 4.8 x."""
    few, many = map(SimulatedWorld, SIZES)
    step(few)
    step(many)
    most = SIZES[1] / SIZES[0] * 12 / 10
    assert few.messages > 0
    assert many.messages <= most * few.messages
    assert many.nbytes <= most * few.nbytes
    assert many.into <= 1.01 * few.into, "what a rank receives does not grow with the ranks"


class _Carrier(Transport):
    """A library whose collectives move nothing."""

    name, has_library = "mpi", True

    def allocate(self, nbytes: int) -> NDArray[np.uint8]:
        return np.zeros(nbytes, np.uint8)

    def prepare(self, program: Program, buffers: Buffers, op: Op | None) -> Action:
        return IDLE

    def library(self, call: LibraryCall) -> Action:
        return IDLE


def _run(world: SimulatedWorld, out: Path) -> None:
    """A sweep of two rows: start, places of all ranks, times, noise, records, closing."""
    argv = f"-b 8 -e 16 -n 6 -c 0 -A library --out {out}".split()
    opened = RunContext(cast(World, world), _Carrier(), _Carrier(), "idle", ControlSocket())
    assert start.sweep([parse(argv, "allreduce")], opened) == 0


@pytest.mark.parametrize("size", [16384, *thorough(65536)])
def test_a_run_costs_p_log_p(
    size: int,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A whole run on 4,096 ranks and on more: messages and bytes of all ranks grow as P lg P.

    Each rank but the first receives the same few bytes whatever the ranks. Rank 0 receives below
    400 bytes of each rank for each of the four placements, and for the start.
    """
    # Readings of the machine have more digits at one time than at another, on all ranks here.
    counters, free = noise.between(noise.look(), noise.look()), memory.pools(0)
    monkeypatch.setattr(noise, "between", lambda before, after: counters)
    monkeypatch.setattr(memory, "pools", lambda node: free)
    few, many = SimulatedWorld(4096), SimulatedWorld(size)
    for world in (few, many):
        out = tmp_path / f"{world.size}.jsonl"
        _run(world, out)
        assert "allreduce" in capsys.readouterr().out
        rows = measurements(out.read_text())
        assert len(rows) == 4 and rows[0].ranks == world.size
        assert world.at_rank_0 < 5 * 400 * world.size
    most = size * log2(size) / (4096 * 12)
    assert many.messages <= most * few.messages
    assert many.nbytes <= most * few.nbytes
    assert many.into <= 1.01 * few.into


def test_every_ranks_own_times_are_bounded() -> None:
    """A record with --per-rank on 65,536 ranks has the last iterations of each, 2²⁰ in all."""
    world = SimulatedWorld(65536)
    record = _measured(world, 100, True)
    assert len(record.times_s) == 100
    assert len(record.per_rank_s) == world.size
    assert {len(own) for own in record.per_rank_s} == {MOST_PER_RANK // world.size}
    assert len(json.dumps(record.per_rank_s)) < 25 * MOST_PER_RANK
    few = _measured(SimulatedWorld(8), 100, True)
    assert {len(own) for own in few.per_rank_s} == {100}
