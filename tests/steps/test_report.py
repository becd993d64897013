"""Reports of servers: histograms, intervals, and why a formula was missed."""

from __future__ import annotations

from math import inf
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.steps.compute import Exponential
from bench.steps.server.loops import ServerLog
from bench.steps.server.protocol import update_protocol
from bench.steps.server.report import (
    RoundCosts,
    ServerReport,
    ServiceTimes,
    attribute_time,
    build_report,
    histogram,
    learners_figures,
    mean_interval,
    simulate_protocol,
)


@given(st.dictionaries(st.integers(0, 100), st.integers(1, 9), min_size=1))
def test_a_histogram_holds_everything(counts: dict[int, int]) -> None:
    """Rule: the classes of a staleness histogram double, and their parts are the whole."""
    found = histogram({str(value): n for value, n in sorted(counts.items())})
    parts = [float(word.split(" ")[1]) for word in found.split(", ")]
    assert sum(parts) == pytest.approx(100, abs=0.5 * len(parts))
    assert histogram({"0": 1, "2": 1, "3": 2}) == "0 25 %, 2-3 75 %"


def test_a_mean_has_an_interval() -> None:
    """Rule: the interval of a mean is by blocks, so that times which hang together widen it."""
    random = np.random.default_rng(1)
    apart = random.exponential(1, 4000)
    low, high = mean_interval(apart.tolist()) or (0, 0)
    assert low < 1 < high and high - low < 0.12
    together = np.repeat(random.exponential(1, 40), 100)
    wide = mean_interval(together.tolist()) or (0, 0)
    assert wide[1] - wide[0] > 3 * (high - low)
    assert mean_interval([1.0] * 39) is None


LAW = Exponential("exp:20", 0.020, seed=3)


def _said(
    costs: ServiceTimes, compute: Exponential = LAW, updates: int = 2000, name: str = "async"
) -> ServerReport:
    """The report of a server that took so long for everything."""
    protocol = update_protocol(name, 8)
    played = simulate_protocol(protocol, compute.draw, updates, costs)
    one: dict[str, Any] = {"pushed": updates, "answers": updates, "cancelled": 0}
    one |= dict.fromkeys(("late", "travel", "pushing"), 0)
    one |= {"rounds": [0.16] * 20, "exposed": [0.016] * 20, "drawn": [0.019, 0.021] * 10}
    log = ServerLog(
        updates=played.updates,
        staleness=played.staleness,
        waits=[0.0] * updates,
        wall=played.updates[-1],
        idle=played.updates[-1] - played.busy,
        gradient_s=costs.gradient * updates,
        update_s=costs.update * updates,
        answer_s=costs.weights * updates,
        answers=updates,
        batches=updates,
        workers=[one],
    )
    return build_report(protocol, [log], compute, compute.draw, 8)


def test_learners_that_differ_have_no_formula() -> None:
    """Rule: formulas are of one law for all learners; else the drawn times are what is expected."""
    slow = _said(ServiceTimes(), Exponential("exp:20", 0.020, seed=3, slow={3: 2.0}), 200)
    assert slow.model == "simulated" and slow.facts["formula_s"] is None
    assert slow.predicted == slow.facts["drawn_s"] and slow.facts["sync_over_async"] is None
    none = _said(ServiceTimes(gradient=1e-3), Exponential("none", 0.0), 200)
    assert none.model == "" and none.predicted is None is none.facts["formula_s"]


def test_a_bound_is_no_prediction() -> None:
    """Rule: where the formula is a bound, what is predicted is the play of the drawn times."""
    law = Exponential("fixed:10+exp:5", 0.005, 0.010, seed=3)
    said = _said(ServiceTimes(), law, 400, "k-async:4")
    assert said.facts["formula_is_bound"] and said.model == "simulated"
    assert said.predicted == said.facts["drawn_s"] < 0.9 * said.facts["formula_s"]
    assert said.facts["mean_s"] == pytest.approx(said.predicted)
    assert "the formula's bound" in said.lines[0]


