"""Statistics of comparisons: their error rates, and agreement with what is exact."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from busbar.statistics import student_p, student_quantile
from reports.statistics.inference import (
    between_runs,
    chi_squared_p,
    cliffs_delta,
    drawn_medians,
    holm,
    launch_center,
    launch_scatter,
    launch_test,
    launches_to_see,
    least_p,
    least_seen,
    likeness,
    ratio_interval,
    separated,
    within_run,
)
from tests.conftest import thorough

VALUES = st.lists(st.floats(1e-6, 1.0), min_size=1, max_size=40)


@given(VALUES, VALUES)
def test_the_effect_is_symmetric(base: list[float], new: list[float]) -> None:
    """Rule: swapping the sides turns the effect; against itself a side has none."""
    effect = cliffs_delta(base, new)
    assert effect == pytest.approx(-cliffs_delta(new, base)) and -1 <= effect <= 1
    assert cliffs_delta(base, base) == pytest.approx(0)


@given(st.lists(st.integers(0, 6), min_size=1), st.lists(st.integers(0, 6), min_size=1))
def test_the_effect_counts_all_pairs(base: list[int], new: list[int]) -> None:
    """Rule: Cliff's delta is the share of pairs with new larger, less that with new smaller."""
    pairs = [(n > b) - (n < b) for b in base for n in new]
    assert cliffs_delta(base, new) == pytest.approx(sum(pairs) / len(pairs))
    assert cliffs_delta([], new) == cliffs_delta(base, []) == 0


def test_tails_are_those_of_the_tables() -> None:
    """Rule: Student's t is exact for whole degrees of freedom, chi-squared approximately."""
    from scipy import stats

    for k in range(1, 40):
        for t in (-3.0, 0.0, 0.5, 2.0, 12.0):
            assert student_p(t, k) == pytest.approx(stats.t.sf(t, k), abs=1e-12)
        for x in (0.3 * k, k, 3.0 * k):
            assert chi_squared_p(x, k) == pytest.approx(stats.chi2.sf(x, k), abs=0.015)
    with pytest.raises(ValueError, match="degrees"):
        student_p(1, 0)


def _side(random: np.random.Generator, n: int, times: float = 1.0) -> list[list[float]]:
    """Launches that scatter by 2 %, of 9 iterations that scatter by 1 %."""
    middles = times * random.lognormal(0, 0.02, n)
    return [(m * random.lognormal(0, 0.01, 9)).tolist() for m in middles]


@pytest.mark.parametrize(("base", "new"), [(2, 2), (3, 3), (5, 1)])
def test_false_alarms_between_launches_are_as_rare_as_said(base: int, new: int) -> None:
    """Rule: launches of one state differ at the 5 % level in at most 5 % of cases, few or many.

    The interval of their ratio leaves 1 out in the same cases.
    """
    random = np.random.default_rng(1)
    sides = [(_side(random, base), _side(random, new)) for _ in range(1500)]
    differ = [(launch_test(*both) or 0) < 0.05 for both in sides]
    assert sum(differ) / len(sides) < 0.065
    ends = [between_runs(*both) or (1, 1) for both in sides]
    assert differ == [not low <= 1 <= high for low, high in ends]


def _called_different(
    launches: tuple[int, int], scatters: tuple[float, float], cases: int, share: float = 0.0
) -> float:
    """How often sides that scatter so and differ by this share are called different."""
    random = np.random.default_rng(9)
    sides = [
        np.exp(scatter * random.standard_normal((cases, n, 1))).tolist()
        for scatter, n in zip(scatters, launches, strict=True)
    ]
    slower = [[[(1 + share) * t for t in run] for run in side] for side in sides[1]]
    found = [launch_test(*both) or 0 for both in zip(sides[0], slower, strict=True)]
    return sum(p < 0.05 for p in found) / cases


