"""The best k GPUs for a job: ranked sets, each with its ring, bottleneck and expected bandwidth.

With up to 16 GPUs, every set of k is examined and its order is exact: Held and Karp's dynamic
programme over subsets for rings, enumeration of subsets for pairings, of pairs for all-to-all. With
more, a beam search is used (`bounded_sets`). Sets are ranked by the bandwidth that link rates
promise, with links shared as in the pattern. Ties are broken by the classes of routes (fewest of
the worst), the number of NUMA nodes, the number of GPU models, the findings of ``check`` about
their GPUs, the distance to a NIC, and the index.

In the beam search sets are grown from every device, or from the ``SEEDS`` with the best neighbours,
several sets at a time, always by the devices nearest to the set; rings are built by nearest
neighbour from several starts and improved by 2-opt. Time is at most about SEEDS * n * k for the
sets and LOOKS for a ring; on a tree of switches it finds the optimum in all our tests. In general
it only guarantees a result that is no worse than its first draft.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache, partial
from itertools import groupby
from math import isinf
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from busbar.errors import ProbeError, Unsupported
from busbar.units import format_rate
from topology.diagnostics import check
from topology.model.topology import Device, Kind, Topology
from topology.placement.rings import (
    EXACT_LIMIT,
    Counts,
    Grid,
    Masks,
    best_grid,
    cliques,
    disjoint_rings,
    groups,
    most_rings,
    pairings,
    rings,
    weights,
)
from topology.placement.routes import (
    Bottleneck,
    DirectedLinks,
    Flow,
    GpuRoute,
    GpuRoutes,
    all_flows,
    pair_flows,
    ring_flows,
)

Ranks = Sequence[Sequence[int]]
Members = tuple[int, ...]
WIDTH = 48
SEEDS = 256
#: For larger sets fewer are kept, because each then costs more.
MANY_MEMBERS, FEW = 128, 8
SWEEPS = 50
#: The most exchanges examined for one ring: over all sweeps and starts of 2-opt.
LOOKS = 4_000_000
_STARTS = 8


def bounded_sets(ranks: Ranks, k: int) -> list[tuple[int, ...]]:
    """Up to `WIDTH` good sets of k devices, ascending inside, most compact first.

    The most compact set has the fewest pairs of the worst class of route, then of the next, ….
    """
    table = np.array(ranks, np.int64)
    size, classes = len(table), int(table.max(initial=0)) + 1
    width = WIDTH if k <= MANY_MEMBERS else FEW
    most = max(width, min(size, SEEDS)) if k <= MANY_MEMBERS else FEW
    near = np.stack([table == c for c in reversed(range(classes))], axis=2).astype(np.int64)
    # A set with its spread, and for every device how many of its members are in each class.
    none = (0,) * classes
    beam: dict[Members, tuple[Members, npt.NDArray[np.int64]]]
    beam = {(a,): (none, near[a]) for a in _seeds(near, k)[:most]}
    for _ in range(k - 1):
        grown: dict[Members, tuple[Members, Members, int]] = {}
        for chosen, (spread, counts) in beam.items():
            for b in _nearest_three(counts, chosen):
                new = tuple(sorted((*chosen, b)))
                if new not in grown:
                    more = counts[b].tolist()
                    grown[new] = (tuple(map(sum, zip(spread, more, strict=True))), chosen, b)
        best = sorted(grown, key=lambda new: (grown[new][0], new))[:most]
        beam = {new: (grown[new][0], beam[grown[new][1]][1] + near[grown[new][2]]) for new in best}
    return sorted(beam, key=lambda chosen: (beam[chosen][0], chosen))[:width]


def _seeds(near: npt.NDArray[np.int64], k: int) -> list[int]:
    """All devices, sorted by their k - 1 nearest devices; the worst class is compared first."""
    total = np.cumsum(near.sum(axis=1)[:, ::-1], axis=1)
    # Of the k nearest (including itself), how many are of each class, best first.
    taken = np.diff(np.minimum(total, k), axis=1, prepend=0)
    return np.lexsort((np.arange(len(near)), *taken.T)).tolist()  # type: ignore[no-any-return]


def _nearest_three(counts: npt.NDArray[np.int64], chosen: tuple[int, ...]) -> list[int]:
    """The three devices nearest to a set, by counts per class (worst first); ties by number."""
    left = np.ones(len(counts), np.bool_)
    left[list(chosen)] = False
    at = np.flatnonzero(left)
    order = np.lexsort((at, *counts[at].T[::-1]))
    return at[order[:3]].tolist()  # type: ignore[no-any-return]


def bounded_ring(ranks: Ranks, members: Sequence[int]) -> tuple[int, ...]:
    """A good ring through the members, starting at the first."""
    looks = max(1, len(members) ** 2 // 2)
    starts = min(_STARTS, max(1, LOOKS // (4 * looks)))
    sweeps = min(SWEEPS, max(1, LOOKS // (starts * looks)))
    drafts = [_nearest(ranks, members, start) for start in members[:starts]]
    best = min(
        (_two_opt(ranks, draft, sweeps) for draft in drafts), key=lambda r: _classes(ranks, r)
    )
    at = best.index(members[0])
    return tuple(best[at:] + best[:at])


def bounded_pairing(ranks: Ranks, members: Sequence[int]) -> tuple[int, ...]:
    """The members in pairs, one after the other: the nearest two first, and so on."""
    left, pairs = list(members), []
    while left:
        a, b = min(
            ((a, b) for at, a in enumerate(left) for b in left[at + 1 :]),
            key=lambda pair: (ranks[pair[0]][pair[1]], pair),
        )
        pairs += [a, b]
        left = [c for c in left if c not in (a, b)]
    return tuple(pairs)


def _classes(ranks: Ranks, order: Sequence[int]) -> list[int]:
    """The classes of a ring's hops, worst first, for comparisons."""
    return sorted((ranks[order[at - 1]][order[at]] for at in range(len(order))), reverse=True)


