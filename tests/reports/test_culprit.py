"""Who is slow: what was made slow is named, with its evidence, and nobody else is."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.measure import Timed, Timing, measure
from collectives.catalogue import build, spec
from collectives.dtypes import dtype
from collectives.layout import Layout
from collectives.moves import Buffer
from collectives.ops import op
from collectives.plan import Plan
from collectives.transports.inproc import InprocTransport
from collectives.worlds.inproc import InprocWorld, run
from reports.cli import main
from reports.culprit import Findings, culprits
from reports.culprit_matrix import Cell, Pairs, Worse, worse
from reports.exports import to_jsonl
from reports.quality import checklist
from reports.readers.rows import Row, Run
from reports.record import Result, Sample
from topology.measure import Estimate
from topology.measure_mpi import Measured, Place, Settings
from topology.measured_map import as_topology
from topology.sources import own_json

PerRank = tuple[tuple[float, ...], ...]
HOP = 1e-4


def _played(
    collective: str,
    algorithm: str,
    ranks: int,
    *,
    late: Mapping[int, float] | None = None,
    slow: Mapping[int, float] | None = None,
    seed: int = 0,
    n: int = 40,
) -> PerRank:
    """Times of every rank by playing a schedule with clocks that the messages carry along.

    ``late``: seconds that a rank leaves the barrier after the others; ``slow``: seconds that it
    takes before its first step, with its clock running.
    """
    random = np.random.default_rng(seed)
    start = 1e-6 * random.random((ranks, n))
    for rank, seconds in (late or {}).items():
        start[rank] += seconds
    now = start.copy()
    for rank, seconds in (slow or {}).items():
        now[rank] += seconds
    for moves in build(collective, algorithm, ranks).all_moves:
        after = now.copy()
        for src, dst in {(m.src, m.dst) for m in moves if m.src != m.dst}:
            hop = HOP * (1 + 0.1 * random.gamma(2, 1, n))
            after[dst] = np.maximum(after[dst], now[src] + hop)
            after[src] = np.maximum(after[src], now[src] + hop / 4)
        now = after
    return tuple(map(tuple, (now - start).tolist()))


def _row(collective: str, algorithm: str, times: PerRank, **environment: object) -> Row:
    ranks = len(times)
    known: dict[str, object] = {"mapping": {"node": [0] * ranks, "cpus": [], "gpu": [""] * ranks}}
    hosts = environment.pop("hosts", ("n0",))
    run = Run("x", 0, "busbar", hosts=hosts, environment=known | environment)  # type: ignore[arg-type]
    return Row(run, 1, collective, 1024, algorithm=algorithm, ranks=ranks, root=0, per_rank_s=times)


def _rows(names: list[tuple[str, str]], ranks: int, seed: int = 0, **delays: object) -> list[Row]:
    return [
        _row(c, a, _played(c, a, ranks, seed=seed * 100 + n, **delays))  # type: ignore[arg-type]
        for n, (c, a) in enumerate(names)
    ]


def _sure(found: Findings) -> list[str]:
    return [s.name for s in found.suspects if s.sure]


ALL_WAIT = [("allreduce", "ring"), ("allreduce", "halving_doubling"), ("allreduce", "one_shot"),
            ("allgather", "bruck"), ("alltoall", "pairwise"), ("barrier", "dissemination")]  # fmt: skip
MIXED = [*ALL_WAIT, ("sendrecv", "direct"), ("broadcast", "binomial"), ("reduce", "binomial"),
         ("allreduce", "tree"), ("allreduce", "ps")]  # fmt: skip


# -- by the ranks' own times


@given(st.integers(4, 9), st.data(), st.floats(0.5, 20))
@settings(deadline=None, max_examples=25)
def test_a_rank_that_comes_late_is_named(ranks: int, data: st.DataObject, hops: float) -> None:
    """Rule: who leaves the barrier late has the shortest time where all wait for all, and is named."""
    guilty = data.draw(st.integers(0, ranks - 1))
    found = culprits(_rows(ALL_WAIT, ranks, late={guilty: 20 * HOP * hops}))
    assert _sure(found) == [f"rank {guilty} (node n0)"], found
    (line,) = found.suspects[0].evidence
    assert "comes late" in line and "6 of 6 rows" in line


@given(st.integers(4, 9), st.data(), st.floats(1, 20))
@settings(deadline=None, max_examples=25)
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
    """Rule: a rank slow inside an all-reduce makes all times equal; no guess, but what to measure."""
    found = culprits(_rows(ALL_WAIT, 6, slow={2: 50 * HOP}))
    assert not _sure(found) and "not who is slow inside" in found.notes[0]


def test_one_algorithm_alone_is_a_hint() -> None:
    """Rule: what only one algorithm shows may be its shape: it is said with 'may', and last."""
    found = culprits(_rows([("allreduce", "ring")], 6, late={4: 50 * HOP}))
    assert [s.sure for s in found.suspects] == [False] and "shape" in found.suspects[0].evidence[0]


def test_ranks_of_a_node_and_of_a_gpu_are_one_culprit() -> None:
    """Rule: when all ranks of a node, or of a GPU, come late, it is named instead of them."""
    places = {"hosts": ("a", "b", "c", "d"),
              "mapping": {"node": [0, 0, 1, 1, 2, 2, 3, 3], "cpus": [],
                          "gpu": ["x", "y", "x", "y", "z", "z", "x", "y"]}}  # fmt: skip
    for late, name in (((2, 3), "node b (ranks 2, 3)"), ((4, 5), "GPU z (node c, ranks 4, 5)")):
        rows = [
            _row(c, a, _played(c, a, 8, late=dict.fromkeys(late, 50 * HOP)), **dict(places))
            for c, a in ALL_WAIT
        ]
        assert _sure(culprits(rows)) == [name]
    two = [_row(c, a, _played(c, a, 8, late={1: 50 * HOP, 2: 50 * HOP}), **dict(places))
           for c, a in ALL_WAIT]  # fmt: skip
    assert set(_sure(culprits(two))) == {"rank 1 (node a, GPU y)", "rank 2 (node b, GPU x)"}


@pytest.mark.parametrize("odd", [7, "abc", None, {}, [None, "x", 99], [0, 0, 0, 0, 0, 0]])
def test_an_odd_environment_names_ranks_only(odd: object) -> None:
    """Rule: what a file says of nodes, GPUs and CPUs may be anything; ranks are still named."""
    strange = {"mapping": {"node": odd, "gpu": odd}, "cpus": odd, "ranks_per_node": odd}
    rows = [
        _row(c, a, _played(c, a, 6, late={4: 50 * HOP}), hosts=(), **strange) for c, a in ALL_WAIT
    ]
    (name,) = _sure(culprits(rows))
    assert name.startswith("rank 4") and len(checklist(rows)) == 12


def test_pairs_cannot_be_told_apart() -> None:
    """Rule: of two that hold each other up either is named, not one of them."""
    found = culprits(_rows([("sendrecv_pairs", "direct")], 6, slow={3: 20 * HOP}))
    assert _sure(found) == ["rank 2 or 3"]


class _Quiet:
    def arrived(self, iteration: int) -> None:
        """Nobody watches."""


class _LateWorld(InprocWorld):
    """A rank that something holds up between the barrier and its clock."""

    def barrier(self) -> None:
        super().barrier()
        time.sleep(5e-3)


def _executed(collective: str, algorithm: str, guilty: int, how: str) -> PerRank:
    """Times of four threads that really carry a schedule out, one of them held up by 5 ms."""

    def body(world: InprocWorld) -> Timed:
        what, kind = spec(collective), dtype("float")
        schedule, elements = build(collective, algorithm, world.size), 1024
        layout = Layout.of(schedule, what, 0)
        source, target = (
            np.zeros(layout.elements(world.rank, b, elements), kind)
            for b in (Buffer.IN, Buffer.OUT)
        )
        added = op("sum") if what.reduces else None
        transport = InprocTransport(world)
        plan = Plan(schedule, what, transport, world.rank, source, target, added, elements)

        def slowly() -> None:
            time.sleep(5e-3)
            plan()

        fires: Callable[[], None] = plan
        if world.rank == guilty:
            fires = slowly if how == "slow" else plan
            world = _LateWorld(world.rank, world.shared) if how == "late" else world
        return measure(fires, world, time.perf_counter, rules, _Quiet())

    rules = Timing(iterations=12, per_rank=True)
    return run(4, body, deadline=60)[0].per_rank


@pytest.mark.parametrize("how", ["late", "slow"])
def test_a_rank_that_was_held_up_is_named(how: str) -> None:
    """Rule: in runs among real threads the delayed rank is named, whichever way it was delayed."""
    names = [("sendrecv", "direct"), ("allreduce", "ring"), ("allreduce", "halving_doubling")]
    rows = [_row(c, a, _executed(c, a, 2, how)) for c, a in names]
    assert _sure(culprits(rows))[:1] == ["rank 2 (node n0)"]


# -- by the matrix


def _pairs(
    ranks: int,
    slow: Callable[[int, int], bool] = lambda a, b: False,
    *,
    times: float = 2.0,
    nodes: int = 1,
    seed: int = 0,
    directed: bool = True,
) -> Pairs:
    random = np.random.default_rng(seed)
    names = tuple(f"n{r * nodes // ranks}" for r in range(ranks))
    cells = {}
    for a in range(ranks):
        for b in range(ranks) if directed else range(a + 1, ranks):
            if a != b:
                local = names[a] == names[b]
                rate = (1e10 if local else 4e9) * float(np.exp(0.03 * random.standard_normal()))
                rate /= times if slow(a, b) else 1
                cells[a, b] = Cell(rate, 0.98 * rate, 1.02 * rate, "host" if local else "network")
    ids = tuple(f"RANK{r}" for r in range(ranks))
    return Pairs("bandwidth", True, directed, ids, names, cells)


def _named(found: list[Worse]) -> set[tuple[str, tuple[int, ...]]]:
    return {(w.unit.kind, w.unit.ends) for w in found}


@pytest.mark.parametrize(
    ("ranks", "nodes", "slow", "named"),
    [
        (4, 1, lambda a, b: {a, b} == {1, 3}, {("link", (1, 3))}),
        (4, 1, lambda a, b: (a, b) == (1, 3), {("link", (1, 3))}),
        (4, 1, lambda a, b: 2 in (a, b), {("rank", (2,))}),
        (6, 1, lambda a, b: a == 5, {("sending", (5,))}),
        (6, 1, lambda a, b: b == 0, {("receiving", (0,))}),
        (8, 2, lambda a, b: 6 in (a, b), {("rank", (6,))}),
        (9, 3, lambda a, b: (a in (3, 4, 5)) != (b in (3, 4, 5)), {("node", (3, 4, 5))}),
        (9, 3, lambda a, b: {a, b} <= {3, 4, 5}, {("within", (3, 4, 5))}),
        (8, 1, lambda a, b: 2 in (a, b) or 5 in (a, b), {("rank", (2,)), ("rank", (5,))}),
    ],
)
@pytest.mark.parametrize("seed", range(3))
def test_a_throttled_unit_is_named(
    ranks: int, nodes: int, slow: Callable[[int, int], bool], named: set[object], seed: int
) -> None:
    """Rule: a throttled pair, rank, direction or node is named, by the largest unit that fits it."""
    found = worse(_pairs(ranks, slow, nodes=nodes, seed=seed))
    assert named <= _named(found) and len(found) <= len(named) + 1
    for w in found:
        assert w.low < w.times < w.high and w.p < 0.01
        if (w.unit.kind, w.unit.ends) in named:
            assert w.times == pytest.approx(2, rel=0.15) and w.pairs == w.of


def test_an_even_matrix_accuses_nobody() -> None:
    """Rule: scatter of one distribution leads to an accusation in 2 % of matrices at the most."""
    accused = sum(bool(worse(_pairs(6, seed=seed, nodes=2))) for seed in range(150))
    assert accused <= 3


def test_what_cannot_be_compared_is_not_accused() -> None:
    """Rule: two ranks have one pair, and two nodes one class between them: nothing to compare with."""
    assert worse(_pairs(2, lambda a, b: a == 0)) == []
    assert worse(_pairs(4, lambda a, b: (a < 2) != (b < 2), nodes=2)) == []


def test_latency_is_worse_when_longer() -> None:
    """Rule: for a quantity of which less is better the longest are accused."""
    pairs = _pairs(5, lambda a, b: 1 in (a, b), times=0.5, directed=False)
    assert _named(worse(replace(pairs, name="latency", more_is_better=False))) == {("rank", (1,))}


# -- both, through the command


def _map(path: Path, slow: Callable[[int, int], bool]) -> Path:
    """What ``topology measure -o`` would have saved, of four ranks on one host."""
    random, cells = np.random.default_rng(0), {}
    for name, usual in (("latency", 1e-6), ("bandwidth", 1e10), ("bandwidth_both", 2e10)):
        cells[name] = {}
        for a in range(4):
            for b in range(4):
                if a != b:
                    worse = 3.0 if name == "latency" else 1 / 3
                    v = usual * (worse if slow(a, b) else 1) * float(1 + 0.02 * random.random())
                    cells[name][a, b] = Estimate(v, 0.99 * v, 1.01 * v)
    measured = Measured(tuple(Place("n0", "", None) for _ in range(4)), cells, "MPI")
    path.write_text(own_json.dump(as_topology(measured, Settings())))
    return path


def _record(path: Path, **delays: Mapping[int, float]) -> Path:
    results = []
    for c, a in MIXED:
        per_rank = _played(c, a, 4, **delays)  # type: ignore[arg-type]
        times = tuple(np.max(per_rank, axis=0).tolist())
        sample = Sample(times, len(times), wrong=0, per_rank=per_rank)
        environment = {"hosts": ["n0"], "mapping": {"node": [0] * 4, "cpus": [], "gpu": [""] * 4}}
        results.append(Result(c, a, "shm", 4, 1024, 256, "float", "sum", 0, 1.0, sample,
                              environment=environment))  # fmt: skip
    path.write_bytes(to_jsonl(results))
    return path


def test_both_kinds_of_evidence_meet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Rule: what times and matrix say of one rank stands under one name, and --fail ends with 1."""
    run_ = _record(tmp_path / "run.jsonl", slow={2: 30 * HOP})
    matrix = _map(tmp_path / "m.json", lambda a, b: 2 in (a, b))
    assert main(["culprit", str(run_), "--matrix", str(matrix)]) == 0
    out = capsys.readouterr().out
    assert out.count("CULPRIT") == 1 and "CULPRIT rank 2 (node n0)" in out
    for told in ("by ranks' times", "matrix of latency", "matrix of bandwidth", "6 of 6 pairs"[5:]):
        assert told in " ".join(out.split())
    assert main(["culprit", str(run_), "--fail"]) == 1
    assert main(["culprit", "--matrix", str(matrix), "--fail"]) == 1


