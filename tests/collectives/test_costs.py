"""What a schedule costs is what its paper says, counted from the schedule itself."""

from __future__ import annotations

from collections.abc import Callable
from math import isclose

import pytest

from busbar.errors import Unsupported
from collectives.algorithms.allreduce.double_tree import in_order_tree, other_tree
from collectives.algorithms.broadcast.chain import best_segments
from collectives.schedule.bounds import bound
from collectives.schedule.catalogue import build, draft, spec
from collectives.schedule.cost import cost, traffic
from collectives.schedule.layout import Layout
from tests.collectives.cases import PAIRS, built

COUNTS = range(2, 34)


def lg(n: int) -> int:
    """⌈lg n⌉."""
    return (n - 1).bit_length()


def _square(n: int) -> tuple[int, int]:
    side = next(d for d in range(int(n**0.5), 0, -1) if n % d == 0)
    return n // side, side


def _across(n: int) -> float:
    x, y = _square(n)
    return (x - 1) / x + (y - 1) / y


def _torus_steps(n: int) -> int:
    return sum(_square(n)) - 2


Formula = Callable[[int], float]


def _others(n: int) -> float:
    return (n - 1) / n


def _most_of_bruck(n: int) -> float:
    """Parts with a bit set in their distance, over all bits, as a share of the n parts."""
    return sum(bin(distance).count("1") for distance in range(n)) / n


# (collective, algorithm): steps, out, in; for every n that the algorithm serves.
TABLE: dict[tuple[str, str], tuple[Formula, Formula, Formula]] = {
    ("allreduce", "ring"): (
        lambda n: 2 * (n - 1),
        lambda n: 2 * _others(n),
        lambda n: 2 * _others(n),
    ),
    ("allreduce", "bidirectional_ring"): (
        lambda n: 2 * (n - 1),
        lambda n: 2 * _others(n),
        lambda n: 2 * _others(n),
    ),
    ("allreduce", "tree"): (lambda n: 2 * lg(n), lg, lg),
    ("allreduce", "torus"): (
        lambda n: 2 * _torus_steps(n),
        lambda n: 2 * _others(n),
        lambda n: 2 * _others(n),
    ),
    ("allreduce", "ps"): (lambda n: 2, lambda n: n - 1, lambda n: n - 1),
    ("allreduce", "sharded_ps"): (lambda n: 2, lambda n: 2 * _others(n), lambda n: 2 * _others(n)),
    ("allreduce", "one_shot"): (lambda n: 1, lambda n: n - 1, lambda n: n - 1),
    ("allreduce", "recursive_doubling"): (lg, lg, lg),
    ("allreduce", "hierarchical"): (
        lambda n: 2 * _torus_steps(n),
        lambda n: 2 * _others(n),
        lambda n: 2 * _others(n),
    ),
    ("allreduce", "swing"): (
        lambda n: 2 * lg(n),
        lambda n: 2 * _others(n),
        lambda n: 2 * _others(n),
    ),
    ("broadcast", "flat"): (lambda n: 1, lambda n: n - 1, lambda n: 1),
    ("broadcast", "binomial"): (lg, lg, lambda n: 1),
    ("broadcast", "chain"): (lambda n: n - 2 + 16, lambda n: 1, lambda n: 1),
    ("reduce", "flat"): (lambda n: 1, lambda n: 1, lambda n: n - 1),
    ("reduce", "binomial"): (lg, lambda n: 1, lg),
    ("reduce", "chain"): (lambda n: n - 2 + 16, lambda n: 1, lambda n: 1),
    ("allgather", "ring"): (lambda n: n - 1, _others, _others),
    ("allgather", "doubling"): (lg, _others, _others),
    ("allgather", "bruck"): (lg, _others, _others),
    ("allgather", "direct"): (lambda n: 1, _others, _others),
    ("allgather", "torus"): (_torus_steps, _others, _others),
    ("allgather", "pat"): (lg, _others, _others),
    ("reduce_scatter", "ring"): (lambda n: n - 1, _others, _others),
    ("reduce_scatter", "halving"): (lg, _others, _others),
    ("reduce_scatter", "bruck"): (lg, _others, _others),
    ("reduce_scatter", "direct"): (lambda n: 1, _others, _others),
    ("reduce_scatter", "torus"): (_torus_steps, _others, _others),
    ("reduce_scatter", "pat"): (lg, _others, _others),
    ("alltoall", "pairwise"): (lambda n: n - 1, _others, _others),
    ("alltoall", "direct"): (lambda n: 1, _others, _others),
    ("alltoall", "bruck"): (lg, _most_of_bruck, _most_of_bruck),
    ("alltoall", "torus"): (_torus_steps, _across, _across),
    ("alltoall", "hierarchical"): (_torus_steps, _across, _across),
    ("alltoallv", "pairwise"): (lambda n: n - 1, _others, _others),
    ("alltoallv", "direct"): (lambda n: 1, _others, _others),
    ("gather", "flat"): (lambda n: 1, lambda n: 1 / n, _others),
    ("gather", "binomial"): (
        lg,
        lambda n: 2 ** (lg(n) - 1) / n if n & (n - 1) == 0 else -1,
        _others,
    ),
    ("scatter", "flat"): (lambda n: 1, _others, lambda n: 1 / n),
    ("scatter", "binomial"): (
        lg,
        _others,
        lambda n: 2 ** (lg(n) - 1) / n if n & (n - 1) == 0 else -1,
    ),
    ("barrier", "dissemination"): (lg, lg, lg),
    ("barrier", "tree"): (lambda n: 2 * lg(n), lg, lg),
    ("sendrecv", "direct"): (lambda n: 1, lambda n: 1, lambda n: 1),
    ("sendrecv_pairs", "direct"): (lambda n: 1, lambda n: 1, lambda n: 1),
    ("hypercube", "doubling"): (lg, _others, _others),
}
# Those whose formula has a case of its own below.
APART = {
    ("allreduce", "double_tree"),
    ("allreduce", "halving_doubling"),
    ("broadcast", "double_tree"),
    ("broadcast", "scatter_allgather"),
    ("reduce", "double_tree"),
    ("reduce", "rabenseifner"),
    ("reduce", "reduce_scatter_gather"),
}


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
            assert formula < 0 or isclose(measured, formula), n
    assert served >= 5