def _nearest(ranks: Ranks, members: Sequence[int], start: int) -> list[int]:
    order, left = [start], sorted(m for m in members if m != start)
    while left:
        row = ranks[order[-1]]
        at = min(range(len(left)), key=lambda n: row[left[n]])
        order.append(left.pop(at))
    return order


def _two_opt(ranks: Ranks, order: list[int], sweeps: int = SWEEPS) -> list[int]:
    """Reverse sections of the ring while that replaces its hops by better ones."""
    size = len(order)
    for _ in range(sweeps):
        changed = False
        for i in range(size - 1):
            for j in range(i + 2, size - (i == 0)):
                a, b, c, d = order[i], order[i + 1], order[j], order[(j + 1) % size]
                before, after = ranks[a][b], ranks[c][d]
                if not before and not after:
                    continue  # both of the best class
                x, y = ranks[a][c], ranks[b][d]
                new = (x, y) if x > y else (y, x)
                if new < ((before, after) if before > after else (after, before)):
                    order = order[: i + 1] + order[i + 1 : j + 1][::-1] + order[j + 1 :]
                    changed = True
        if not changed:
            break
    return order


class Objective(str, Enum):
    """The communication pattern of the chosen GPUs: a ring, k/2 pairs at once, or all to all."""

    RING = "ring"
    PAIRS = "pairs"
    ALL_TO_ALL = "all-to-all"


@dataclass(frozen=True)
class Candidate:
    """A set of GPUs (positions), in the order that is best for the objective.

    ``weight`` has the number of used routes of each class, worst class first; less is better.
    """

    order: tuple[int, ...]
    weight: tuple[int, ...]

    @property
    def members(self) -> tuple[int, ...]:
        """The positions, ascending."""
        return tuple(sorted(self.order))


_Exact = Callable[[npt.NDArray[np.int64], int], tuple[Masks, Masks, npt.NDArray[np.int8]]]
_EXACT: dict[Objective, _Exact] = {
    Objective.RING: rings,
    Objective.PAIRS: pairings,
    Objective.ALL_TO_ALL: cliques,
}
FLOWS: dict[Objective, Callable[[tuple[int, ...]], list[Flow]]] = {
    Objective.RING: ring_flows,
    Objective.PAIRS: pair_flows,
    Objective.ALL_TO_ALL: all_flows,
}