@pytest.mark.parametrize("ratio", [1, *thorough(2, 3, 5), 10])
@pytest.mark.parametrize(
    ("base", "new"), [(3, 3), *thorough((4, 4), (5, 5), (10, 10), (3, 5), (5, 3), (3, 10)), (10, 3)]
)
def test_sides_that_scatter_unlike_give_no_false_alarms(base: int, new: int, ratio: int) -> None:
    """Rule: equal sides are called different in at most 6 % of the cases, also where one scatters
    by 1 % and the other by up to 10 %, and where one has more launches than the other.
    """  # noqa: D205
    cases = 30 * settings().max_examples
    # With three standard deviations more: of 3000 cases 7.3 %.
    most = 0.06 + 3 * (0.06 * 0.94 / cases) ** 0.5
    assert _called_different((base, new), (0.01, 0.01 * ratio), cases) <= most


@pytest.mark.parametrize("launches", [3, 5])
def test_a_slowdown_by_5_per_cent_is_still_found(launches: int) -> None:
    """Rule: where launches scatter by 1 %, nine of ten slowdowns by 5 % are found by three a side,
    and nearly all by five.
    """  # noqa: D205
    found = _called_different((launches, launches), (0.01, 0.01), 1000, 0.05)
    assert found >= (0.9 if launches == 3 else 0.99)


def _blocks(random: np.random.Generator, n: int, times: float = 1.0) -> list[float]:
    """Logarithms within launches that scatter by 20 %, whose 6 visits of each side do by 2 %."""
    found = []
    for middle in random.lognormal(0, 0.2, n):
        sides = middle * random.lognormal(0, 0.02, (2, 6, 1))
        found.append(within_run(sides[0].tolist(), (times * sides[1]).tolist()))
    return found


def test_blocks_find_what_launches_hide_and_no_more_often_what_is_not_there() -> None:
    """Rule: launches that measure both sides find 5 % where they differ by 20 % among themselves;
    equal sides differ in about 5 % of cases, and the interval leaves 1 out in the same ones.
    """  # noqa: D205
    random = np.random.default_rng(8)
    equal = [_blocks(random, 5) for _ in range(1500)]
    differ = [(launch_test([], [], within) or 0) < 0.05 for within in equal]
    assert 0.035 < sum(differ) / len(equal) < 0.065
    ends = [between_runs([], [], within) or (1, 1) for within in equal]
    assert differ == [not low <= 1 <= high for low, high in ends]
    found = [launch_test([], [], _blocks(random, 5, 1.05)) or 0 for _ in range(200)]
    assert sum(p < 0.05 for p in found) >= 190


def test_visits_are_compared_in_their_turn() -> None:
    """Rule: a level that holds for a visit of each side is no difference; where one side has more
    visits all count together; without a time there is no ratio.
    """  # noqa: D205
    assert within_run([[1.0], [5.0], [2.0]], [[1.1], [5.5], [2.2]]) == pytest.approx(np.log(1.1))
    assert within_run([[1.0], [3.0]], [[2.0], [4.0], [6.0]]) == pytest.approx(np.log(2))
    assert np.isnan(within_run([[0.0]], [[1.0]]))


@pytest.mark.parametrize(("base", "new"), [(2, 2), (3, 2), (3, 3), (4, 4), (1, 5)])
def test_the_least_p_is_that_of_complete_separation(base: int, new: int) -> None:
    """Rule: `least_p` is twice the share of all ways to divide the launches that separate them."""
    ways = list(combinations(range(base + new), new))
    sides = [(set(range(base + new)) - {*way}, way) for way in ways]
    apart = [separated(*([[n + 1.0] for n in side] for side in both)) for both in sides]
    assert least_p(base, new) == pytest.approx(2 / len(ways))
    assert sum(apart) / len(ways) == pytest.approx(least_p(base, new))


def test_launches_that_measured_both_sides_have_either_sign_as_often() -> None:
    """Rule: with blocks, all of one sign has twice the probability of a row of heads."""
    assert [least_p(n, n, n) >= 0.05 for n in (3, 5, 6, 8)] == [True, True, False, False]
    sides = [[1.0], [9.0]], [[2.0], [8.0]]
    assert separated(*sides, (0.1, 0.2)) and separated(*sides, (-0.1, -0.2))
    assert not separated(*sides, (0.1, -0.2)) and not separated(*sides)


