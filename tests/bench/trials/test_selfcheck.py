"""``bench.selfcheck``: its counts, slowed plans, refusals; rows that end themselves."""

from __future__ import annotations

import json
from collections import Counter
from math import comb, sqrt
from pathlib import Path
from statistics import mean

import numpy as np
import pytest

from bench.timing.measure import ENOUGH, ENOUGH_S, Timing
from bench.trials.harness import costs
from bench.trials.selfcheck import (
    PROCESSES,
    EndedRow,
    IndependentSeries,
    SlowedSides,
    coverage,
    covered,
    ended_rows,
    equal_sides,
    indistinguishable,
    most_by_chance,
    slowed_side,
    stopping_line,
    words,
)
from busbar.cli import main as busbar
from collectives.execution.inproc.world import run
from reports.readers.codec import measurements
from reports.records.measurement import Measurement
from reports.statistics.inference import least_seen
from tests.command import command
from tests.conftest import good, on_threads
from tests.reports.runs import allreduce, noisy, rows

main = command("selfcheck")


def test_slowed_rows_take_turns_and_say_so(tmp_path: Path) -> None:
    """Rule: a slowed row has its share in its record; all shares of a size stay together."""
    out = tmp_path / "r.jsonl"
    argv = ("--ranks", "2", "-b", "1K", "-e", "2K", "-n", "6", "-A", "ring", "--out", str(out))
    good(on_threads("allreduce", *argv, "-N 6 --inject 0,0.5 --launch 1/1:3"))
    every = measurements(out.read_text())
    found = [(r.size, r.injected) for r in every if r.placement == "out"]
    pairs = list(zip(found[::2], found[1::2], strict=True))
    assert all(a[0] == b[0] and {a[1], b[1]} == {0, 0.5} for a, b in pairs) and len(pairs) == 12
    assert len({a for a, _ in pairs}) == 4
    assert on_threads("allreduce", *argv, "--inject -1")[0] == 2


def _launches(seed: int, slow: float = 1.0) -> list[Measurement]:
    return [r for k in range(5) for r in rows(noisy(seed + k, slow=slow), f"{seed}{k}")]


def test_words_are_counted_row_by_row() -> None:
    """Rule: verdicts on equal and slowed launches are those of compare, and meet the targets."""
    a, b, slow = _launches(0), _launches(100), _launches(200, 1.1)
    one = words(a[:6], b[:6])
    assert one == Counter({"cannot tell": 6}) and equal_sides(one, 1).passed
    assert words(a, slow) == Counter({"slower": 3, "indistinguishable": 3})
    assert words(a, b)["indistinguishable"] >= 5 and not equal_sides(Counter(slower=1), 1).passed
    assert equal_sides(Counter(indistinguishable=91, slower=9), 3).passed
    assert not equal_sides(Counter(indistinguishable=90, slower=10), 3).passed
    assert not slowed_side(Counter(slower=99, faster=1), 0.1, 5).passed
    assert slowed_side(Counter(slower=1, indistinguishable=9), 0.02, 5).passed
    assert slowed_side(Counter(slower=95, indistinguishable=5), 0.05, 5).passed
    assert not slowed_side(Counter(slower=94, indistinguishable=6), 0.05, 5).passed
    nothing = Counter[str]()
    for line in (equal_sides(nothing, 3), slowed_side(nothing, 0.05, 5), covered(0, 0)):
        assert line.passed is False, "what was not measured is not kept"


@pytest.mark.parametrize("n", [1, 8, 48, 200])
def test_chance_alone_exceeds_what_it_may_in_one_check_of_twenty(n: int) -> None:
    """Rule: chance exceeds the number of false alarms allowed in at most 5 % of checks."""
    most = most_by_chance(n, 0.05)
    above = [
        1 - sum(comb(n, k) * 0.05**k * 0.95 ** (n - k) for k in range(m)) for m in (most, most + 1)
    ]
    assert above[0] > 0.05 >= above[1] - 1e-12
    right = Counter(indistinguishable=n - most, slower=most)
    assert indistinguishable("A/A", right).passed or most == n
    wrong = Counter(slower=most + 1, indistinguishable=n - most - 1)
    assert not indistinguishable("A/A", wrong).passed


