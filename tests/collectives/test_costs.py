"""What a schedule costs is what its paper says, counted from the schedule itself."""

from __future__ import annotations

from collections.abc import Callable
from math import isclose

import pytest

from busbar.errors import Unsupported
from collectives.algorithms.broadcast.chain import best_segments
from collectives.schedule.bounds import bound
from collectives.schedule.catalogue import build, spec
from collectives.schedule.cost import cost, traffic
from collectives.schedule.layout import Layout
from collectives.schedule.passes import MOST_SEGMENTS
from tests.collectives.cases import PAIRS, built, lg

COUNTS = range(2, 34)


def _grid(n: int) -> tuple[int, int]:
    side = next(d for d in range(int(n**0.5), 0, -1) if n % d == 0)
    return n // side, side


def _grid_steps(n: int) -> int:
    return sum(_grid(n)) - 2


def _across(n: int) -> float:
    return sum((side - 1) / side for side in _grid(n))


def _once(n: int) -> float:
    """The share of the vector that a rank lacks of an all-gather."""
    return (n - 1) / n


def _twice(n: int) -> float:
    return 2 * _once(n)


def _power(n: int) -> int:
    """The power of two below."""
    return 1 << (n.bit_length() - 1)


def _folds(n: int) -> bool:
    return _power(n) != n


def _folded(n: int) -> float:
    """Twice what a rank of the power of two lacks, and the vector of the rank folded on it."""
    return _twice(_power(n)) + _folds(n)


def _most_of_bruck(n: int) -> float:
    """Parts with a bit set in their distance, over all bits, as a share of the n parts."""
    return sum(bin(distance).count("1") for distance in range(n)) / n


def _half(n: int) -> float:
    """What a binomial tree's busiest child passes on, where n is a power of two."""
    return 2 ** (lg(n) - 1) / n if n & (n - 1) == 0 else UNSAID


Formula = Callable[[int], float]
UNSAID = -1


def _is(value: float) -> Formula:
    return lambda n: value


# (collective, algorithm): steps, out, in; for every n that the algorithm serves.
TABLE: dict[tuple[str, str], tuple[Formula, Formula, Formula]] = {
    ("allreduce", "ring"): (lambda n: 2 * (n - 1), _twice, _twice),
    ("allreduce", "bidirectional_ring"): (lambda n: 2 * (n - 1), _twice, _twice),
    ("allreduce", "tree"): (lambda n: 2 * lg(n), lg, lg),
    ("allreduce", "torus"): (lambda n: 2 * _grid_steps(n), _twice, _twice),
    ("allreduce", "ps"): (_is(2), lambda n: n - 1, lambda n: n - 1),
    ("allreduce", "sharded_ps"): (_is(2), _twice, _twice),
    ("allreduce", "one_shot"): (_is(1), lambda n: n - 1, lambda n: n - 1),
    ("allreduce", "recursive_doubling"): (lg, lg, lg),
    ("allreduce", "hierarchical"): (lambda n: 2 * _grid_steps(n), _twice, _twice),
    ("allreduce", "swing"): (lambda n: 2 * lg(n), _twice, _twice),
    ("allreduce", "halving_doubling"): (
        lambda n: 2 * lg(_power(n)) + 2 * _folds(n),
        _folded,
        _folded,
    ),
    ("broadcast", "flat"): (_is(1), lambda n: n - 1, _is(1)),
    ("broadcast", "binomial"): (lg, lg, _is(1)),
    ("broadcast", "chain"): (lambda n: n - 2 + 16, _is(1), _is(1)),
    ("broadcast", "scatter_allgather"): (lambda n: n, _twice, _is(1)),
    ("broadcast", "sharded"): (_is(2), _twice, _is(1)),
    ("reduce", "flat"): (_is(1), _is(1), lambda n: n - 1),
    ("reduce", "binomial"): (lg, _is(1), lg),
    ("reduce", "chain"): (lambda n: n - 2 + 16, _is(1), _is(1)),
    ("reduce", "reduce_scatter_gather"): (lambda n: lg(n) + n - 1, _is(UNSAID), _twice),
    ("reduce", "sharded"): (_is(2), _is(1), _twice),
    ("reduce", "rabenseifner"): (
        lambda n: 2 * lg(_power(n)) + _folds(n),
        _is(UNSAID),
        _folded,
    ),
    ("allgather", "ring"): (lambda n: n - 1, _once, _once),
    ("allgather", "doubling"): (lg, _once, _once),
    ("allgather", "bruck"): (lg, _once, _once),
    ("allgather", "direct"): (_is(1), _once, _once),
    ("allgather", "torus"): (_grid_steps, _once, _once),
    ("allgather", "pat"): (lg, _once, _once),
    ("reduce_scatter", "ring"): (lambda n: n - 1, _once, _once),
    ("reduce_scatter", "halving"): (lg, _once, _once),
    ("reduce_scatter", "bruck"): (lg, _once, _once),
    ("reduce_scatter", "direct"): (_is(1), _once, _once),
    ("reduce_scatter", "torus"): (_grid_steps, _once, _once),
    ("reduce_scatter", "pat"): (lg, _once, _once),
    ("alltoall", "pairwise"): (lambda n: n - 1, _once, _once),
    ("alltoall", "direct"): (_is(1), _once, _once),
    ("alltoall", "bruck"): (lg, _most_of_bruck, _most_of_bruck),
    ("alltoall", "torus"): (_grid_steps, _across, _across),
    ("alltoall", "hierarchical"): (_grid_steps, _across, _across),
    ("alltoallv", "pairwise"): (lambda n: n - 1, _once, _once),
    ("alltoallv", "direct"): (_is(1), _once, _once),
    ("gather", "flat"): (_is(1), lambda n: 1 / n, _once),
    ("gather", "binomial"): (lg, _half, _once),
    ("scatter", "flat"): (_is(1), _once, lambda n: 1 / n),
    ("scatter", "binomial"): (lg, _once, _half),
    ("barrier", "dissemination"): (lg, lg, lg),
    ("barrier", "tree"): (lambda n: 2 * lg(n), lg, lg),
    ("sendrecv", "direct"): (_is(1), _is(1), _is(1)),
    ("sendrecv_pairs", "direct"): (_is(1), _is(1), _is(1)),
    ("hypercube", "doubling"): (lg, _once, _once),
}
# What is said of these is a bound: `test_double_trees`.
APART = {(collective, "double_tree") for collective in ("allreduce", "broadcast", "reduce")}