def candidates(routes: GpuRoutes, k: int, objective: Objective) -> list[Candidate]:
    """Every set of k if n <= 16, else the bounded search's; each with the best order found."""
    size = len(routes.ids)
    if k == 1:
        return [Candidate((i,), ()) for i in range(size)]
    if size <= EXACT_LIMIT:
        weight = weights(routes.rank, len(FLOWS[objective](tuple(range(k)))))
        _, _, orders = _EXACT[objective](weight, k)
        return [_candidate(routes, objective, tuple(map(int, row))) for row in orders.tolist()]
    return [
        _candidate(routes, objective, best_order(routes, members, objective))
        for members in bounded_sets(routes.rank, k)
    ]


def best_order(
    routes: GpuRoutes, members: tuple[int, ...], objective: Objective
) -> tuple[int, ...]:
    """The order of these members that is best for the objective; exact up to 16 members."""
    k = len(members)
    if k <= 2 or objective is Objective.ALL_TO_ALL:
        return members
    if k <= EXACT_LIMIT:
        ranks = [[routes.rank[i][j] for j in members] for i in members]
        _, _, orders = _EXACT[objective](weights(ranks, k), k)
        return tuple(members[at] for at in orders[0].tolist())
    search = bounded_ring if objective is Objective.RING else bounded_pairing
    return search(routes.rank, members)


def _candidate(routes: GpuRoutes, objective: Objective, order: tuple[int, ...]) -> Candidate:
    counts = [0] * routes.classes
    for a, b in FLOWS[objective](order):
        counts[routes.rank[a][b]] += 1
    return Candidate(order, tuple(reversed(counts)))


MAX_TIERS = 10
#: With more sets than this, only the greedy search for rings side by side is used.
MANY = 1000


@dataclass(frozen=True)
class Pick:
    """One set of GPUs. Rates are bytes per second.

    ``gpus``: ascending. ``order``: the ring, also for other objectives, as their rank order.
    ``pairs``: only for that objective. ``busbw``: what all rings of ``rings`` together, or one ring
    if that is more, promise for an all-reduce; for pairs, the rate of a pair; for all-to-all, bus
    bandwidth. ``bottleneck``: of one ring (or of the pattern), ``single`` its rate; None and 0 for
    one GPU. ``routes``: the hops of the pattern.
    """

    gpus: tuple[str, ...]
    order: tuple[str, ...]
    pairs: tuple[tuple[str, str], ...]
    busbw: float
    single: float
    bottleneck: Bottleneck | None
    rings: tuple[tuple[str, ...], ...]
    routes: tuple[tuple[str, str, GpuRoute], ...]
    grid: Grid | None
    groups: tuple[tuple[str, ...], ...]

    def __repr__(self) -> str:
        rate = f", {format_rate(self.busbw)} GB/s" if self.busbw else ""
        return f"<Pick: {' '.join(self.order)}{rate}>"

    @property
    def assumed(self) -> bool:
        """True if the rate of the bottleneck is an assumed default."""
        return self.bottleneck is not None and self.bottleneck.hop.assumed


@dataclass(frozen=True)
class Tier:
    """All sets of the same bandwidth and the same classes of routes; ``best`` represents them."""

    best: Pick
    sets: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Ranking:
    """The picks, best first; ``choices``: the number of rated sets; ``exact``: all sets were rated.

    ``tiers`` partition the sets, best first.
    """

    picks: tuple[Pick, ...]
    objective: Objective
    choices: int
    exact: bool
    tiers: tuple[Tier, ...]
    pool: GpuRoutes


