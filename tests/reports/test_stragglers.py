"""Stragglers by the ranks' own times: the rank that was delayed is named, and no other."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from bench.timing.measure import FunctionAction, Timing, measure
from bench.timing.starts import BarrierStart
from collectives.execution.inproc.transport import InprocTransport
from collectives.execution.inproc.world import InprocWorld, Mailbox, run
from collectives.execution.plan import Plan
from collectives.schedule.catalogue import build, spec
from collectives.schedule.dtypes import dtype
from collectives.schedule.layout import Layout
from collectives.schedule.moves import Buffer
from collectives.schedule.ops import op
from reports.analysis.quality import checklist
from reports.analysis.stragglers import Findings, culprits
from reports.records.measurement import Measurement, Record, Run
from tests.conftest import examples
from tests.reports.slowness import ALL_WAIT, HOP, MIXED, PerRank, played


def _row(collective: str, algorithm: str, times: PerRank, **environment: object) -> Measurement:
    ranks = len(times)
    known: dict[str, object] = {"mapping": {"node": [0] * ranks, "cpus": [], "gpu": [""] * ranks}}
    hosts = environment.pop("hosts", ("n0",))
    run = Run("x", 0, "busbar", hosts=hosts, environment=known | environment)  # type: ignore[arg-type]
    return Measurement(
        run=run,
        line=1,
        collective=collective,
        size=1024,
        algorithm=algorithm,
        ranks=ranks,
        root=0,
        per_rank_s=times,
    )


def _rows(
    names: list[tuple[str, str]], ranks: int, seed: int = 0, **delays: object
) -> list[Measurement]:
    return [
        _row(c, a, played(c, a, ranks, seed=seed * 100 + n, **delays))  # type: ignore[arg-type]
        for n, (c, a) in enumerate(names)
    ]


def _sure(found: Findings) -> list[str]:
    return [s.name for s in found.suspects if s.sure]


@given(st.integers(4, 9), st.data(), st.floats(0.5, 20))
@examples(25)
def test_a_rank_that_comes_late_is_named(ranks: int, data: st.DataObject, hops: float) -> None:
    """Rule: who leaves the barrier late has the shortest time where all wait, and is named."""
    guilty = data.draw(st.integers(0, ranks - 1))
    found = culprits(_rows(ALL_WAIT, ranks, late={guilty: 20 * HOP * hops}))
    assert _sure(found) == [f"rank {guilty} (node n0)"], found
    (line,) = found.suspects[0].evidence
    assert "comes late" in line and "6 of 6 rows" in line


@given(st.integers(4, 9), st.data(), st.floats(1, 20))
@examples(25)
def test_a_rank_that_is_slow_is_named_where_not_all_wait(
    ranks: int, data: st.DataObject, hops: float
) -> None:
    """Rule: a rank slow inside shows in whom it holds up: in a ring, itself and the next one."""
    guilty = data.draw(st.integers(0, ranks - 1))
    found = culprits(_rows(MIXED, ranks, slow={guilty: 3 * HOP * hops}))
    assert _sure(found) == [f"rank {guilty} (node n0)"], found
    assert "longer" in found.suspects[0].evidence[0]


@pytest.mark.parametrize("ranks", [3, 4, 8])
def test_where_nobody_is_slow_nobody_is_named(ranks: int) -> None:
    """Rule: the shapes of trees and parameter servers are no culprits."""
    accused = [_sure(culprits(_rows(MIXED, ranks, seed))) for seed in range(5)]
    assert accused == [[]] * 5


def test_what_all_wait_for_cannot_be_seen_and_that_is_said() -> None:
    """Rule: a rank slow inside an all-reduce makes all times equal.

    No guess, but what to measure.
    """
    found = culprits(_rows(ALL_WAIT, 6, slow={2: 50 * HOP}))
    assert not _sure(found) and "not who is slow inside" in found.notes[0]
    assert "busbar sendrecv --ranks 6 --per-rank --out sr.jsonl" in found.notes[0]


def test_one_algorithm_alone_is_a_hint() -> None:
    """Rule: what only one algorithm shows may be its shape: it is said with 'may', and last."""
    found = culprits(_rows([("allreduce", "ring")], 6, late={4: 50 * HOP}))
    assert [s.sure for s in found.suspects] == [False] and "shape" in found.suspects[0].evidence[0]


def test_ranks_that_share_cores_are_told_as_the_record_counts_them() -> None:
    """Rule: on emulated hosts, a rank each, the note has the ranks of the machine's cores."""
    rows = _rows([("allreduce", "ring")], 6)
    assert "share a core" not in culprits(rows).notes[0]
    crowded = [replace(row, ranks_per_core=3.0) for row in rows]
    assert "3 ranks share a core, so the scheduler is seen as well" in culprits(crowded).notes[0]


