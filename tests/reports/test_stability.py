"""Warnings of unstable rows: rare without a reason, certain with one."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from numpy.typing import NDArray

from bench.run.recorder import closing, closing_sentences
from reports.analysis.cautions import disturbed, in_brief, warnings_of
from reports.records.measurement import Measurement, Noise, Placements
from reports.statistics.quantities import relative_width
from reports.statistics.stability import CRITICAL, dip, is_multimodal, two_groups, unstable
from tests.conftest import thorough
from tests.reports.runs import allreduce, cli, flat, rows, saved, timed

Draw = Callable[[np.random.Generator, int], NDArray[np.float64]]
# Times as they are found: skewed, with heavy tails, rounded to a clock's ticks.
STABLE: dict[str, Draw] = {
    "normal": lambda random, n: 1e-5 * (1 + 0.05 * random.standard_normal(n)),
    "lognormal": lambda random, n: 1e-5 * random.lognormal(0, 0.3, n),
    "exponential": lambda random, n: 1e-6 + 1e-5 * random.exponential(size=n),
    "gamma": lambda random, n: 1e-5 * (1 + 0.02 * random.gamma(2, 1, n)),
    "ticks": lambda random, n: 1e-9 * np.round(300 + 10 * random.gamma(2, 1, n)),
    "heavy": lambda random, n: 1e-5 * (1 + 0.05 * abs(random.standard_t(2, n))),
}


def _kinds(times: NDArray[np.float64]) -> set[str]:
    return {u.kind for u in unstable(times.tolist())}


@pytest.mark.parametrize("name", STABLE)
@pytest.mark.parametrize("n", [20, *thorough(100)])
def test_false_alarms_are_rare(name: str, n: int) -> None:
    """Rule: at most 2 % of rows of independent iterations are warned of for order or shape."""
    random = np.random.default_rng(n)
    alarms = sum(bool(_kinds(STABLE[name](random, n)) - {"spread"}) for _ in range(400))
    assert alarms <= 8 + 4, alarms  # 2 % of 400, and four for the luck of the draw


@pytest.mark.parametrize("name", ["normal", "lognormal", "gamma"])
@pytest.mark.parametrize("n", [60, 300])
def test_what_was_put_in_is_found(name: str, n: int) -> None:
    """Rule: warm-up, drift, two modes and likeness are found in nearly all rows that have them."""
    random = np.random.default_rng(5)
    hits = dict.fromkeys(("warm-up", "drift", "modes", "alike"), 0)
    for _ in range(20):
        noise = (STABLE[name](random, n) / 1e-5 - 1) * 0.2
        warm = 1 + noise + np.where(np.arange(n) < 8, 1.0, 0.0)
        hits["warm-up"] += "warm-up" in _kinds(warm)
        hits["drift"] += "drift" in _kinds(1 + noise + np.linspace(0, 0.4, n))
        hits["modes"] += "modes" in _kinds(1 + noise + random.choice([0, 0.8], n))
        smooth = np.convolve(random.standard_normal(n + 9), np.ones(10), "valid")
        hits["alike"] += "alike" in _kinds(1 + 0.05 * smooth)
    assert min(hits.values()) >= 18, hits


def test_one_long_first_iteration_is_a_warm_up() -> None:
    """Rule: a first iteration far above all others is said, and the rest is judged without it."""
    times = 1e-5 * (1 + 0.01 * np.random.default_rng(1).random(50))
    times[0] = 1e-4
    (spread, warm) = unstable(times.tolist())
    assert (spread.kind, warm.kind) == ("spread", "warm-up") and "the first iteration" in warm.text


def test_few_iterations_say_so_and_nothing_else() -> None:
    """Rule: below six values nothing is claimed of their distribution; of none nothing at all."""
    assert unstable([]) == ()
    for n in range(1, 6):
        (one,) = unstable([1.0, 9.0, 1.0, 9.0, 1.0][:n])
        assert one.kind == "few" and str(n) in one.text


@given(st.lists(st.floats(0, 1e3), max_size=60))
def test_any_times_are_judged(times: list[float]) -> None:
    """Rule: no list of times, equal or zero ones among them, is an error."""
    assert all(u.text and u.amount >= 0 for u in unstable(times))


# -- the dip


def _by_linear_programming(values: list[float]) -> float:
    """The dip by its definition: the nearest unimodal distribution function, for each mode."""
    from scipy.optimize import linprog

    x, n = np.sort(values), len(values)
    below, above = np.arange(n) / n, np.arange(1, n + 1) / n
    best = 1.0
    for mode in range(n):
        # Variables: heights up to the mode, from the mode on, and the distance.
        left, right = range(mode + 1), range(mode + 1, n + 1)
        rows, bounds = [], []

        def at_most(weights: dict[int, float], bound: float, rows=rows, bounds=bounds) -> None:  # type: ignore[no-untyped-def]
            rows.append([weights.get(i, 0.0) for i in range(n + 2)])
            bounds.append(bound)

        for side, first, ends, sign in ((left, 0, below, 1), (right, mode, above, -1)):
            for place, i in enumerate(side):
                at = first + place
                most = ends[at] if at == mode else below[at]
                least = ends[at] if at == mode else above[at]
                at_most({i: 1, n + 1: -1}, most)
                at_most({i: -1, n + 1: -1}, -least)
            for a, b in pairwise(side):
                at_most({a: 1, b: -1}, 0)
            for place in range(len(side) - 2):
                a, b, c = side[place : place + 3]
                one = 1 / (x[first + place + 1] - x[first + place])
                two = 1 / (x[first + place + 2] - x[first + place + 1])
                at_most({a: -sign * one, b: sign * (one + two), c: -sign * two}, 0)
        at_most({mode: 1, mode + 1: -1}, 0)
        goal = [0.0] * (n + 1) + [1.0]
        ends_ = [(None, None)] * (n + 1) + [(0, None)]
        best = min(best, linprog(goal, A_ub=rows, b_ub=bounds, bounds=ends_).fun)
    return best


def test_the_dip_is_the_distance_to_the_nearest_unimodal_distribution() -> None:
    """Rule: the algorithm gives what its definition does, found by linear programming."""
    random = np.random.default_rng(0)
    for case in range(30):
        n = int(random.integers(2, 10))
        values = random.standard_normal(n) + (3 * random.integers(0, 2, n) if case % 2 else 0)
        assert dip(values.tolist()) == pytest.approx(_by_linear_programming(values.tolist()))


def test_the_critical_value_is_where_it_should_be() -> None:
    """Rule: uniform samples, the hardest with one mode, hardly ever pass it.

    Two modes nearly always.
    """
    random = np.random.default_rng(3)
    for n in (20, 100, 400):
        draws = [sqrt(n) * dip(random.random(n).tolist()) for _ in range(500)]
        assert sum(d > CRITICAL for d in draws) <= 2
        assert np.quantile(draws, 0.99) > 0.7 * CRITICAL  # it is not beyond all reach either
    assert sum(is_multimodal(random.normal([0, 5][i % 2], 1, 40).tolist()) for i in range(40)) == 0
    both = [np.concatenate([random.normal(0, 1, 30), random.normal(6, 1, 30)]) for _ in range(20)]
    assert sum(is_multimodal(values.tolist()) for values in both) >= 19


def test_two_groups_of_a_worked_case() -> None:
    """Rule: the cut leaves the least squares within; medians and the upper share follow."""
    assert two_groups([1, 1.2, 0.8, 9, 11]) == (1, 10, 0.4)
    for function, values in ((dip, []), (two_groups, [1.0])):
        with pytest.raises(ValueError):
            function(values)


def _placed(times: NDArray[np.float64], name: str = "ring") -> Placements:
    return allreduce(name, 4, 1024, times.tolist())


@pytest.mark.parametrize("name", ["gamma", *thorough(*(n for n in STABLE if n != "gamma"))])
def test_a_healthy_sweep_ends_in_silence(name: str) -> None:
    """Rule: measured until the median is known to 2 %, hardly a sweep is warned of."""
    random, spoke = np.random.default_rng(11), 0
    for _ in range(12):
        rows = []
        for _ in range(4 if name == "exponential" else 15):
            times = STABLE[name](random, 40)
            # As `bench.timing.measure` goes on; exponential times take some 40,000 iterations.
            while relative_width(times) > 0.02 and len(times) < 100_000:
                times = np.concatenate([times, STABLE[name](random, len(times))])
            rows += _placed(times).every
        spoke += bool(in_brief(rows))
    assert spoke <= 1, spoke


def test_the_end_of_a_sweep_says_what_moves_a_median() -> None:
    """Rule: each kind is told where it moves the median by 5 %, else left to the reports."""
    random = np.random.default_rng(4)
    still = 1e-5 * (1 + 0.004 * random.standard_normal(200))
    levels = np.repeat(np.random.default_rng(0).standard_normal(20), 10)
    here = np.arange(200)
    cases = {
        "warm-up": (random.lognormal(0, 0.3, 200) * (1 + 3 * (here < 50)), 1 + (here < 4)),
        "drift": (np.linspace(1, 1.2, 200), np.linspace(1, 1.05, 200)),
        "two modes": (1 + 0.3 * random.integers(0, 2, 200), 1 + 0.3 * (random.random(200) < 0.2)),
        "autocorrelation": (np.exp(0.08 * levels), np.exp(0.01 * levels)),
        "spread": (random.exponential(size=200) + 0.1, 1 + 20 * (here % 50 == 9)),
    }
    for word, (much, little) in cases.items():
        (line,) = in_brief(flat([_placed(still), _placed(still * much, "tree")]))
        over = " not over" * (word == "warm-up")
        head = "1 of 2 rows may be off by more than 5 %; raise -n or --budget ("
        assert line.startswith(f"{head}{word}{over} 1; worst: allreduce tree 1K out, "), line
        assert unstable(still * little), f"{word}: nothing to leave alone"
        assert in_brief(flat([_placed(still * little)])) == [], word
    assert in_brief([]) == in_brief(flat([_placed(np.array([]))])) == []


def test_reports_warn_in_the_sentences_that_end_a_run() -> None:
    """Rule: of iterations, a report says what the run said at its end, in the same words."""
    random = np.random.default_rng(0)
    still = 1e-5 * (1 + 0.001 * random.random(60))
    rising = still * np.linspace(1, 1.3, 60)
    steep = still * np.linspace(1, 1.6, 60)
    results = [
        allreduce(name, 4, 1024, timed(times.tolist(), wrong=wrong))
        for name, times, wrong in (("a", still, 0), ("b", rising, 2), ("c", steep, 0))
    ]
    rows = flat(results)
    first, *found = warnings_of(rows)
    assert first == "1 row has wrong elements" and warnings_of(rows[:1]) == []
    assert found == in_brief(rows)
    head = "2 of 3 rows may be off by more than 5 %; raise -n or --budget (drift 2; worst: "
    assert found == [f"{head}allreduce c 1K out, the last third is 37.1 % slower than the first)"]


def test_a_cv_that_a_log_states_warns_without_raw_times() -> None:
    """Rule: rows with a cv and no raw times are counted, also Busbar's own, with the worst one."""
    known = rows([allreduce(name, 2, 1024, timed([1e-5] * 9)) for name in "abc"])
    stated = [replace(r, times_s=(), cv=cv) for r, cv in zip(known, (0.01, 0.3, 0.2), strict=True)]
    (line,) = [line for line in warnings_of(stated) if "(cv)" in line]
    assert line.startswith("2 of 3 rows vary by more than 10 % (cv)")
    assert line.endswith("; worst: allreduce b 1K out, cv 30 %")


