"""The quantities of the field: their formulae, their laws, and the table of scaling."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from busbar.statistics import interval
from reports.cli import main
from reports.exports.formats import to_jsonl
from reports.readers.reading import parse
from reports.records.record import Result, Sample
from reports.statistics import quantities as q
from reports.tables.scaling import scaling

POSITIVE = st.floats(1e-6, 1e6)
LISTS = st.lists(POSITIVE, min_size=1, max_size=20)


def test_worked_cases() -> None:
    """Rule: each formula gives what one works out by hand."""
    assert q.algbw(1e9, 0.5) == 2e9 and q.algbw(8, 0) == float("inf")
    assert q.algbw(1e9, 0.5, share=0.75) == 1.5e9
    assert q.busbw(2e9, 2 * 7 / 8) == 3.5e9
    assert q.of_limit(seconds=4.0, least=3.0) == 0.75
    assert q.speedup(base=2e9, throughput=6e9) == 3
    assert q.efficiency(base=2e9, throughput=6e9, n=4) == 0.75
    assert q.scaling_efficiency(3.0, 4.0) == 0.75
    assert q.joules_per_gb(50.0, 2e9) == 25
    assert q.mean_cost([1.0, 3.0]) == 2 and q.mean_rate([1.0, 3.0]) == 1.5
    assert q.mean_ratio([0.5, 2.0]) == pytest.approx(1)


@pytest.mark.parametrize(
    "call",
    [
        lambda: q.of_limit(0, 1), lambda: q.of_limit(1, 0), lambda: q.speedup(0, 1),
        lambda: q.efficiency(1, 1, 0), lambda: q.scaling_efficiency(1, 0),
        lambda: q.joules_per_gb(1, 0), lambda: q.mean_cost([]), lambda: q.mean_rate([]),
        lambda: q.mean_rate([1, 0]), lambda: q.mean_ratio([]), lambda: q.mean_ratio([-1]),
        lambda: q.quantile([], 0.5), lambda: q.quantile([1], 0), lambda: q.quantile_interval([1], 1),
    ],
)  # fmt: skip
def test_what_has_no_meaning_is_refused(call: object) -> None:
    """Rule: nothing measured, or nothing to divide by, is an error and no figure."""
    with pytest.raises(ValueError):
        call()  # type: ignore[operator]


@settings(deadline=None)
@given(LISTS, POSITIVE)
def test_rates_averaged_harmonically_are_the_rate_of_the_averaged_cost(
    costs: list[float], amount: float
) -> None:
    """Rule: the harmonic mean of rates of one amount is that amount over the mean of the times."""
    rates = [amount / c for c in costs]
    assert q.mean_rate(rates) == pytest.approx(amount / q.mean_cost(costs), rel=1e-9)
    assert q.mean_rate(rates) <= q.mean_ratio(rates) * (1 + 1e-9)
    assert q.mean_ratio(rates) <= q.mean_cost(rates) * (1 + 1e-9)


@settings(deadline=None)
@given(LISTS, LISTS)
def test_geometric_means_of_ratios_do_not_depend_on_the_base(
    a: list[float], b: list[float]
) -> None:
    """Rule: turned round, a geometric mean of ratios is its reciprocal; an arithmetic one is not."""
    ratios = [x / y for x, y in zip(a, b, strict=False)]
    assert q.mean_ratio([1 / r for r in ratios]) == pytest.approx(1 / q.mean_ratio(ratios))


@settings(deadline=None)
@given(st.lists(POSITIVE, min_size=1, max_size=50), st.floats(0.01, 1))
def test_a_quantile_is_one_of_the_values_and_covers_its_share(
    values: list[float], p: float
) -> None:
    """Rule: at least the share q of the values is not above it, and less than that is below."""
    found, n = q.quantile(values, p), len(values)
    assert found in values and sum(v <= found for v in values) >= p * n - 1e-6
    assert sum(v < found for v in values) < p * n + 1e-6


@pytest.mark.parametrize(("n", "p"), [(30, 0.5), (200, 0.9), (600, 0.99)])
def test_intervals_of_quantiles_cover_as_often_as_they_say(n: int, p: float) -> None:
    """Rule: the interval holds the true quantile in at least 95 % of samples, and not always."""
    random, true = np.random.default_rng(1), -float(np.log(1 - p))
    hits = 0
    for _ in range(600):
        low, high = q.quantile_interval(random.exponential(size=n).tolist(), p) or (0, 0)
        hits += low <= true <= high
    assert 0.93 <= hits / 600 < 0.995


@pytest.mark.parametrize("share", [-0.5, 0.0, 1.0, 1.5])
def test_shares_that_are_none_are_refused(share: float) -> None:
    """Rule: an interval's quantile and confidence lie between 0 and 1; a quantile may be the most."""
    values = [float(i) for i in range(1000)]
    with pytest.raises(ValueError, match="no interval"):
        q.quantile_interval(values, share)
    with pytest.raises(ValueError, match="no interval"):
        q.quantile_interval(values, 0.5, share)
    if share == 1:
        assert q.quantile(values, share) == values[-1]
    else:
        with pytest.raises(ValueError, match="no quantile"):
            q.quantile(values, share)