def test_without_compute_costs_are_not_told_apart() -> None:
    """Rule: with nothing to compute nothing is played, and no ratio to it is shown."""
    said = _said(ServiceTimes(gradient=1e-3), Exponential("none", 0.0), 200)
    assert said.facts["with_server_s"] is None
    assert not any("measured over" in line or "the server's" in line for line in said.lines)


def test_stragglers_are_no_base() -> None:
    """Rule: what one learner alone takes is what those take that are not slowed."""
    learned = [
        {"number": n, "pushed": 1, "late": 0.0, "drawn": [0.02 * f] * 20, "exposed": []}
        for n, f in enumerate((1, 1, 5, 1))
    ]
    assert learners_figures(learned, 0.01, {2})["one_rank_s"] == pytest.approx(0.02)
    assert Exponential("fixed:1", 0.0, 1e-3, slow={3: 2.0}).fastest(range(1, 5)) == [1, 2, 4]
    assert Exponential("fixed:1", 0.0, 1e-3, slow={0: 2.0, 1: 3.0}).fastest(range(2)) == [0]


def test_a_formula_that_was_missed_has_its_reason() -> None:
    """Rule: the prediction with the server explains a slow one, and a line says so."""
    fast = _said(ServiceTimes())
    assert fast.model == "formula" and fast.predicted == 0.020 / 8
    assert fast.facts["mean_s"] == pytest.approx(fast.facts["drawn_s"])
    assert not any("not within" in line for line in fast.lines)
    # A tenth of learners' rounds is exposed, so a tenth of an update; one learner has its interval.
    assert fast.facts["exposed_s"] == pytest.approx(fast.facts["mean_s"] / 10)
    assert fast.facts["exposed_interval_s"] == pytest.approx((fast.facts["exposed_s"],) * 2)
    low, high = fast.facts["one_rank_interval_s"]
    assert fast.facts["one_rank_s"] == pytest.approx(0.02) and low < 0.02 < high
    slow = _said(ServiceTimes(gradient=0.004))
    assert slow.facts["mean_s"] == pytest.approx(0.004, rel=0.05)
    assert slow.facts["mean_s"] == pytest.approx(slow.facts["with_server_s"], rel=0.01)
    why = next(line for line in slow.lines if "not within 5 %" in line)
    assert "the server is busy" in why
    assert "gradients taken in by the server" in " ".join(slow.lines)


def test_a_missed_formula_is_split_into_what_took_how_long() -> None:
    """Rule: the parts are the whole, and each cost is found in the part that is named after it."""
    law, names = Exponential("exp:20", 0.020, seed=3), update_protocol("k-sync:4", 16)
    predicted, beside = 0.0054, RoundCosts(noticing=0.001, waking=0.0002, pushing=0.0)
    spent = ServiceTimes(gradient=0.00005, update=0.0001, weights=0.00003, round=sum(beside))

    def played(costs: ServiceTimes) -> float:
        return simulate_protocol(names, law.draw, 800, costs).per_update(8)

    mean = played(spent) + 0.0003
    found = attribute_time(played, spent, beside, predicted, mean)
    assert sum(found.values()) == pytest.approx(mean)
    assert found["computing"] == predicted
    assert found["unexplained"] == pytest.approx(0.0003)
    # A server that cannot keep up with some cost leaves it, and those after it, in what is left.
    some = attribute_time(
        lambda one: inf if one.weights else played(one), spent, beside, predicted, mean
    )
    assert sum(some.values()) == pytest.approx(mean)
    assert "weights sent to one after the other" not in some
    # All learners are cancelled, so that each update has the whole of a round once.
    assert found["learners that notice them late"] == pytest.approx(0.001, rel=0.05)
    assert found["gradients that end late"] == pytest.approx(0.0002, rel=0.05)
    # The last of the four stands between the others and the update.
    assert found["gradients taken in by the server"] == pytest.approx(0.00015, rel=0.1)
    assert 0 < found["weights sent to one after the other"] < 16 * 0.00003