def test_the_remedy_is_the_option_that_limited_the_rows() -> None:
    """Rule: a warning names the option that ended the rows it counts: -n, --budget or --total."""
    rising = np.linspace(1e-5, 2e-5, 60).tolist()
    of_total = {"options": "--total 5m"}

    def advice(*ended: str, times: Sequence[float] = rising, **environment: str) -> str:
        rows = [
            allreduce("ring", 2, 1024, timed(times, stopped=one), environment=environment)
            for one in ended
        ]
        (line,) = warnings_of(flat(rows))
        return line

    for times in (rising, rising[:3]):
        for ended, option in (
            (["iterations"], "-n"),
            (["budget", "precise"], "--budget"),
            (["budget", "iterations"], "-n or --budget"),
            ([""], "-n or --budget"),
        ):
            line = advice(*ended, times=times)
            assert re.search(f"raise {option}( \\(|\\)$)", line), line
    assert "raise --total or --budget (" in advice("budget", **of_total)
    assert "raise -n (" in advice("iterations", **of_total)


def test_rows_beside_other_programs_are_counted() -> None:
    """Rule: rows beside programs with 5 % of all cores or more are counted, with the worst one."""
    results = [
        allreduce(name, 2, 1024, timed([1e-5] * 9, noise=Noise(others=(share,))))
        for name, share in (("a", 0.01), ("b", 0.3), ("c", 0.92))
    ]
    (line,) = [line for line in warnings_of(flat(results)) if "programs" in line]
    assert line == (
        "times may be disturbed: other programs took up to 92 % of all cores in 2 of 3 rows"
        " (try --wait-quiet 10m)"
    )
    assert "allreduce c 1K out" in disturbed(flat(results)) and not disturbed(flat(results[:1]))