def available(topology: Topology, exclude: Iterable[str], busy: bool) -> tuple[Device, ...]:
    """The GPUs that may be picked.

    ``exclude`` has ids (GPU3), indices (3), UUIDs or bus ids; ``busy`` leaves out GPUs with compute
    processes or utilisation. Raises ProbeError for an unknown GPU, or if no source states which
    GPUs are busy.
    """
    out: set[str] = set()
    for word in exclude:
        usable = [
            gpu.id
            for gpu in topology.gpus
            if word in (gpu.id, str(gpu.index))
            or word.lower() in ((gpu.uuid or "").lower(), gpu.busid)
        ]
        if not usable:
            known = ", ".join(gpu.id for gpu in topology.gpus) or "none"
            raise ProbeError("pick", f"no GPU {word!r} to exclude; GPUs here: {known}")
        out.update(usable)
    if busy:
        reporting = [gpu for gpu in topology.gpus if _use(gpu) is not None]
        if not reporting:
            reason = "no source says which GPUs are busy; --busy needs NVML or nvidia-smi -q -x"
            raise ProbeError("pick", reason)
        out.update(gpu.id for gpu in reporting if _use(gpu))
    return tuple(gpu for gpu in topology.gpus if gpu.id not in out)


def pick(
    topology: Topology,
    k: int,
    objective: Objective = Objective.RING,
    among: Collection[Device] | None = None,
    most: int = 5,
) -> Ranking:
    """Rank sets of k GPUs out of ``among`` (all GPUs by default); at most ``most`` are returned.

    Raises Unsupported if there are fewer than k, k is not positive or odd for pairs, and ProbeError
    if the map has no GPU or no k of them are connected.
    """
    pool = tuple(topology.gpus if among is None else among)
    if not topology.gpus:
        raise ProbeError("pick", "this map has no GPU to pick; --from FILE reads a map")
    topology.of_one_host("pick")
    if not 1 <= k <= len(pool):
        raise Unsupported(f"pick: {k} GPUs wanted, {len(pool)} to choose from; -k takes 1 to that")
    if objective is Objective.PAIRS and k % 2:
        raise Unsupported(f"pick: pairs want an even number of GPUs, not {k}")
    routes = GpuRoutes(topology, [gpu.id for gpu in pool])
    links = DirectedLinks(routes)
    sets = candidates(routes, k, objective)
    rated = _rated(routes, links, sets, objective, k)
    if not rated:
        raise ProbeError("pick", f"nothing connects any {k} of these GPUs; add a source that does")
    rated.sort(key=lambda row: (-row.busbw, row.tie, row.candidate.members))
    pick_of = cache(partial(_pick, routes, links, objective=objective))
    picks = [pick_of(row) for row in rated[:most]]
    return Ranking(
        tuple(picks),
        objective,
        len(rated),
        len(pool) <= EXACT_LIMIT,
        _tiers(routes, rated, pick_of),
        routes,
    )


def _tiers(
    routes: GpuRoutes, rated: list[_Rated], pick_of: Callable[[_Rated], Pick]
) -> tuple[Tier, ...]:
    """Group sorted candidates of equal rate and weight into tiers; at most `MAX_TIERS` of them."""
    tiers = []
    for _, rows in groupby(rated, key=lambda row: (row.busbw, row.candidate.weight)):
        tier = list(rows)
        sets = tuple(tuple(routes.ids[at] for at in row.candidate.members) for row in tier)
        tiers.append(Tier(pick_of(tier[0]), sets))
        if len(tiers) == MAX_TIERS:
            break
    return tuple(tiers)


_Tie = tuple[tuple[int, ...], int, int, float, int]
_Rings = tuple[tuple[int, ...], ...]
_NONE: _Rings = ()


class _Rated(NamedTuple):
    """A candidate with its ranking criteria, and its rings side by side as positions."""

    busbw: float
    tie: _Tie
    candidate: Candidate
    rings: _Rings


def _use(gpu: Device) -> bool | None:
    values = [gpu.number(name) for name in ("processes", "utilization_percent")]
    known = [number for number in values if number is not None]
    return any(number > 0 for number in known) if known else None


