"""Times of messages of many sizes between pairs: the quantities, and their form in a map.

Cost models are fitted on these. Pure. For each pair (a, b) with a < b, quantity and size, a map
keeps the medians of several blocks. Each block goes through all sizes, so a drift of the machine
appears as scatter: ``PairFact(a, b, Fact("swap_4096", (seconds, …), …))``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from topology.measured.matrix import Pair
from topology.model.topology import Fact, PairFact, Topology

#: What is timed, in seconds. ``first`` is kept for the machine, not for a pair.
SWEPT: dict[str, str] = {
    "trip": "one way alone: half a round trip",
    "swap": "both ways at once, the next only when both have arrived, which is what it sends on",
    "add": "as swap, and what has arrived is added (float32)",
    "burst": "as swap, but several messages each way",
    "still": "both ways at once, of data that nobody has written since it was last sent",
    "sum": "as still, and what has arrived is added to such data, into another place (float32)",
    "first": "one swap of the smallest size behind a barrier, the slowest rank's time",
}
#: Messages each way of a burst.
BURST = 4
SMALLEST = 8
#: Round trips, and swaps that follow one another, of one iteration over a transport of schedules:
#: ranks leave the barrier before it one after the other, and share that.
TRIPS = 8
#: Times through all sizes; the medians of each are kept.
BLOCKS = 5
#: The largest message of a burst: four of them each way are under way at once.
LARGEST_BURST = 1 << 22
_NAME = re.compile(r"(trip|swap|add|burst|still|sum)_([1-9][0-9]{0,11})")


def sizes(quantity: str, most: int) -> tuple[int, ...]:
    """The sizes at which a quantity is timed: 8, 16, 32 … up to ``most`` bytes."""
    if quantity == "first":
        return (SMALLEST,)
    last = min(most, LARGEST_BURST) if quantity == "burst" else most
    return tuple(SMALLEST << i for i in range((last // SMALLEST).bit_length()))


def repetitions(nbytes: int) -> int:
    """How often a size is timed in a block: 40 times when small, 5 times when large."""
    return max(5, min(40, (8 << 20) // nbytes))


class Swept(NamedTuple):
    """One quantity of a pair at one size; ``seconds``: the median of each block."""

    a: str
    b: str
    quantity: str
    nbytes: int
    seconds: tuple[float, ...]


Samples = Mapping[tuple[Pair, str, int], Sequence[float]]


def facts(samples: Samples, source: str) -> tuple[tuple[PairFact, ...], tuple[Fact, ...]]:
    """What was swept, by ((a, b), quantity, bytes), as facts of pairs and of the machine."""
    pairs, machine = [], list[float]()
    for ((a, b), quantity, nbytes), seconds in sorted(samples.items()):
        if quantity == "first":
            machine += seconds
        else:
            fact = Fact(f"{quantity}_{nbytes}", tuple(map(float, seconds)), source)
            pairs.append(PairFact(f"RANK{a}", f"RANK{b}", fact))
    return tuple(pairs), (Fact("first", tuple(machine), source),) if machine else ()


def swept(topology: Topology) -> list[Swept]:
    """The sweep that a map holds, empty where it holds none."""
    found = []
    for pair in topology.pairs:
        match = _NAME.fullmatch(pair.fact.name)
        times = _times(pair.fact.value)
        if match and times:
            found.append(Swept(pair.a, pair.b, match[1], int(match[2]), times))
    return found


def first(topology: Topology) -> tuple[float, ...]:
    """The times of `SWEPT`'s ``first``, empty where a map holds none."""
    return _times(topology.get("first"))


def _times(value: object) -> tuple[float, ...]:
    """The positive, finite numbers of a fact that is a list of them; else nothing."""
    if not isinstance(value, Iterable) or isinstance(value, str):
        return ()
    found = tuple(value)
    good = all(isinstance(t, int | float) and 0 < t < float("inf") for t in found)
    return tuple(map(float, found)) if good else ()