def test_a_closing_answer_says_what_disturbed_the_run() -> None:
    """Rule: other programs and shared cores stand in every closing answer.

    Programs beside more than half of the rows come first, with the command to repeat the run.
    """
    noise, many = {"noise": Noise(others=(0.3,))}, {"ranks_per_core": 2.0}

    def rows(quiet: bool, **more: Any) -> str:
        results = flat(allreduce(n, 2, 1024, timed([1e-5] * 9, **more)) for n in ("ring", "ps"))
        lines = (closing_sentences if quiet else closing)(results, "median")
        return " ".join(line.removeprefix("# ").strip() for line in lines)

    for quiet in (True, False):
        assert "disturbed" not in rows(quiet)
        said = rows(quiet, **noise, **many)
        assert "too disturbed to compare algorithms: other programs took up to 30 % of all" in said
        assert said.index("too disturbed") < said.index("busb")
        assert said.endswith("times may be disturbed: ranks share cores (2 ranks per core)")


def test_figures_that_nothing_is_compared_with_say_what_disturbed_them(tmp_path: Path) -> None:
    """Rule: tests between pairs and one algorithm end as comparisons do, without the comparison.

    So do `show`, also in short, and Markdown; a few disturbed rows are said in another line.
    """

    def rows(collective: str, share: float) -> list[Measurement]:
        sample = timed([1e-5] * 9, noise=Noise(others=(share,)))
        return flat([allreduce("two_sided", 2, 1024, sample, collective=collective)])

    for collective in ("latency", "allreduce"):
        for report in (closing, closing_sentences):
            assert "disturbed" not in _text(report(rows(collective, 0.01), "median"))
            said = _text(report(rows(collective, 0.1), "median"))
            assert "times may be disturbed: other programs took up to 10 % of all cores" in said
            said = _text(report(rows(collective, 0.6), "median"))
            told = "too disturbed to rely on these figures: other programs took up to 60 % of all"
            assert said.count("disturbed") == 1 and told in said
        path = saved(tmp_path / f"{collective}.jsonl", rows(collective, 0.6))
        for words in (("show", path), ("show", path, "-q"), ("md", path)):
            out = cli(*words).out
            assert "too disturbed to rely on these figures" in out
            assert ("highest busbw" in out) is ("-q" in words)


def _text(lines: Iterable[str]) -> str:
    """Lines of comments as one line of words."""
    return " ".join(line.removeprefix("#").strip() for line in lines)
