"""Stragglers by a measured matrix: the throttled unit is named, and no other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from topology.model.slow_units import Cell, Pairs, Worse, worse


def _pairs(
    ranks: int,
    slow: Callable[[int, int], bool] = lambda a, b: False,
    *,
    times: float = 2.0,
    nodes: int = 1,
    seed: int = 0,
    directed: bool = True,
) -> Pairs:
    random = np.random.default_rng(seed)
    names = tuple(f"n{r * nodes // ranks}" for r in range(ranks))
    cells = {}
    for a in range(ranks):
        for b in range(ranks) if directed else range(a + 1, ranks):
            if a != b:
                local = names[a] == names[b]
                rate = (1e10 if local else 4e9) * float(np.exp(0.03 * random.standard_normal()))
                rate /= times if slow(a, b) else 1
                cells[a, b] = Cell(rate, 0.98 * rate, 1.02 * rate, "host" if local else "network")
    ids = tuple(f"RANK{r}" for r in range(ranks))
    return Pairs("bandwidth", True, directed, ids, names, cells)


def _named(found: list[Worse]) -> set[tuple[str, tuple[int, ...]]]:
    return {(w.unit.kind, w.unit.ends) for w in found}


@pytest.mark.parametrize(
    ("ranks", "nodes", "slow", "named"),
    [
        (4, 1, lambda a, b: {a, b} == {1, 3}, {("link", (1, 3))}),
        (4, 1, lambda a, b: (a, b) == (1, 3), {("link", (1, 3))}),
        (4, 1, lambda a, b: 2 in (a, b), {("rank", (2,))}),
        (6, 1, lambda a, b: a == 5, {("sending", (5,))}),
        (6, 1, lambda a, b: b == 0, {("receiving", (0,))}),
        (8, 2, lambda a, b: 6 in (a, b), {("rank", (6,))}),
        (5, 2, lambda a, b: 3 in (a, b), {("rank", (3,))}),
        (9, 3, lambda a, b: (a in (3, 4, 5)) != (b in (3, 4, 5)), {("node", (3, 4, 5))}),
        (9, 3, lambda a, b: {a, b} <= {3, 4, 5}, {("within", (3, 4, 5))}),
        (8, 1, lambda a, b: 2 in (a, b) or 5 in (a, b), {("rank", (2,)), ("rank", (5,))}),
    ],
)
@pytest.mark.parametrize("seed", range(3))
def test_a_throttled_unit_is_named(
    ranks: int, nodes: int, slow: Callable[[int, int], bool], named: set[object], seed: int
) -> None:
    """Rule: a throttled pair, rank, direction or node is named, by the largest fitting unit.

    Its rate and that of the others are of pairs of one class: not local ones against the network's.
    """
    found = worse(_pairs(ranks, slow, nodes=nodes, seed=seed))
    assert named <= _named(found) and len(found) <= len(named) + 1
    for w in found:
        assert w.low < w.times < w.high and w.p < 0.01
        if (w.unit.kind, w.unit.ends) in named:
            assert w.times == pytest.approx(2, rel=0.15) and w.pairs == w.of
            assert w.value == pytest.approx(w.typical / 2, rel=0.15)
            assert w.typical == pytest.approx({"host": 1e10, "network": 4e9}[w.of_kind], rel=0.1)


def test_an_even_matrix_accuses_nobody() -> None:
    """Rule: scatter of one distribution leads to an accusation in 2 % of matrices at the most."""
    accused = sum(bool(worse(_pairs(6, seed=seed, nodes=2))) for seed in range(150))
    assert accused <= 3


def test_what_cannot_be_compared_is_not_accused() -> None:
    """Rule: two ranks have one pair, two nodes one class between them: nothing to compare."""
    assert worse(_pairs(2, lambda a, b: a == 0)) == []
    assert worse(_pairs(4, lambda a, b: (a < 2) != (b < 2), nodes=2)) == []


def test_latency_is_worse_when_longer() -> None:
    """Rule: for a quantity of which less is better the longest are accused."""
    pairs = _pairs(5, lambda a, b: 1 in (a, b), times=0.5, directed=False)
    assert _named(worse(replace(pairs, name="latency", more_is_better=False))) == {("rank", (1,))}