def test_launches_are_the_units_and_not_iterations() -> None:
    """Rule: five launches a side find 10 % nearly always; one a side never tells anything."""
    random = np.random.default_rng(3)
    found = [launch_test(_side(random, 5), _side(random, 5, 1.1)) for _ in range(200)]
    assert sum(p is not None and p < 0.05 for p in found) >= 190
    assert launch_test(_side(random, 1), _side(random, 1, 9.0)) is None
    one = _side(random, 1)
    assert between_runs(one, one) is None and between_runs([[0.0]], _side(random, 2)) is None
    assert launch_test([[1.0], [1.0]], [[1.0]]) == 1 and launch_test([[1.0], [1.0]], [[2.0]]) == 0


@pytest.mark.parametrize("within", [False, True])
@pytest.mark.parametrize(("launches", "scatter"), [(5, 0.02), (3, 0.05)])
def test_what_can_be_seen_is_found_that_often(launches: int, scatter: float, within: bool) -> None:
    """Rule: a slowdown by `least_seen` is found in 95 % of the cases, one by half of it in few;
    also where launches measure both sides, which then scatter as their difference does.
    """  # noqa: D205
    random = np.random.default_rng(5)
    least = least_seen(scatter, launches, within=within)

    def found(share: float) -> float:
        logs = scatter * random.standard_normal((600, 2, launches))
        logs[:, 1] += np.log(1 + share)
        sides = np.exp(logs)[..., None].tolist()
        blocks = logs[:, 1].tolist() if within else [()] * 600
        ps = [launch_test(a, b, c) for (a, b), c in zip(sides, blocks, strict=True)]
        return sum(p is not None and p < 0.05 for p in ps) / len(ps)

    assert 0.92 <= found(least) <= 0.98 and found(least / 2) < 0.7


def test_as_many_launches_as_are_said_see_it_and_one_less_does_not() -> None:
    """Rule: the number is the least; where more than a thousand are needed there is none."""
    many = launches_to_see(0.02, 0.03)
    assert many is not None and least_seen(0.02, many) <= 0.03 < least_seen(0.02, many - 1)
    assert launches_to_see(0.001, 0.5) == 2 and launches_to_see(1.0, 0.01) is None
    assert launch_scatter([[1.0]], [[1.0]]) is None
    random = np.random.default_rng(6)
    scatters = [launch_scatter(_side(random, 5), _side(random, 4)) or 0 for _ in range(200)]
    assert np.mean(np.square(scatters)) ** 0.5 == pytest.approx(0.0203, rel=0.1)
    with pytest.raises(ValueError, match="1 launches a side"):
        least_seen(0.02, 1)


def test_the_time_of_launches_is_the_middle_of_their_medians() -> None:
    """Rule: every launch counts once, however many iterations it has; of one it is the median."""
    assert launch_center([[1.0, 2.0, 9.0]]) == 2
    assert launch_center([[1.0] * 9, [4.0]]) == pytest.approx(2)
    with pytest.raises(ValueError, match="no values"):
        launch_center([[], []])


def test_runs_are_drawn_first_and_iterations_within_them() -> None:
    """Rule: of two runs both are drawn half of the time, and a value comes from the run drawn."""
    drawn = drawn_medians([[1.0] * 9, [2.0] * 3], np.random.default_rng(0)).tolist()
    shares = [drawn.count(value) / len(drawn) for value in (1.0, 1.5, 2.0)]
    assert shares == pytest.approx([0.25, 0.5, 0.25], abs=0.04) and len(drawn) == 2000


def test_a_long_run_is_drawn_from_evenly_and_in_time() -> None:
    """Rule: of a run of 100,000 iterations every hundredth counts, whatever it drifts by, so that
    2000 draws hold some 2 million values and not 200 million.
    """  # noqa: D205
    random = np.random.default_rng(2)
    sides = [random.normal(1, 0.1, 100_000) for _ in range(2)]
    low, high = ratio_interval([sides[0].tolist()], [sides[1].tolist()]) or (1.0, 1.0)
    assert 0.97 < low < high < 1.03 and high > 1.005 * low
    drift = (1 + np.arange(100_000) / 1e5).tolist()
    assert np.median(drawn_medians([drift], random)) == pytest.approx(1.5, abs=0.05)


