"""Signatures of pairs of GPUs: pairs with one signature have equal routes.

A machine of thousands of GPUs has millions of pairs but few kinds of them, so one pair of each kind
is examined. A signature has everything that `topology.model.topology` and `topology.model.graph`
use: the hops up from each end, where the two paths up meet, NVLinks, and the statements about the
pair.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from topology.model.busid import slot
from topology.model.device import Kind, LinkKind
from topology.model.graph import Hop
from topology.model.map import Map
from topology.model.topology import Topology

Codes = npt.NDArray[np.int64]
_STATED = ("level", "nvlinks", "p2p_read")
_CPU = ("arch", "vendor", "family", "cpu_model")


def codes(
    topology: Topology, ids: Sequence[str], measured: Mapping[tuple[int, int], float] | None = None
) -> Codes:
    """A number for each pair, shape (n, n), valid above the diagonal: alike pairs share it.

    ``measured``: what was measured of pairs of positions.
    """
    graph = topology.graph
    climbs = [graph.climb(id) for id in ids]
    above = [[device.id for device in topology.ancestors(id)][::-1] for id in ids]
    ends, inferred = _links(topology, ids), _links(graph.topology, ids)
    cards = [slot(str((d := topology.device(id)).busid or d.get("card") or id)) for id in ids]
    places = _numbers(
        (
            tuple(map(_hop, climb)), tuple(_kinds(graph.topology, climb)),
            tuple(topology.device(one).kind for one in up), nvlinks, more, bool(card),
        )
        for climb, up, nvlinks, more, card in zip(climbs, above, ends, inferred, cards, strict=True)
    )  # fmt: skip
    found = places[:, None] * len(ids) + places[None, :]
    for tops in ([[h.b for h in climb][::-1] for climb in climbs], above, [[c] for c in cards]):
        depth = max(map(len, tops), default=0)
        found = found * (depth + 1) + _met(tops, depth)
    kinds = np.unique(found, return_inverse=True)[1].reshape(found.shape)
    both: Codes = kinds * (len(ids) ** 2 + 1) + _of_pairs(topology, ids, measured or {})
    return both


def _hop(hop: Hop) -> Hashable:
    return hop.kind, hop.bandwidth, hop.count, hop.assumed


def _kinds(topology: Map, climb: Sequence[Hop]) -> Iterable[Hashable]:
    """What the devices above are; of NUMA nodes also the CPU, which decides about the way."""
    for hop in climb:
        device = topology.device(hop.b)
        numa = device.kind is Kind.NUMA
        yield device.kind, tuple(device.get(name) for name in _CPU) if numa else ()


def _links(topology: Map, ids: Sequence[str]) -> list[Hashable]:
    """GPUs' links to what is no GPU, what decides about their rate, and who has NVLinks."""
    found: dict[str, set[Hashable]] = {id: set() for id in ids}
    linked: set[str] = set()
    for link in topology.links:
        for end, other in ((link.a, link.b), (link.b, link.a)):
            if end in found and link.kind is LinkKind.NVLINK:
                linked.add(end)
            if end in found and topology.device(other).kind is not Kind.GPU:
                found[end].add((other, link.kind, link.count, link.version, link.rate))
    names = ("sm", "nvlink_version", "gcn")
    about = [tuple(topology.device(id).get(name) for name in names) for id in ids]
    return [
        (facts, frozenset(found[id]), id in linked) for id, facts in zip(ids, about, strict=True)
    ]


def _met(tops: Sequence[Sequence[str]], depth: int) -> Codes:
    """How many names two lists have in common from their beginning, shape (n, n)."""
    number = {name: n for n, name in enumerate({name for names in tops for name in names})}
    same = np.ones((len(tops), len(tops)), np.bool_)
    found = np.zeros(same.shape, np.int64)
    for level in range(depth):
        # A device without a name at a level shares it with no other.
        here = [
            number[names[level]] if level < len(names) else -1 - n for n, names in enumerate(tops)
        ]
        same &= np.equal.outer(np.array(here), np.array(here))
        found += same
    return found


def _of_pairs(
    topology: Topology, ids: Sequence[str], measured: Mapping[tuple[int, int], float]
) -> Codes:
    """A number for what was stated of a pair, and for direct links; 0 where there is neither."""
    at = {id: n for n, id in enumerate(ids)}
    said: dict[tuple[int, int], list[Hashable]] = {at: [rate] for at, rate in measured.items()}
    for pair in topology.pairs:
        if pair.a in at and pair.b in at and pair.fact.name in _STATED:
            i, j = at[pair.a], at[pair.b]
            key = (min(i, j), max(i, j))
            said.setdefault(key, []).append((i < j, pair.fact.name, pair.fact.value))
    for origin, links in enumerate((topology.links, topology.graph.topology.links)):
        for link in links:
            if link.a in at and link.b in at:
                i, j = sorted((at[link.a], at[link.b]))
                said.setdefault((i, j), []).append(
                    (origin, link.kind, link.count, link.version, link.rate)
                )
    found = np.zeros((len(ids), len(ids)), np.int64)
    if said:
        where = np.array(list(said))
        found[where[:, 0], where[:, 1]] = 1 + _numbers(map(tuple, said.values()))
    return found


def _numbers(things: Iterable[Hashable]) -> Codes:
    """A number for each thing; equal ones share it."""
    known: dict[Hashable, int] = {}
    return np.array([known.setdefault(thing, len(known)) for thing in things], np.int64)