def test_a_throttled_pair_in_a_saved_matrix(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rule: the link is named by its ends, and healthy runs and matrices name nobody."""
    matrix = _map(tmp_path / "m.json", lambda a, b: {a, b} == {0, 3})
    assert main(["culprit", "--matrix", str(matrix)]) == 0
    assert "CULPRIT link rank 0 to rank 3 (node n0)" in capsys.readouterr().out
    even, run_ = _map(tmp_path / "e.json", lambda a, b: False), _record(tmp_path / "run.jsonl")
    assert main(["culprit", str(run_), "--matrix", str(even), "--fail"]) == 0


def test_what_cannot_be_judged_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rule: no times of ranks, no matrix, or no such file: one line, status 2."""
    bare = tmp_path / "bare.jsonl"
    environment = {"hosts": ["n0"]}
    bare.write_bytes(to_jsonl([Result("allreduce", "ring", "shm", 4, 8, 2, "float", "sum", -1, 1.5,
                                      Sample((1e-5,) * 9, 9), environment=environment)]))  # fmt: skip
    empty = tmp_path / "t.json"
    empty.write_text(json.dumps({"busbar_topology": 1, "sources": [], "facts": [], "devices": [],
                                 "links": [], "pairs": [], "gaps": []}))  # fmt: skip
    for argv in ([str(bare)], ["--matrix", str(empty)], [str(bare), "--margin", "5"], []):
        assert main(["culprit", *argv]) == 2
        captured = capsys.readouterr()
        assert captured.out == "" and len(captured.err.splitlines()) == 1


def test_a_failed_expectation_says_who_it_was(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rule: below a node's failed rows stands who was slow there, where the ranks' times tell."""
    run_ = _record(tmp_path / "run.jsonl", slow={1: 30 * HOP})
    assert main(["show", str(run_), "--expect", "time < 1 us"]) == 1
    out = " ".join(capsys.readouterr().out.split())
    assert "FAILED on n0:" in out and "slow there: rank 1 (node n0): by ranks' times" in out