def test_ranks_of_a_node_and_of_a_gpu_are_one_culprit() -> None:
    """Rule: when all ranks of a node, or of a GPU, come late, it is named instead of them."""
    places = {"hosts": ("a", "b", "c", "d"),
              "mapping": {"node": [0, 0, 1, 1, 2, 2, 3, 3], "cpus": [],
                          "gpu": ["x", "y", "x", "y", "z", "z", "x", "y"]}}  # fmt: skip
    for late, name in (((2, 3), "node b (ranks 2, 3)"), ((4, 5), "GPU z (node c, ranks 4, 5)")):
        rows = [
            _row(c, a, played(c, a, 8, late=dict.fromkeys(late, 50 * HOP)), **dict(places))
            for c, a in ALL_WAIT
        ]
        assert _sure(culprits(rows)) == [name]
    two = [_row(c, a, played(c, a, 8, late={1: 50 * HOP, 2: 50 * HOP}), **dict(places))
           for c, a in ALL_WAIT]  # fmt: skip
    assert set(_sure(culprits(two))) == {"rank 1 (node a, GPU y)", "rank 2 (node b, GPU x)"}


@pytest.mark.parametrize("odd", [7, "abc", None, {}, [None, "x", 99], [0, 0, 0, 0, 0, 0]])
def test_an_odd_environment_names_ranks_only(odd: object) -> None:
    """Rule: what a file says of nodes, GPUs and CPUs may be anything; ranks are still named."""
    strange = {"mapping": {"node": odd, "gpu": odd}, "cpus": odd, "ranks_per_node": odd}
    rows = [
        _row(c, a, played(c, a, 6, late={4: 50 * HOP}), hosts=(), **strange) for c, a in ALL_WAIT
    ]
    (name,) = _sure(culprits(rows))
    assert name.startswith("rank 4") and len(checklist(rows)) == 12


def test_pairs_cannot_be_told_apart() -> None:
    """Rule: of two that hold each other up either is named, not one of them."""
    found = culprits(_rows([("sendrecv_pairs", "direct")], 6, slow={3: 20 * HOP}))
    assert _sure(found) == ["rank 2 or 3"]


class _Carried(Mailbox):
    """Messages with the sender's clock: time passes by them, not by what a host is at."""

    def __init__(self, now: list[float]) -> None:
        super().__init__(len(now), 60)
        self.now = now
        self._random = [np.random.default_rng(rank) for rank in range(len(now))]

    def put(self, src: int, dst: int, item: object) -> None:
        super().put(src, dst, (self.now[src], item))

    def get(self, src: int, dst: int, rank: int) -> object:
        sent, item = super().get(src, dst, rank)
        hop = HOP * (1 + 0.1 * float(self._random[dst].gamma(2, 1)))
        self.now[dst] = max(self.now[dst], sent + hop)
        return item


class _TimedWorld(InprocWorld):
    """All leave a barrier at one time, but for a rank that is ``late``, by so many seconds."""

    def __init__(self, world: InprocWorld, now: list[float], late: float) -> None:
        super().__init__(world.rank, world.shared)
        self._now, self._late = now, late

    def barrier(self) -> None:
        super().barrier()
        latest = max(self._now)
        super().barrier()
        self._now[self.rank] = latest + self._late


def _executed(collective: str, algorithm: str, guilty: int, how: str) -> PerRank:
    """Times of four threads that really carry a schedule out, one of them held up by many hops."""
    now = [0.0] * 4
    data, acks = _Carried(now), _Carried(now)

    def body(world: InprocWorld) -> Record:
        world.shared.data, world.shared.acks = data, acks
        what, kind, rank = spec(collective), dtype("float"), world.rank
        schedule, elements = build(collective, algorithm, world.size), 1024
        layout = Layout.of(schedule, what, 0)
        source, target = (
            np.zeros(layout.elements(rank, b, elements), kind) for b in (Buffer.IN, Buffer.OUT)
        )
        added = op("sum") if what.reduces else None
        delay = {how: 50 * HOP} if rank == guilty else {}
        timed = _TimedWorld(world, now, delay.get("late", 0.0))
        plan = Plan(schedule, what, InprocTransport(timed), rank, source, target, added, elements)

        def runs() -> None:
            now[rank] += delay.get("slow", 0.0)
            plan()

        start = BarrierStart(timed, clock=lambda: now[rank])
        return measure(FunctionAction(runs), timed, rules, start)

    rules = Timing(iterations=12, per_rank=True)
    return run(4, body, deadline=60)[0].per_rank_s


@pytest.mark.parametrize("how", ["late", "slow"])
def test_a_rank_that_was_held_up_is_named(how: str) -> None:
    """Rule: in runs among real threads the delayed rank is named, whichever way it was delayed."""
    names = [("sendrecv", "direct"), ("allreduce", "ring"), ("allreduce", "halving_doubling")]
    rows = [_row(c, a, _executed(c, a, 2, how)) for c, a in names]
    assert _sure(culprits(rows))[:1] == ["rank 2 (node n0)"]