def test_intervals_need_enough_values() -> None:
    """Rule: below six values for a median, and far more for p99, nothing is claimed."""
    assert q.quantile_interval([1.0] * 5, 0.5) is None and q.quantile_interval([1.0] * 6, 0.5)
    assert q.quantile_interval([1.0] * 100, 0.99) is None and q.quantile_interval([1.0] * 600, 0.99)


@settings(deadline=None)
@given(st.lists(POSITIVE, min_size=6, max_size=400))
def test_the_rule_of_thumb_for_medians_is_no_wider_by_much(values: list[float]) -> None:
    """Rule: ranks by the normal approximation, used everywhere, are within one of the exact ones."""
    ranked = [float(i) for i in range(len(values))]
    thumb, exact = interval(ranked), q.quantile_interval(ranked, 0.5)
    assert thumb and exact
    assert max(abs(a - b) for a, b in zip(thumb, exact, strict=True)) <= 2


# -- scaling


def _results(ranks: int, seconds: float, algorithm: str = "ring") -> list[Result]:
    times = tuple(seconds * (1 + 0.001 * i) for i in range(20))
    return [Result("allreduce", algorithm, "shm", ranks, 2**20, 2**18, "float", "sum", -1,
                   2 * (ranks - 1) / ranks, Sample(times, 20))]  # fmt: skip


def test_scaling_names_its_base_and_follows_the_formulae() -> None:
    """Rule: efficiency on n is t(base) / t(n); speed-up n / base times that; with an interval."""
    text = b"".join(to_jsonl(_results(n, t)) for n, t in ((1, 1.0), (2, 1.25), (4, 2.0))).decode()
    (series,) = scaling(list(parse(text).rows))
    assert [s.efficiency for s in series] == pytest.approx([1, 0.8, 0.5])
    assert [s.speedup for s in series] == pytest.approx([1, 1.6, 2])
    assert {s.base.ranks for s in series} == {1} and series[0].low is None
    for s in series[1:]:
        assert s.low is not None and s.high is not None and s.low <= s.efficiency <= s.high
    text = b"".join(to_jsonl(_results(n, t)) for n, t in ((2, 1.0), (8, 2.0))).decode()
    (series,) = scaling(list(parse(text).rows))
    assert (series[1].efficiency, series[1].speedup) == pytest.approx((0.5, 2))


@pytest.mark.parametrize(("width", "shown"), [(80, False), (100, True)])
def test_scaling_keeps_names_whole(
    width: int,
    shown: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Rule: where a terminal is narrow busbw goes, a name is never folded; tiny speed-ups are told."""
    monkeypatch.setenv("COLUMNS", str(width))
    path = tmp_path / "run.jsonl"
    made = [_results(n, 10.0**-n, "halving_doubling") for n in (2, 4)]
    path.write_bytes(to_jsonl([*made[0], *made[1], *_results(2, 1e-6), *_results(4, 1e-2)]))
    assert main(["scaling", str(path)]) == 0
    out = capsys.readouterr().out
    out = out.partition("the fastest")[0]  # the map of winners
    assert out.count("halving_doubling") == 2 and ("busbw" in out) == shown
    assert max(map(len, out.splitlines())) <= width and " 0.0002 " in out


def test_the_table_of_scaling(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rule: the base stands in the heading, the first rule is kept; one rank count alone is refused."""
    monkeypatch.setenv("COLUMNS", "80")
    files = []
    for ranks in (1, 2, 4):
        path = tmp_path / f"{ranks}.jsonl"
        path.write_bytes(to_jsonl(_results(ranks, 1.0 + ranks / 4)))
        files.append(str(path))
    assert main(["scaling", *files]) == 0
    out = capsys.readouterr().out
    assert "base of speed-up and efficiency: 1 rank" in out and "kept 1 " in out
    assert max(map(len, out.splitlines()[1:])) <= 80
    assert main(["scaling", files[0]]) == 2
