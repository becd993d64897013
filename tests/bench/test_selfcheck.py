"""``bench.selfcheck``: what it counts, how a plan is slowed, and what is refused."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bench.run.slowed import Slowed
from bench.trials.checks import (
    Cell,
    SlowedSides,
    coverage,
    covered,
    equal_sides,
    slowed_side,
    words,
)
from bench.trials.harness import costs
from bench.trials.selfcheck import main
from busbar.cli import main as busbar
from collectives.execution.inproc.world import run
from collectives.execution.transport import Counted, Spans
from reports.readers.own import results
from reports.statistics.inference import least_seen
from tests.conftest import good, on_threads
from tests.reports.runs import noisy, rows


class _Taking(Counted):
    """An action that takes three ticks of a clock, each reading of which takes one."""

    def __init__(self) -> None:
        super().__init__(5, 7)
        self.now = 0.0

    def clock(self) -> float:
        self.now += 1.0
        return self.now

    def __call__(self) -> None:
        self._runs += 1
        self.now += 99.0

    def close(self) -> None:
        self.now = -1.0


@pytest.mark.parametrize(("share", "ticks"), [(0.0, 101), (0.05, 106), (0.5, 151)])
def test_a_slowed_plan_takes_its_share_longer(share: float, ticks: int) -> None:
    """Rule: an iteration of 100 ticks takes 100 (1 + share), as soon as the clock shows it; what is
    moved, and that it is closed, are the plan's own.
    """  # noqa: D205
    taking = _Taking()
    slowed = Slowed(taking, share, taking.clock)
    slowed()
    assert taking.now == ticks and (slowed.sent, slowed.received) == (5, 7)
    assert slowed.times(9, loop=False) is None and slowed.spans(9) is None  # as the plan's own
    slowed.close()
    assert taking.now == -1


def test_a_plan_that_times_itself_is_slowed_by_whoever_times_it() -> None:
    """Rule: the share is passed on, so that what is slowed is what is timed."""

    class Timing(_Taking):
        def spans(self, n: int, starts: Sequence[float] = (), slower: float = 0.0) -> Spans:
            return [0.0] * n, [1 + slower] * n

    timing = Timing()
    assert Slowed(timing, 0.05, timing.clock).spans(2) == ([0, 0], [1.05, 1.05])


def test_cycles_are_slowed_one_after_the_other_and_say_so(tmp_path: Path) -> None:
    """Rule: a record of a slowed row says by how much: it is no time of ours."""
    out = tmp_path / "r.jsonl"
    argv = ("--ranks", "2", "-b", "1K", "-e", "1K", "-n", "6", "-A", "ring", "--out", str(out))
    good(on_threads("allreduce", *argv, "-N 2 --inject 0,0.5"))
    assert [r.parameters["injected"] for r in results(out.read_text())] == [0, 0.5]
    assert on_threads("allreduce", *argv, "--inject -1")[0] == 2


def test_words_are_counted_row_by_row() -> None:
    """Rule: equal and slowed launches are told apart as compare does, and held to the targets."""
    a, b, slow = (
        [rows(noisy(seed + k, slow=s), f"{seed}{k}") for k in range(5)]
        for seed, s in ((0, 1.0), (100, 1.0), (200, 1.1))
    )
    assert words(a[:1], b[:1]) == Counter({"cannot tell": 6})
    assert words(a, slow) == Counter({"slower": 3, "indistinguishable": 3})
    assert words(a, b)["indistinguishable"] >= 5
    assert equal_sides(words(a[:1], b[:1]), 1).kept and not equal_sides(Counter(slower=1), 1).kept
    assert equal_sides(Counter(indistinguishable=95, slower=5), 3).kept
    assert not equal_sides(Counter(indistinguishable=94, slower=6), 3).kept
    able, other = ("shm", 8), ("mpi", 8)

    def kept(share: float, cells: dict[Cell, Counter[str]]) -> bool | None:
        return slowed_side(cells, share, 5, {able}).kept

    assert not kept(0.1, {able: Counter(slower=99), other: Counter(faster=1)})
    assert kept(0.02, {able: Counter(slower=1, indistinguishable=9)})
    assert not kept(0.05, {able: Counter(slower=94, indistinguishable=6)})
    assert kept(0.05, {able: Counter(slower=95), other: Counter(indistinguishable=99)})
    assert not kept(0.05, {other: Counter(slower=100)}), "where no cell can, none was kept"
    for nothing in (equal_sides(Counter(), 3), slowed_side({}, 0.05, 5, ()), covered(0, 0)):
        assert nothing.kept is False, "what was not measured is not kept"


def test_cells_say_what_their_launches_can_see() -> None:
    """Rule: a line a cell, with the scatter of its launches, what five a side see, and how many
    would see 5 %; where they cannot, the share found there is not held to the target.
    """  # noqa: D205
    found = SlowedSides(5)
    sides = [
        [rows(noisy(seed + k, slow=slow), f"{seed}{k}") for k in range(5)]
        for seed, slow in ((0, 1.0), (200, 1.2))
    ]
    found.add(0.2, *sides)
    lines = list(found.lines())
    assert len(lines) == 1 + len(found.variances) and "never faster" in str(lines[0])
    for cell, line in zip(sorted(found.variances), lines[1:], strict=True):
        least = least_seen(found.scatter(cell), 5)
        assert f"5 a side see {100 * least:.2g} % and more" in line.found
        assert (cell in found.able) == (least <= 0.05)
        assert "one core clock" not in line.found


def test_cells_say_what_the_core_clock_did() -> None:
    """Rule: launches that differ by their cores' clocks alone would not differ at one clock."""
    random = np.random.default_rng(1)
    clocks = 4e9 * random.uniform(0.8, 1, 10)
    made = [
        [
            replace(r, clock_core_hz=hz, times_s=(4e9 / hz * 1e-5,) * 20, time_s=4e9 / hz * 1e-5)
            for r in rows(noisy(0), f"{hz}")
        ]
        for hz in clocks
    ]
    found = SlowedSides(5)
    found.add(0.0, made[:5], made[5:])
    assert found.variances.keys() == found.clocked.keys()
    for cell in found.clocked:
        assert found.scatter(cell) > 0.01 and max(found.clocked[cell]) < 1e-20
    assert "at one core clock they would differ by" in list(found.lines())[-1].found


