"""Measurements between ranks: matrices of pairs, and sweeps over message sizes. Pure.

Pairs are measured in rounds by the circle method of round-robin tournaments: all ranks but the last
are on a circle that rotates by one each round. So every pair occurs once, and no rank is twice in a
round.

Cost models are fitted to sweeps. For each pair (a, b) with a < b, quantity and size, a map keeps
the medians of several blocks. Each block goes through all sizes, so a drift of the machine appears
as scatter: ``PairFact(a, b, Fact("swap_4096", (seconds, …), …))``.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

from busbar.cpulist import members
from busbar.errors import ProbeError
from busbar.statistics import interval
from topology.model.topology import Fact, Kind, PairFact, Topology

Pair = tuple[int, int]
#: Smaller relative differences do not matter, however narrow the intervals are.
MARGIN = 0.05
#: The measured quantities, by the names of their pair facts, and whether more is better.
QUANTITIES: dict[str, bool] = {"latency": False, "bandwidth": True, "bandwidth_both": True}


def rounds(size: int) -> tuple[tuple[Pair, ...], ...]:
    """The rounds, with pairs as (lower, higher): size - 1 rounds if size is even, size if odd."""
    if size < 2:
        return ()
    seats = list(range(size)) + [-1] * (size % 2)
    pairings = []
    for _ in range(len(seats) - 1):
        half = len(seats) // 2
        met = zip(seats[:half], reversed(seats[half:]), strict=True)
        pairings.append(tuple(sorted((min(p), max(p)) for p in met if -1 not in p)))
        seats = [seats[0], seats[-1], *seats[1:-1]]
    return tuple(pairings)


def isolated(schedule: Sequence[Sequence[Pair]]) -> tuple[tuple[Pair, ...], ...]:
    """The same pairs, one at a time."""
    return tuple((pair,) for together in schedule for pair in together)


@dataclass(frozen=True)
class RankPlace:
    """Where a rank runs: host name, list of permitted CPUs, and the NUMA node if it is only one.

    ``kernel``: identifies the system to which these CPUs belong, if hosts with different names are
    one system (emulated hosts, containers); empty: the host.
    """

    host: str
    cpus: str
    numa: int | None
    kernel: str = ""

    @property
    def system(self) -> str:
        """An identifier that is equal for ranks that share a system's CPUs."""
        return self.kernel or self.host


def with_cpus(
    schedule: Sequence[Sequence[Pair]], places: Sequence[RankPlace]
) -> tuple[tuple[Pair, ...], ...]:
    """The same pairs in more rounds, so that each rank of a round can have its own CPU.

    Pairs that share a CPU would each appear as slow as both together. A pair whose two ranks have
    only one CPU is alone in a round. A set of CPUs has room for as many ranks as it has CPUs, which
    is exact if ranks' sets are equal, disjoint or nested, as launchers make them. Ranks with
    unknown CPUs count as using none.
    """
    sets = [(place.system, frozenset(members(place.cpus) or ())) for place in places]
    if _room(sets):
        return tuple(map(tuple, schedule))
    parts: list[tuple[Pair, ...]] = []
    for together in schedule:
        turns: list[list[Pair]] = []
        for pair in together:
            free = (t for t in turns if _room([sets[rank] for p in (*t, pair) for rank in p]))
            turn = next(free, None)
            if turn is None:
                turns.append([pair])
            else:
                turn.append(pair)
        parts += map(tuple, turns)
    return tuple(parts)


def _room(sets: Sequence[tuple[str, frozenset[int]]]) -> bool:
    """True if every rank can have a CPU: no set of CPUs belongs to more ranks than it has CPUs."""
    ranks: dict[str, Counter[frozenset[int]]] = {}
    for host, cpus in sets:
        if cpus:
            ranks.setdefault(host, Counter())[cpus] += 1
    return all(
        sum(n for some, n in here.items() if some <= cpus) <= len(cpus)
        for here in ranks.values()
        for cpus in here
    )


@dataclass(frozen=True)
class Estimate:
    """A median with its interval, all in one unit."""

    value: float
    low: float
    high: float