def test_sides_take_turns_within_launches() -> None:
    """Rule: if launches differ by a third, only sides that take turns within them show 5 %.

    Equal turns are told apart no more often than by chance; each cell has a line with both figures.
    """
    found, random = SlowedSides(5), np.random.default_rng(2)
    for number in range(2):
        shares: dict[float, list[Measurement]] = {0.0: [], 0.05: []}
        for launch, level in enumerate(random.lognormal(0, 0.3, 5)):
            made = [
                allreduce("ring", 2, 1024, 1e-5 * level * (1 + x) * random.lognormal(0, 2e-3, 9),
                          environment={"launch": {"number": launch, "of": 5, "seed": number}})
                for _ in range(6)
                for x in shares
            ]  # fmt: skip
            for at, row in enumerate(rows(made, f"{number}{launch}")):
                shares[(0.0, 0.05)[at % 2]].append(row)
        found.add(shares)
    assert found.words == {0.05: Counter(slower=2)} and found.equal.total() == 2
    assert found.separate == {0.05: Counter({"cannot tell": 1})}
    *told, cell = map(str, found.lines())
    assert [line.split(":")[0] for line in told] == [
        "A/A within 5 launches",
        "slowed by 5 % within 5 launches",
        "slowed by 5 %, 5 separate launches a side",
    ]
    apart, within = (sqrt(mean(one["mpi", 1024])) for one in (found.between, found.within))
    assert apart > 0.1 > 0.003 > within
    assert f"see {100 * least_seen(within, 5, within=True):.2g} %, separate ones" in cell


def test_coverage_is_that_of_windows() -> None:
    """Rule: intervals of independent iterations hold the median; of changing levels few do."""
    random = np.random.default_rng(0)
    found = []
    for drift, step in ((0.0, 0.0), (1.0, 0.0), (0.0, 0.1)):
        steps = 1 + 0.01 * random.standard_normal(5000) + drift * np.arange(5000) / 5000
        steps += step * random.integers(2, size=50).repeat(100)
        found.append(coverage(allreduce("ring", 4, 1024, (1e-5 * steps).tolist()).every))
    assert [total for _, total in found] == [40] * 3
    # A drift that meets what stands before and after alike is no reason; another level is.
    assert found[0][0] >= 36 and found[1][0] >= 36 and found[2][0] < 20
    assert covered(93, 100).passed and not covered(92, 100).passed


def test_costs_are_of_all_ranks() -> None:
    """Rule: a clock reading, a barrier and an empty plan have a cost each, as JSON values."""
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
    """Rule: a wrong option is refused in one line, by both commands."""
    for status in (main(argv), busbar(["selfcheck", *argv])):
        assert status == 2
    assert capsys.readouterr().err.count(said) == 2


@pytest.mark.parametrize("name", ["autoregression 0.98", "two levels 0.95", "bursts"])
def test_a_row_calls_itself_precise_only_where_it_is(name: str) -> None:
    """Rule: a row that ends itself has the true median in its interval.

    Of sixty rows without enough independent iterations hardly any end as precise.
    """
    rows = ended_rows(PROCESSES[name], 60)
    assert stopping_line(name, rows).passed
    if name != "bursts":
        assert sum(row.stopped == "precise" for row in rows) <= 9


@pytest.mark.thorough
@pytest.mark.parametrize("name", PROCESSES)
def test_rows_that_end_themselves_hold_the_true_median(name: str) -> None:
    """Rule: in 93 % of 400 rows at least, less what chance may miss, whatever iterations share."""
    line = stopping_line(name, ended_rows(PROCESSES[name], 400))
    assert line.passed, str(line)


def test_independent_iterations_are_not_measured_much_longer() -> None:
    """Rule: two checks in a row take at most twice as many iterations as a single check (631)."""
    rows = ended_rows(PROCESSES["independent"], 60)
    assert np.mean([row.iterations for row in rows]) <= 2 * 631
    assert sum(row.stopped == "precise" for row in rows) >= 50


@pytest.mark.parametrize("usual", [1e-5, 1e-2])
def test_precise_takes_iterations_and_time(usual: float) -> None:
    """Rule: a row of steady iterations is precise after 60 of them and a quarter of a second."""
    for row in ended_rows(lambda random: IndependentSeries(random, usual, 0.001), 3):
        least = max(ENOUGH * usual, ENOUGH_S)
        assert row.stopped == "precise" and 0.98 * least <= row.seconds <= 1.1 * least
        # Of iterations of 10 us the last 50 of each batch of 1,000 are kept.
        assert row.iterations >= ENOUGH and row.iterations <= 10_000 * row.seconds / 2 * 1.2


def test_a_budget_that_is_too_short_says_so() -> None:
    """Rule: a row that is not precise within the budget ends as `budget`."""
    rows = ended_rows(PROCESSES["bursts"], 5, Timing(budget=0.03, settle=True))
    assert {row.stopped for row in rows} == {"budget"}


def test_rows_that_miss_are_counted() -> None:
    """Rule: 93 % of intervals must be right; precise rows with a wrong interval are counted."""
    good, bad = EndedRow("precise", True, 60, 0.3), EndedRow("precise", False, 60, 0.3)
    assert stopping_line("x", [good] * 95 + [bad] * 5).passed
    line = stopping_line("x", [good] * 80 + [bad] * 20)
    assert line.passed is False and "100 rows end as precise, 20 of them wrongly" in str(line)
