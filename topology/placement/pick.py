"""The best k GPUs for a job: ranked sets, each with its ring, bottleneck and expected bandwidth.

Up to 16 GPUs to choose from, every set of k is looked at and its order is exact: Held and Karp's
dynamic programme over subsets for rings, enumeration of subsets for pairings, of pairs for
all-to-all. Above, a beam search (``topology.placement.bounded``). Sets rank by the bandwidth that
link rates promise, with links shared as the pattern shares them; equal ones by the classes of
routes they use (fewest of the worst), by the NUMA nodes they span, GPU models they mix, what
``check`` has found about their GPUs, distance to a NIC, and index.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from functools import cache, partial
from itertools import groupby
from math import isinf
from typing import NamedTuple

from busbar.errors import ProbeError
from topology.diagnostics.findings import check
from topology.model.topology import Device, Kind, Topology
from topology.placement.grid import Grid, best_grid, groups
from topology.placement.load import Bottleneck, DirectedLinks
from topology.placement.orders import EXACT_LIMIT
from topology.placement.packing import Counts, disjoint_rings, most_rings
from topology.placement.routes import GpuRoute, GpuRoutes
from topology.placement.search import FLOWS, Candidate, Objective, best_order, candidates

__all__ = ["Grid", "Objective", "Pick", "Ranking", "Tier", "available", "pick"]

MAX_TIERS = 10
#: Above so many sets the rings side by side are searched for greedily only.
MANY = 1000


@dataclass(frozen=True)
class Pick:
    """One set of GPUs. Rates are bytes per second.

    ``gpus`` ascending, ``order`` the ring (also for other objectives, for their rank order),
    ``pairs`` only for that objective. ``busbw`` is what all rings of ``rings`` together, or one
    ring where that is more, promise an all-reduce; for pairs, the rate of a pair; for all-to-all,
    bus bandwidth. ``bottleneck`` is that of one ring (or of the pattern), ``single`` its rate; None
    and 0 for one GPU. ``routes`` are the hops of the pattern; ``tie`` is what ranked it besides
    ``busbw``.
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
    tie: tuple[tuple[int, ...], int, int, float, int]

    @property
    def assumed(self) -> bool:
        """Whether a default stands in for the link that decides."""
        return self.bottleneck is not None and self.bottleneck.hop.assumed


@dataclass(frozen=True)
class Tier:
    """All sets of the same bandwidth and the same classes of routes; ``best`` stands for them."""

    best: Pick
    sets: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Ranking:
    """The picks, best first; ``choices``: how many sets were rated; ``exact``: all there are.

    ``tiers`` partition the sets, best first.
    """

    picks: tuple[Pick, ...]
    objective: Objective
    choices: int
    exact: bool
    tiers: tuple[Tier, ...]
    pool: GpuRoutes


def available(topology: Topology, exclude: Iterable[str], busy: bool) -> tuple[Device, ...]:
    """Return the GPUs that may be picked.

    ``exclude`` has ids (GPU3), indices (3), UUIDs or bus ids; ``busy`` leaves out GPUs with compute
    processes or utilisation. ProbeError for an unknown one, or when no source says who is busy.
    """
    out: set[str] = set()
    for word in exclude:
        found = [
            gpu.id
            for gpu in topology.gpus
            if word in (gpu.id, str(gpu.index)) or word.lower() in (_low(gpu.uuid), gpu.busid)
        ]
        if not found:
            known = ", ".join(gpu.id for gpu in topology.gpus) or "none"
            raise ProbeError("pick", f"no GPU {word!r} to exclude; GPUs here: {known}")
        out.update(found)
    if busy:
        asked = [gpu for gpu in topology.gpus if _use(gpu) is not None]
        if not asked:
            reason = "no source says which GPUs are busy; --busy needs NVML or nvidia-smi -q -x"
            raise ProbeError("pick", reason)
        out.update(gpu.id for gpu in asked if _use(gpu))
    return tuple(gpu for gpu in topology.gpus if gpu.id not in out)