def test_an_interval_needs_six_values_a_side() -> None:
    """Rule: six are enough, five are not, on either side; a median of nothing has no ratio."""
    six, five = [1.0] * 6, [1.0] * 5
    assert ratio_interval([six], [[2.0] * 6]) == (2.0, 2.0)
    assert ratio_interval([six[:3], six[:3]], [six]) == (1.0, 1.0)
    assert ratio_interval([six], [five]) is ratio_interval([five], [six]) is None
    assert ratio_interval([[0.0] * 6], [six]) is None


def test_the_ratio_interval_covers_as_often_as_it_says() -> None:
    """Rule: about 95 % of the intervals hold the true ratio of medians."""
    random = np.random.default_rng(2)
    hits = 0
    for _ in range(300):
        base, new = random.lognormal(0, 0.3, 40), 1.5 * random.lognormal(0, 0.3, 40)
        low, high = ratio_interval([base.tolist()], [new.tolist()]) or (0, 0)
        hits += low <= 1.5 <= high
    assert 0.91 <= hits / 300 <= 0.99


@pytest.mark.thorough
def test_runs_that_differ_widen_the_interval() -> None:
    """Rule: what changes from run to run is no difference: nearly all intervals still hold 1."""
    random = np.random.default_rng(3)

    def side() -> list[list[float]]:
        return [(m * random.lognormal(0, 0.01, 40)).tolist() for m in random.lognormal(0, 0.2, 6)]

    def flat(runs: list[list[float]]) -> list[float]:
        return [t for one in runs for t in one]

    apart, together = 0, 0
    for _ in range(40):
        base, new = side(), side()
        low, high = ratio_interval(base, new) or (0, 0)
        apart += low <= 1 <= high
        low, high = ratio_interval([flat(base)], [flat(new)]) or (0, 0)
        together += low <= 1 <= high
    assert apart >= 34 and together < apart


def _alike(random: np.random.Generator, n: int, r: float) -> list[float]:
    """Times whose logarithms are an autoregression: neighbours have the correlation r."""
    x, found = random.standard_normal(), []
    for step in random.standard_normal(n):
        x = r * x + (1 - r * r) ** 0.5 * step
        found.append(float(np.exp(0.1 * x)))
    return found


@pytest.mark.thorough
def test_blocks_of_neighbours_widen_the_interval() -> None:
    """Rule: the bootstrap of alike iterations holds the true ratio nearly as often as it says."""
    random, hits = np.random.default_rng(5), 0
    for _ in range(80):
        low, high = ratio_interval([_alike(random, 150, 0.6)], [_alike(random, 150, 0.6)]) or (0, 0)
        hits += low <= 1 <= high
    assert hits >= 69  # blind to likeness it would be 62


@pytest.mark.parametrize("r", [0.0, 0.5, 0.9])
def test_likeness_is_the_correlation_of_neighbours(r: float) -> None:
    """Rule: estimated without much bias from short runs, whatever differs between them."""
    random = np.random.default_rng(6)
    runs = [[m * t for t in _alike(random, 60, r)] for m in random.lognormal(0, 1, 60)]
    assert likeness(runs) == pytest.approx(r, abs=0.08)
    assert likeness([[1.0] * 50, [2.0]]) == 0


def test_students_quantile_turns_its_tail_back() -> None:
    """Rule: the t of a chance has that chance; two of the tables' values."""
    assert student_quantile(0.025, 2) == pytest.approx(4.303, abs=5e-4)
    assert student_quantile(0.025, 30) == pytest.approx(2.042, abs=5e-4)
    for k in (1, 4, 17):
        assert student_p(student_quantile(0.1, k), k) == pytest.approx(0.1)


@given(st.lists(st.floats(0, 1), max_size=30))
def test_holm_keeps_order_and_only_raises(values: list[float]) -> None:
    """Rule: corrected p are no smaller, at most 1, and in the same order."""
    adjusted = holm(values)
    assert all(p <= q <= 1 for p, q in zip(values, adjusted, strict=True))
    pairs = sorted(zip(values, adjusted, strict=True))
    assert [q for _, q in pairs] == sorted(adjusted)


def test_holm_on_a_worked_case() -> None:
    """Rule: the k-th smallest of n is multiplied by n - k + 1."""
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
