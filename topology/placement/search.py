"""Candidate sets with their orders: all sets up to 16 devices, a bounded choice above."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

import numpy as np
import numpy.typing as npt

from topology.placement import bounded, orders
from topology.placement.load import Flow, all_flows, pair_flows, ring_flows
from topology.placement.routes import GpuRoutes


class Objective(str, Enum):
    """The communication pattern of the chosen GPUs: a ring, k/2 pairs at once, or all to all."""

    RING = "ring"
    PAIRS = "pairs"
    ALL_TO_ALL = "all-to-all"


@dataclass(frozen=True)
class Candidate:
    """Some positions in the order that serves the objective; ``weight`` sorts, lighter is better.

    ``weight`` lists how many routes of each class are used, worst class first.
    """

    order: tuple[int, ...]
    weight: tuple[int, ...]

    @property
    def members(self) -> tuple[int, ...]:
        """The positions, ascending."""
        return tuple(sorted(self.order))


_Exact = Callable[
    [npt.NDArray[np.int64], int], tuple[orders.Masks, orders.Masks, npt.NDArray[np.int8]]
]
_EXACT: dict[Objective, _Exact] = {
    Objective.RING: orders.rings,
    Objective.PAIRS: orders.pairings,
    Objective.ALL_TO_ALL: orders.cliques,
}
FLOWS: dict[Objective, Callable[[tuple[int, ...]], list[Flow]]] = {
    Objective.RING: ring_flows,
    Objective.PAIRS: pair_flows,
    Objective.ALL_TO_ALL: all_flows,
}


def candidates(routes: GpuRoutes, k: int, objective: Objective) -> list[Candidate]:
    """Return every set of k (n <= 16), or the bounded search's, with its best order found."""
    size = len(routes.ids)
    if k == 1:
        return [Candidate((i,), ()) for i in range(size)]
    if size <= orders.EXACT_LIMIT:
        weight = orders.weights(routes.rank, len(FLOWS[objective](tuple(range(k)))))
        _, _, found = _EXACT[objective](weight, k)
        return [_candidate(routes, objective, tuple(map(int, row))) for row in found.tolist()]
    return [
        _candidate(routes, objective, best_order(routes, members, objective))
        for members in bounded.sets(routes.rank, k)
    ]


def best_order(
    routes: GpuRoutes, members: tuple[int, ...], objective: Objective
) -> tuple[int, ...]:
    """Return the order of these members that serves the objective; exact up to 16 members."""
    k = len(members)
    if k <= 2 or objective is Objective.ALL_TO_ALL:
        return members
    if k <= orders.EXACT_LIMIT:
        ranks = [[routes.rank[i][j] for j in members] for i in members]
        _, _, found = _EXACT[objective](orders.weights(ranks, k), k)
        return tuple(members[at] for at in found[0].tolist())
    search = bounded.ring if objective is Objective.RING else bounded.pairing
    return search(routes.rank, members)


def _candidate(routes: GpuRoutes, objective: Objective, order: tuple[int, ...]) -> Candidate:
    counts = [0] * routes.classes
    for a, b in FLOWS[objective](order):
        counts[routes.rank[a][b]] += 1
    return Candidate(order, tuple(reversed(counts)))