def _rated(
    routes: GpuRoutes, links: DirectedLinks, sets: list[Candidate], objective: Objective, k: int
) -> list[_Rated]:
    home = _Homes(routes)
    if k == 1:
        return [_Rated(0.0, home.tie(candidate), candidate, ()) for candidate in sets]
    single = links.rates([FLOWS[objective](candidate.order) for candidate in sets])
    share = k - 1 if objective is Objective.ALL_TO_ALL else 1
    # Equal sets have equal links, so most searches are answered from the cache.
    search = cache(partial(disjoint_rings, thorough=len(sets) <= MANY))
    rated = []
    for rate, candidate in zip(single.tolist(), sets, strict=True):
        if rate > 0:
            packed, rings = 0.0, _NONE
            if objective is Objective.RING and 3 <= k <= EXACT_LIMIT:
                packed, rings = _packed(routes, candidate.members, search)
            busbw = max(rate * share, packed)
            rated.append(_Rated(busbw, home.tie(candidate), candidate, rings))
    return rated


def _packed(
    routes: GpuRoutes, members: tuple[int, ...], search: Callable[[Counts], _Rings]
) -> tuple[float, _Rings]:
    """Bytes per second and positions of rings over NVLinks that share no link."""
    counts = tuple(
        tuple(routes.direct_nvlinks(i, j) if i != j else 0 for j in members) for i in members
    )
    if not most_rings(counts):
        return 0.0, ()
    rate = min(
        routes.between(i, j).bandwidth / n
        for row, i in zip(counts, members, strict=True)
        for n, j in zip(row, members, strict=True)
        if n
    )
    rings = tuple(tuple(members[at] for at in ring) for ring in search(counts))
    return 2 * len(rings) * rate, rings


class _Homes:
    """Criteria for ties: the GPUs' NUMA nodes, models, findings, and distance to a NIC."""

    def __init__(self, routes: GpuRoutes) -> None:
        topology = routes.topology
        tree = topology.graph.topology
        self.numa = [getattr(tree.ancestor(id, Kind.NUMA), "id", None) for id in routes.ids]
        gpus = [topology.device(id) for id in routes.ids]
        self.model = [gpu.get("model") or gpu.name or None for gpu in gpus]
        self.harm = dict.fromkeys(routes.ids, 0.0)
        for finding in check(topology):
            for id in set(finding.subjects) & set(routes.ids):
                self.harm[id] += finding.harm
        self.ids = routes.ids
        self._topology = topology
        self._levels: dict[int, int] = {}

    def nic(self, at: int) -> int:
        """How near the nearest NIC of the GPU at position ``at`` is, as the number of a `Level`.

        0 if no source states one.
        """
        if at not in self._levels:
            nics = (self._topology.relation(self.ids[at], nic.id) for nic in self._topology.nics)
            levels = (int(relation.level) for relation in nics if relation.level is not None)
            self._levels[at] = min(levels, default=0)
        return self._levels[at]

    def tie(self, candidate: Candidate) -> _Tie:
        """Numbers by which equally fast sets of GPUs are compared; less is better.

        They are the routes by class (`Candidate.weight`), NUMA nodes, models of GPU, harm that
        findings state, and the sum of `nic`.
        """
        members = candidate.order
        return (
            candidate.weight,
            len({self.numa[at] for at in members}),
            len({self.model[at] for at in members}),
            round(sum(self.harm[self.ids[at]] for at in members), 9),
            sum(map(self.nic, members)),
        )


def _pick(routes: GpuRoutes, links: DirectedLinks, rated: _Rated, objective: Objective) -> Pick:
    busbw, _, candidate, rings = rated
    pattern, members = candidate.order, candidate.members
    order = pattern if objective is Objective.RING else best_order(routes, members, Objective.RING)
    flows = FLOWS[objective](pattern) if len(members) > 1 else []
    bottleneck = links.bottleneck(flows)
    name = routes.ids.__getitem__
    pairs = zip(pattern[::2], pattern[1::2], strict=False)
    return Pick(
        tuple(map(name, members)),
        tuple(map(name, order)),
        tuple((name(a), name(b)) for a, b in pairs) if objective is Objective.PAIRS else (),
        0.0 if isinf(busbw) else busbw,
        bottleneck.rate if bottleneck else 0.0,
        bottleneck,
        tuple(tuple(map(name, ring)) for ring in rings),
        tuple((name(a), name(b), routes.between(a, b)) for a, b in flows),
        best_grid(routes, links, order) if len(order) >= 4 else None,
        groups(routes, order),
    )
