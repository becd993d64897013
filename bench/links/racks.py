"""Which hosts share an uplink, from the bandwidth of pairs while all hosts communicate.

A single pair across racks is as fast as one inside a rack, since an uplink carries several links.
When all hosts communicate in pairs, both ways, an uplink that is narrower than its hosts' links
slows the pairs that cross it, and only those. Which rounds show that depends on the other pairs, so
pairs meet in several orders.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from statistics import median

import numpy as np

from bench.links.measuring import PairRun
from topology.measured.matrix import Pair, RankPlace, rounds

_ORDERS = 12
_SEED = 1
#: A message of this measurement.
BYTES = 1 << 19
_REPETITIONS = 3
#: A pair within a rack keeps at least this share of its links' rate; a pair across an uplink does
#: not.
_KEPT = 0.85
# The share of a rack's pairs that must be quick.
_WHOLE = 0.8
_FEWEST = 4


def first_ranks(places: Sequence[RankPlace]) -> list[int]:
    """The first rank of every host."""
    return list({place.host: rank for rank, place in reversed(list(enumerate(places)))}.values())[
        ::-1
    ]


def orders(ranks: Sequence[int]) -> list[list[Pair]]:
    """Rounds in which these ranks meet in pairs, pairs several times, each time beside others."""
    chance = random.Random(_SEED)
    found = []
    for _ in range(_ORDERS):
        seats = chance.sample(list(ranks), len(ranks))
        found += [[(seats[a], seats[b]) for a, b in together] for together in rounds(len(seats))]
    return found


def second_least(values: Sequence[float]) -> float:
    """The second least value: one busy moment must not decide, nor one round without load."""
    return sorted(values)[min(1, len(values) - 1)]


def measure(run: PairRun) -> dict[Pair, float]:
    """Bytes/s of pairs of hosts while all hosts talk, both ways summed; collective.

    Pairs are of the hosts' first ranks, both ways round.
    """
    world, schedule = run.world, orders(first_ranks(run.places))
    table = np.zeros((len(schedule), world.size))
    for number, together in enumerate(schedule):
        world.barrier()
        times = run.over.times("bandwidth_both", together, BYTES, _REPETITIONS)
        if times:
            table[number, world.rank] = 2 * BYTES / median(times)
    whole = world.combine(table.ravel(), "max").reshape(table.shape)
    seen: dict[Pair, list[float]] = {}
    for number, together in enumerate(schedule):
        for a, b in together:
            seen.setdefault((min(a, b), max(a, b)), []).append(float(whole[number, a]))
    least = {pair: second_least(values) for pair, values in seen.items()}
    return least | {(b, a): value for (a, b), value in least.items()}


def grouped(loaded: Mapping[Pair, float]) -> list[list[int]]:
    """Ranks in racks, each with those that it keeps its rate with while all talk.

    A rank's own rate is the best that it has with anybody, so that a slow link does not look like
    a rack. Empty where no two racks stand apart: one switch, uplinks as wide as their hosts' links,
    or fewer than four hosts.
    """
    ranks = sorted({end for pair in loaded for end in pair})
    if len(ranks) < _FEWEST:
        return []
    best = {rank: max(loaded[rank, other] for other in ranks if other != rank) for rank in ranks}
    near = {
        pair: value >= _KEPT * min(best[pair[0]], best[pair[1]]) for pair, value in loaded.items()
    }
    racks: list[list[int]] = []
    for rank in ranks:
        home = next(
            (rack for rack in racks if sum(near[rank, one] for one in rack) > len(rack) / 2), None
        )
        if home is None:
            racks.append([rank])
        else:
            home.append(rank)
    inside = [near[a, b] for rack in racks for a in rack for b in rack if a != b]
    across = [
        near[a, b] for one in racks for two in racks if one is not two for a in one for b in two
    ]
    told = inside and across and np.mean(inside) >= _WHOLE and np.mean(across) <= 1 - _WHOLE
    return racks if told else []