def test_every_algorithm_has_its_cost_asserted() -> None:
    """No algorithm enters the catalogue without a claim about its cost."""
    assert set(PAIRS) == set(TABLE) | APART


@pytest.mark.parametrize(("collective", "name"), sorted(TABLE))
def test_exact_costs(collective: str, name: str) -> None:
    """Steps, busiest out and busiest in are exactly the formulas, for 2 to 33 ranks."""
    steps, out, into = TABLE[collective, name]
    served = 0
    for n in COUNTS:
        schedule = built(collective, name, n)
        if schedule is None:
            continue
        served += 1
        found = cost(schedule, spec(collective))
        assert found.steps == steps(n), n
        for measured, formula in ((found.out, out(n)), (found.into, into(n))):
            assert formula == UNSAID or isclose(measured, formula), n
    assert served >= 5


@pytest.mark.parametrize("n", COUNTS)
def test_a_servers_port_is_busy_as_often_as_there_are_ranks(n: int) -> None:
    """Rule: port is 2(P - 1) of a parameter server and 2(P - 1)/P of a ring."""
    ports = {
        name: cost(build("allreduce", name, n), spec("allreduce")).port for name in ("ps", "ring")
    }
    assert isclose(ports["ps"], 2 * (n - 1)) and isclose(ports["ring"], 2 * (n - 1) / n)


@pytest.mark.parametrize("n", COUNTS)
def test_double_trees(n: int) -> None:
    """At most twice the vector each way for the all-reduce, once for broadcast and reduce.

    A rank with children in both trees would carry more.
    """
    for segments in (1, 4, 8):
        whole = cost(build("allreduce", "double_tree", n, segments=segments), spec("allreduce"))
        assert whole.out <= 2 and whole.into <= 2
        assert whole.steps <= 2 * (lg(n) + 1) + segments - 1
        for collective in ("broadcast", "reduce"):
            half = cost(build(collective, "double_tree", n, segments=segments), spec(collective))
            assert half.out <= 1 and half.into <= 1
            assert half.steps <= lg(n) + 1 + segments - 1


@pytest.mark.parametrize(("collective", "name"), PAIRS)
def test_nothing_beats_the_one_port_bounds(collective: str, name: str) -> None:
    """A schedule cheaper than the bound for its collective would be a wrong count."""
    for n in (*range(1, 18), 32):
        schedule, least = built(collective, name, n), bound(collective, n)
        if schedule is None or least is None:
            continue
        found = cost(schedule, spec(collective))
        assert found.rounds >= least.rounds
        for measured, bounded in (
            (found.out, least.out),
            (found.into, least.into),
            (found.reduced, least.reduced),
        ):
            assert bounded is None or measured >= bounded - 1e-9


def test_the_chain_takes_the_best_segment_count() -> None:
    """s* minimises (P−2+s)(α + nβ/s), and is what the chain takes where α and β are known.

    It is bounded however odd the costs that it is reckoned from.
    """
    for beta in (1e308, 1e-308):
        assert best_segments(3, 1e308, 1e-300, beta) == MOST_SEGMENTS
    assert best_segments(3, 1e-308, 1e308, 1e-308) == 1
    for n, nbytes, alpha, beta in (
        (8, 2**20, 1e-6, 1e-10),
        (16, 2**24, 5e-6, 1e-9),
        (3, 8, 1e-6, 1e-10),
    ):
        best = best_segments(n, nbytes, alpha, beta)

        def seconds(
            s: int, n: int = n, nbytes: int = nbytes, a: float = alpha, b: float = beta
        ) -> float:
            return (n - 2 + s) * (a + nbytes * b / s)

        assert seconds(best) <= min(seconds(s) for s in range(1, 2000)) * 1.02
        made = build("broadcast", "chain", n, nbytes=nbytes, alpha=alpha, beta=beta)
        assert cost(made, spec("broadcast")).steps == n - 2 + best
    with pytest.raises(Unsupported, match="go together"):
        build("broadcast", "chain", 4, alpha=1e-6)


@pytest.mark.parametrize(("collective", "name"), PAIRS)
def test_bytes_agree_with_volumes(collective: str, name: str) -> None:
    """Bytes by rank, for sizes that divide, are the volumes times the collective's own total."""
    what = spec(collective)
    for n in (1, 2, 6, 8):
        schedule = built(collective, name, n)
        if schedule is None:
            continue
        elements = 3 * Layout.of(schedule, what).split
        found, own = cost(schedule, what), what.total(n) * elements * 4
        sent, got = traffic(schedule, what, elements, 4)
        assert sent.sum() == got.sum()
        assert (sent.max(), got.max(), sent.sum()) == pytest.approx(
            (found.out * own, found.into * own, found.total * own)
        )