def estimate(samples: Sequence[float]) -> Estimate:
    """The median and its 95 % interval by order statistics (Le Boudec 2010).

    For five or fewer samples the interval is from the least to the greatest. Raises ValueError
    without samples.
    """
    if not samples:
        raise ValueError("no samples to take a median of")
    low, high = interval(samples) or (min(samples), max(samples))
    return Estimate(median(samples), low, high)


Matrix = Mapping[tuple[str, str], Estimate]


def matrix(topology: Topology, name: str) -> dict[tuple[str, str], Estimate]:
    """The estimates of one quantity in a map, by directed pair of device ids.

    Without a saved interval (other programs' logs), the value is its own interval.
    """
    cells: dict[tuple[str, str], Estimate] = {}
    for fact in topology.pairs:
        if fact.fact.name == name and (fact.a, fact.b) not in cells:
            value = topology.pair(fact.a, fact.b, name)
            if isinstance(value, int | float):
                low, high = (
                    bound
                    if isinstance(bound := topology.pair(fact.a, fact.b, key), float)
                    else value
                    for key in (f"{name}_low", f"{name}_high")
                )
                cells[fact.a, fact.b] = Estimate(float(value), float(low), float(high))
    return cells


def ends(topology: Topology, cells: Matrix) -> tuple[str, ...]:
    """The ids of the devices in a matrix, in the map's order."""
    inside = {id for pair in cells for id in pair}
    return tuple(device.id for device in topology.devices if device.id in inside)


def kind_of_pair(topology: Topology, a: str, b: str) -> str:
    """The class of a pair: of GPUs and NICs as nvidia-smi prints it, of ranks what they share."""
    if Kind.RANK not in (topology.device(id).kind for id in (a, b)):
        return topology.relation(a, b).text
    for kind, word in _SHARED:
        homes = [topology.ancestor(id, kind) for id in (a, b)]
        if homes[0] is not None and homes[0] == homes[1]:
            return word
    names = {home.name if home else "" for home in homes}
    return "same rack" if any(names <= {*rack} for rack in topology.racks) else "network"


_SHARED = ((Kind.NUMA, "same NUMA node"), (Kind.PACKAGE, "same socket"), (Kind.HOST, "same host"))


@dataclass(frozen=True)
class Slow:
    """A pair that is worse than its class beyond noise; ``typical``: the class's median."""

    a: str
    b: str
    kind: str
    estimate: Estimate
    typical: float


def slow(topology: Topology, cells: Matrix, more_is_better: bool) -> tuple[Slow, ...]:
    """The pairs whose whole interval is worse than the typical interval of the others.

    That is: the best value in the pair's interval is worse than the typical worst value of the
    other pairs of its class, and its median is worse than theirs by more than MARGIN. A pair that
    is alone in its class cannot be compared.
    """
    classes = by_class(topology, cells)
    sign = 1 if more_is_better else -1
    slow_pairs = []
    for name, pairs in classes.items():
        for pair in pairs:
            others = [cells[other] for other in pairs if set(other) != set(pair)]
            if not others:
                continue
            typical = median(cell.value for cell in others)
            edge = median(cell.low if more_is_better else cell.high for cell in others)
            cell = cells[pair]
            best = cell.high if more_is_better else cell.low
            short = sign * (typical - cell.value) > MARGIN * typical
            if short and sign * (edge - best) > 0:
                slow_pairs.append(Slow(*pair, name, cell, typical))
    return tuple(sorted(slow_pairs, key=lambda s: sign * s.estimate.value / s.typical))


def by_class(topology: Topology, cells: Matrix) -> dict[str, list[tuple[str, str]]]:
    """Group directed pairs by the class of the pair."""
    classes: dict[str, list[tuple[str, str]]] = {}
    for a, b in cells:
        classes.setdefault(kind_of_pair(topology, a, b), []).append((a, b))
    return classes


def expected(topology: Topology, a: str, b: str) -> float | None:
    """The bytes per second expected for one flow from a to b, by link rates; None if unknown.

    Unknown are the rate of memory within a NUMA node, and pairs without a route, for example
    between hosts.
    """
    try:
        hops = topology.route(a, b)
    except ProbeError:
        return None
    return min((hop.bandwidth for hop in hops if hop.kind != "memory"), default=None)