def test_coverage_is_that_of_windows() -> None:
    """Rule: independent iterations are covered as often as said; those whose level changes from
    window to window are hardly ever.
    """  # noqa: D205
    random = np.random.default_rng(0)
    found = []
    for drift, step in ((0.0, 0.0), (1.0, 0.0), (0.0, 0.1)):
        made = noisy(0)[0]
        assert made.out is not None
        steps = 1 + 0.01 * random.standard_normal(5000) + drift * np.arange(5000) / 5000
        steps += step * random.integers(2, size=50).repeat(100)
        sample = type(made.out)(tuple((1e-5 * steps).tolist()), 5000)
        found.append(coverage(rows([type(made)(**{**vars(made), "out": sample})])))
    assert [total for _, total in found] == [40] * 3
    # A drift that meets what stands before and after alike is no reason; another level is.
    assert found[0][0] >= 36 and found[1][0] >= 36 and found[2][0] < 20
    assert covered(95, 100).kept and not covered(98, 100).kept and not covered(92, 100).kept


def test_costs_are_of_all_ranks() -> None:
    """Rule: clock, barrier and a plan of nothing have a cost each, which goes into JSON."""
    ticks = iter(range(1, 10**9))
    clock = lambda: next(ticks) * 1e-6  # noqa: E731
    found = run(1, lambda world: costs(world, clock), deadline=60)[0]
    assert found["clock"] == pytest.approx(1e-6, rel=1e-3)
    assert found["barrier"] == pytest.approx(1e-6) and found["empty"] == pytest.approx(1e-6)
    assert json.loads(json.dumps(found)) == found


@pytest.mark.parametrize(
    ("argv", "said"),
    [(["--ranks", "1"], "at least 2"), (["--frob"], "--frob"), (["--budget", "0"], "more than 0")],
)
def test_selfcheck_refuses_what_it_cannot_do(
    argv: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rule: a wrong option is a line, before anything starts, by either door."""
    for status in (main(argv), busbar(["selfcheck", *argv])):
        assert status == 2
    assert capsys.readouterr().err.count(said) == 2