def pick(
    topology: Topology,
    k: int,
    objective: Objective = Objective.RING,
    among: Collection[Device] | None = None,
    most: int = 5,
) -> Ranking:
    """Rank sets of k GPUs out of ``among`` (all GPUs by default); at most ``most`` are returned.

    Raises ProbeError when there are fewer than k, k is not positive, pairs want an odd k, or
    nothing connects any k of them.
    """
    pool = tuple(topology.gpus if among is None else among)
    if not topology.gpus:
        raise ProbeError("pick", "this map has no GPU to pick")
    topology.of_one_host("pick")
    if not 1 <= k <= len(pool):
        raise ProbeError("pick", f"{k} GPUs wanted, {len(pool)} to choose from; -k takes 1 to that")
    if objective is Objective.PAIRS and k % 2:
        raise ProbeError("pick", f"pairs want an even number of GPUs, not {k}")
    routes = GpuRoutes(topology, [gpu.id for gpu in pool])
    links = DirectedLinks(routes)
    found = candidates(routes, k, objective)
    rated = _rated(routes, links, found, objective, k)
    if not rated:
        raise ProbeError("pick", f"nothing connects any {k} of these GPUs; add a source that does")
    rated.sort(key=lambda row: (-row.busbw, row.tie, row.candidate.members))
    made = cache(partial(_pick, routes, links, objective=objective))
    picks = [made(row) for row in rated[:most]]
    return Ranking(
        tuple(picks),
        objective,
        len(rated),
        len(pool) <= EXACT_LIMIT,
        _tiers(routes, rated, made),
        routes,
    )


def _tiers(
    routes: GpuRoutes, rated: list[_Rated], made: Callable[[_Rated], Pick]
) -> tuple[Tier, ...]:
    """Group what is sorted. Only the first few tiers matter, so there is an end to them."""
    found = []
    for _, rows in groupby(rated, key=lambda row: (row.busbw, row.candidate.weight)):
        tier = list(rows)
        sets = tuple(tuple(routes.ids[at] for at in row.candidate.members) for row in tier)
        found.append(Tier(made(tier[0]), sets))
        if len(found) == MAX_TIERS:
            break
    return tuple(found)


_Tie = tuple[tuple[int, ...], int, int, float, int]
_Rings = tuple[tuple[int, ...], ...]
_NONE: _Rings = ()


class _Rated(NamedTuple):
    """A candidate with what ranks it, and its rings side by side as positions."""

    busbw: float
    tie: _Tie
    candidate: Candidate
    rings: _Rings


def _low(text: str | None) -> str:
    return (text or "").lower()


def _use(gpu: Device) -> bool | None:
    said = [gpu.number(name) for name in ("processes", "utilization_percent")]
    known = [number for number in said if number is not None]
    return any(number > 0 for number in known) if known else None


def _rated(
    routes: GpuRoutes, links: DirectedLinks, found: list[Candidate], objective: Objective, k: int
) -> list[_Rated]:
    home = _Homes(routes)
    if k == 1:
        return [_Rated(0.0, home.tie(candidate), candidate, ()) for candidate in found]
    single = links.rates([FLOWS[objective](candidate.order) for candidate in found])
    share = k - 1 if objective is Objective.ALL_TO_ALL else 1
    # Like sets have like wires: most of many searches are answered by an earlier one.
    search = cache(partial(disjoint_rings, thorough=len(found) <= MANY))
    rated = []
    for rate, candidate in zip(single.tolist(), found, strict=True):
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
    """Bytes per second, and the positions, of rings over NVLinks that share no link."""
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
    """Tie-breakers: the GPUs' NUMA nodes, models, findings and distance to a NIC."""

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
        """The level of the nearest NIC; 0 where no source says."""
        if at not in self._levels:
            nics = (self._topology.relation(self.ids[at], nic.id) for nic in self._topology.nics)
            levels = (int(found.level) for found in nics if found.level is not None)
            self._levels[at] = min(levels, default=0)
        return self._levels[at]

    def tie(self, candidate: Candidate) -> _Tie:
        """Classes of routes, NUMA nodes spanned, models mixed, harm found, levels to the NICs."""
        members = candidate.order
        return (
            candidate.weight,
            len({self.numa[at] for at in members}),
            len({self.model[at] for at in members}),
            round(sum(self.harm[self.ids[at]] for at in members), 9),
            sum(map(self.nic, members)),
        )


def _pick(routes: GpuRoutes, links: DirectedLinks, rated: _Rated, objective: Objective) -> Pick:
    busbw, tie, candidate, rings = rated
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
        tie,
    )