#: The timed quantities, in seconds. ``first`` is stored for the machine, not for a pair.
SWEPT: dict[str, str] = {
    "trip": "one way alone: half a round trip",
    "swap": "both ways at once, the next only when both have arrived, which is what it sends on",
    "add": "as swap, and what has arrived is added (float32)",
    "burst": "as swap, but several messages each way",
    "still": "both ways at once, of data that nobody has written since it was last sent",
    "sum": "as still, and what has arrived is added to such data, into another place (float32)",
    "first": "one swap of the smallest size behind a barrier, the slowest rank's time",
}
#: Messages in each direction of a burst.
BURST = 4
SMALLEST = 8
#: Number of consecutive round trips, or swaps, in one iteration: they share the cost of the barrier
#: before it, which ranks leave one after the other.
TRIPS = 8
# Seconds that an iteration of several exchanges, and a size, may take in a block.
_ITERATION_S, _SIZE_S = 0.01, 0.1
#: Passes through all sizes; the median of each pass is kept.
BLOCKS = 5
#: The largest message of a burst, since four messages each way are in flight at once.
LARGEST_BURST = 1 << 22
_NAME = re.compile(r"(trip|swap|add|burst|still|sum)_([1-9][0-9]{0,11})")


def sizes(quantity: str, most: int) -> tuple[int, ...]:
    """The sizes at which a quantity is timed: 8, 16, 32 … up to ``most`` bytes."""
    if quantity == "first":
        return (SMALLEST,)
    last = min(most, LARGEST_BURST) if quantity == "burst" else most
    return tuple(SMALLEST << i for i in range((last // SMALLEST).bit_length()))


def pace(nbytes: int, seconds: float = 0.0) -> tuple[int, int]:
    """Exchanges in an iteration, and iterations in a block: up to `TRIPS`, and 5 to 40 by size.

    ``seconds``: what an exchange is expected to take. Over slow links there are fewer, so that a
    size takes about a tenth of a second of a block, but at least three iterations.
    """
    count = max(5, min(40, (8 << 20) // nbytes))
    if not seconds:
        return TRIPS, count
    trips = max(1, int(min(TRIPS, _ITERATION_S / seconds)))
    return trips, max(3, int(min(count, _SIZE_S / (trips * seconds))))


class Swept(NamedTuple):
    """One quantity of a pair at one size; ``seconds``: the median of each block."""

    a: str
    b: str
    quantity: str
    nbytes: int
    seconds: tuple[float, ...]


Samples = Mapping[tuple[Pair, str, int], Sequence[float]]


def facts(samples: Samples, source: str) -> tuple[tuple[PairFact, ...], tuple[Fact, ...]]:
    """A sweep's samples, by ((a, b), quantity, bytes), as facts of pairs and of the machine."""
    pairs, machine = [], list[float]()
    for ((a, b), quantity, nbytes), seconds in sorted(samples.items()):
        if quantity == "first":
            machine += seconds
        else:
            fact = Fact(f"{quantity}_{nbytes}", tuple(map(float, seconds)), source)
            pairs.append(PairFact(f"RANK{a}", f"RANK{b}", fact))
    return tuple(pairs), (Fact("first", tuple(machine), source),) if machine else ()


def swept(topology: Topology) -> list[Swept]:
    """The sweep in a map; empty if there is none."""
    sizes = []
    for pair in topology.pairs:
        match = _NAME.fullmatch(pair.fact.name)
        times = _times(pair.fact.value)
        if match and times:
            sizes.append(Swept(pair.a, pair.b, match[1], int(match[2]), times))
    return sizes


def first(topology: Topology) -> tuple[float, ...]:
    """The times of a first swap (see `SWEPT`) in a map; empty if there are none."""
    return _times(topology.get("first"))


def _times(value: object) -> tuple[float, ...]:
    """The numbers of a fact if it is a list of positive, finite numbers; else empty."""
    if not isinstance(value, Iterable) or isinstance(value, str):
        return ()
    times = tuple(value)
    good = all(isinstance(t, int | float) and 0 < t < float("inf") for t in times)
    return tuple(map(float, times)) if good else ()
