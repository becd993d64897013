"""Rows that end themselves: their intervals hold medians that are known."""

from __future__ import annotations

import numpy as np
import pytest

from bench.timing.measure import ENOUGH, ENOUGH_S, Timing
from bench.trials.selfcheck import PROCESSES, EndedRow, IndependentSeries, ended_rows, stopping_line


@pytest.mark.parametrize("name", ["autoregression 0.98", "two levels 0.95", "bursts"])
def test_a_row_calls_itself_precise_only_where_it_is(name: str) -> None:
    """Rule: after a row's own stop the interval holds the true median; of sixty rows that never
    have enough independent iterations hardly any call themselves precise.
    """  # noqa: D205
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
    """Rule: rows of independent iterations with 10 % of noise took 631 iterations on average when
    one look was enough; they take at most twice as many.
    """  # noqa: D205
    rows = ended_rows(PROCESSES["independent"], 60)
    assert np.mean([row.iterations for row in rows]) <= 2 * 631
    assert sum(row.stopped == "precise" for row in rows) >= 50


@pytest.mark.parametrize("usual", [1e-5, 1e-2])
def test_precise_takes_iterations_and_time(usual: float) -> None:
    """Rule: a row is precise after 60 iterations and a quarter of a second, and of calm iterations
    hardly later.
    """  # noqa: D205
    for row in ended_rows(lambda random: IndependentSeries(random, usual, 0.001), 3):
        least = max(ENOUGH * usual, ENOUGH_S)
        assert row.stopped == "precise" and 0.98 * least <= row.seconds <= 1.1 * least
        # Of iterations of 10 us the last 50 of each batch of 1,000 are kept.
        assert row.iterations >= ENOUGH and row.iterations <= 10_000 * row.seconds / 2 * 1.2


def test_a_budget_that_is_too_short_says_so() -> None:
    """Rule: what cannot be decided within the budget ends as `budget`, with its wide interval."""
    rows = ended_rows(PROCESSES["bursts"], 5, Timing(budget=0.03, settle=True))
    assert {row.stopped for row in rows} == {"budget"}


def test_rows_that_miss_are_counted() -> None:
    """Rule: 93 % are asked for; a row that is precise and wrong is told."""
    good, bad = EndedRow("precise", True, 60, 0.3), EndedRow("precise", False, 60, 0.3)
    assert stopping_line("x", [good] * 95 + [bad] * 5).passed
    line = stopping_line("x", [good] * 80 + [bad] * 20)
    assert line.passed is False and "100 rows end as precise, 20 of them wrongly" in str(line)
