"""``bench.selfcheck``: what it counts, how a plan is slowed, and what is refused."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from bench.run.slowed import Slowed
from bench.trials.checks import coverage, covered, equal_sides, slowed_side, words
from bench.trials.harness import costs
from bench.trials.selfcheck import main
from busbar.cli import main as busbar
from collectives.execution.inproc.world import run
from collectives.execution.transport import Counted
from reports.readers.own import results
from tests.conftest import on_threads
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
    assert slowed.times(9, loop=False) is None  # both sides are timed here
    slowed.close()
    assert taking.now == -1


def test_cycles_are_slowed_one_after_the_other_and_say_so(tmp_path: Path) -> None:
    """Rule: a record of a slowed row says by how much: it is no time of ours."""
    out = tmp_path / "r.jsonl"
    argv = ("--ranks", "2", "-b", "1K", "-e", "1K", "-n", "6", "-A", "ring", "--out", str(out))
    status, _, _ = on_threads("allreduce", *argv, "-N 2 --inject 0,0.5")
    assert status == 0
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
    assert not slowed_side(Counter(slower=99, faster=1), 0.1, 5).kept
    assert slowed_side(Counter(slower=1, indistinguishable=9), 0.02, 5).kept
    assert not slowed_side(Counter(slower=94, indistinguishable=6), 0.05, 5).kept
    for nothing in (equal_sides(Counter(), 3), slowed_side(Counter(), 0.05, 5), covered(0, 0)):
        assert nothing.kept is False, "what was not measured is not kept"


def test_coverage_is_that_of_windows() -> None:
    """Rule: independent iterations are covered as often as said, those of a drift hardly ever."""
    random = np.random.default_rng(0)
    found = []
    for drift in (0.0, 1.0):
        made = noisy(0)[0]
        assert made.out is not None
        steps = 1 + 0.01 * random.standard_normal(5000) + drift * np.arange(5000) / 5000
        sample = type(made.out)(tuple((1e-5 * steps).tolist()), 5000)
        found.append(coverage(rows([type(made)(**{**vars(made), "out": sample})])))
    assert found[0][1] == found[1][1] == 50 and found[0][0] >= 45 > 25 > found[1][0]
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