def test_bruck_moves_half_of_the_parts_a_step() -> None:
    """n/2·lg P, as the paper says, where P is a power of two."""
    for n in (2, 4, 8, 16, 32):
        assert isclose(cost(draft("alltoall", "bruck", n), spec("alltoall")).out, lg(n) / 2)


@pytest.mark.parametrize("n", COUNTS)
def test_folding_costs_two_steps_and_a_vector(n: int) -> None:
    """Halving-doubling is optimal for 2^k ranks and pays the folding, and no more, for others."""
    found = cost(build("allreduce", "halving_doubling", n), spec("allreduce"))
    q = 1 << (n.bit_length() - 1)
    fold = q != n
    assert found.steps == 2 * lg(q) + 2 * fold
    assert isclose(found.out, 2 * (q - 1) / q + fold)
    assert isclose(found.into, 2 * (q - 1) / q + fold)
    rooted = cost(build("reduce", "rabenseifner", n), spec("reduce"))
    assert rooted.steps == 2 * lg(q) + fold
    assert isclose(rooted.into, 2 * (q - 1) / q + fold)


@pytest.mark.parametrize("n", COUNTS)
def test_van_de_geijn(n: int) -> None:
    """Scatter and all-gather: ⌈lg n⌉ + n−1 steps, the root sends at most twice the vector."""
    there = cost(build("broadcast", "scatter_allgather", n), spec("broadcast"))
    back = cost(build("reduce", "reduce_scatter_gather", n), spec("reduce"))
    for found, busiest in ((there, there.out), (back, back.into)):
        assert found.steps == lg(n) + n - 1
        assert isclose(busiest, 2 * _others(n))


@pytest.mark.parametrize("n", COUNTS)
def test_no_rank_is_interior_in_both_trees(n: int) -> None:
    """What bounds the double tree's traffic: a rank has children in one tree at most.

    With an even number of ranks the root is an extra rank above the tree, with one child.
    """
    order = other_tree(n)
    first = {parent for _, _, parent in in_order_tree(n)}
    second = {order[parent] for parent in first}
    root = {n - 1} if n % 2 == 0 else set()
    assert not (first - root) & (second - {order[r] for r in root})
    assert not first & second


@pytest.mark.parametrize("n", COUNTS)
def test_double_trees(n: int) -> None:
    """At most twice the vector each way for the all-reduce, once for broadcast and reduce."""
    for segments in (1, 4, 8):
        whole = cost(build("allreduce", "double_tree", n, segments=segments), spec("allreduce"))
        assert whole.out <= 2 and whole.into <= 2
        assert whole.steps <= 2 * (lg(n) + 1) + segments - 1
        for collective in ("broadcast", "reduce"):
            half = cost(build(collective, "double_tree", n, segments=segments), spec(collective))
            assert half.out <= 1 and half.into <= 1
            assert half.steps <= lg(n) + 1 + segments - 1


@pytest.mark.parametrize("n", COUNTS)
def test_parameter_server_and_ring_move_the_same_total(n: int) -> None:
    """The famous comparison: the same 2n(P−1) over all links, but not through the busiest port."""
    what = spec("allreduce")
    server, ring = (
        cost(build("allreduce", "ps", n), what),
        cost(build("allreduce", "ring", n), what),
    )
    assert isclose(server.total, 2 * (n - 1))
    assert isclose(ring.total, 2 * (n - 1))
    assert isclose(server.out + server.into, 2 * (n - 1))
    assert isclose(ring.out, 2 * _others(n))


def test_the_bidirectional_ring_uses_both_directions_alike() -> None:
    """Half of the traffic goes to each neighbour."""
    for n in (3, 8, 13):
        sent = {1: 0, n - 1: 0}
        for step in build("allreduce", "bidirectional_ring", n).all_moves:
            m = step.remote()
            for distance, count in zip(
                ((m.dst - m.src) % n).tolist(), m.count.tolist(), strict=True
            ):
                sent[distance] += count
        assert sent[1] == sent[n - 1]


@pytest.mark.parametrize(("collective", "name"), PAIRS)
def test_nothing_beats_the_lower_bounds(collective: str, name: str) -> None:
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
    """s* minimises (P−2+s)(α + nβ/s), and is what the chain takes where α and β are known."""
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
