"""Measurements between ranks in host memory: latency and bandwidth, by size, racks; as a map.

Pairs of ranks exchange by plans on our own transports (`PairTimer`). Every quantity has a value per
repetition, for medians and intervals. Latency is half a round trip of 8 bytes. Bandwidth is one
way; bandwidth_both is both ways at once, as the sum of both directions.
"""

from __future__ import annotations

import argparse
import math
import random
import signal
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from signal import Signals
from statistics import fmean, median
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bench.links.exchange import TOKEN_BYTES, exchange, pattern
from busbar.arguments import time_in, whole
from busbar.cpulist import listed
from busbar.errors import ProbeError, Unsupported
from busbar.host import boot, cores, numa_nodes
from busbar.launchers import check_library
from busbar.mpi import LEVELS, OPTION, library_version, load_mpi
from busbar.options import OptionGroup, option, switch
from busbar.status import BY_SIGNAL, TOTAL_OVER
from busbar.units import format_count, parse_size
from collectives.execution.mpi.world import MpiWorld
from collectives.execution.plan import Plan
from collectives.execution.registry import transports
from collectives.execution.transport import Start, Transport
from collectives.execution.world import World
from collectives.schedule.layout import Layout
from collectives.schedule.moves import Buffer
from collectives.schedule.ops import op
from topology.model.measured import (
    BLOCKS,
    QUANTITIES,
    SWEPT,
    TRIPS,
    Estimate,
    Pair,
    RankPlace,
    Samples,
    estimate,
    isolated,
    pace,
    rounds,
    sizes,
    with_cpus,
)
from topology.model.measured import facts as sweep_facts
from topology.model.topology import Device, Fact, Kind, PairFact, Topology


def opener(name: str) -> Callable[[World], Transport]:
    """The function that opens a transport, by the transport's name. Raises Unsupported."""
    known = {entry.name: entry.between for entry in transports().values() if entry.between}
    if name not in known:
        raise Unsupported(f"--transport {name}: one of {', '.join(known)}")
    return known[name]


class PairTimer:
    """One rank's part in timing pairs; all ranks create theirs and call its methods together."""

    def __init__(self, world: World, transport: Transport) -> None:
        self._world, self._transport = world, transport
        self._memory: tuple[NDArray[np.uint8], NDArray[np.uint8]] | tuple[()] = ()

    def times(
        self,
        quantity: str,
        pairs: Sequence[Pair],
        nbytes: int,
        repetitions: int,
        trips: int = TRIPS,
    ) -> list[float]:
        """Time exchanges within disjoint pairs at once; returns the seconds of each repetition.

        ``quantity`` is ``latency`` (nbytes from a pair's first rank to its second and back),
        ``bandwidth`` (from first to second), ``bandwidth_both`` (both ways at once), or one of
        `topology.model.measured.SWEPT`, timed as described there. A repetition of a latency is one
        message there and one back; of a bandwidth it is a window of messages
        (`bench.links.exchange.pattern`). The first rank of a pair gets the seconds of each
        repetition, and all other ranks an empty list. They are those of the slower rank of the
        pair; of the quantity ``first``, those of the slowest of all ranks. ``trips``: consecutive
        exchanges in an iteration, of quantities that have several.
        """
        if quantity == "trip":
            return [t / 2 for t in self.times("latency", pairs, nbytes, repetitions, trips)]
        world = self._world
        own, trips = self._timed(quantity, pairs, nbytes, repetitions, trips)
        world.rest()  # ranks of no pair leave their cores to those of the pairs
        everyone = world.gather(own)
        for a, b in pairs:
            if a == world.rank:
                ends = everyone if quantity == "first" else (everyone[a], everyone[b])
                return [max(each) / trips for each in zip(*filter(None, ends), strict=True)]
        return []

    def _timed(
        self, quantity: str, pairs: Sequence[Pair], nbytes: int, repetitions: int, trips: int
    ) -> tuple[list[float], int]:
        """This rank's seconds of each iteration, and the number of exchanges in an iteration."""
        world, transport = self._world, self._transport
        how = pattern(quantity, nbytes)
        # An iteration of data that stays as it is holds one exchange: iterations repeat it anyway.
        trips = trips if how.chained and quantity != "first" else 1
        schedule, spec = exchange(how, pairs, world.size, trips)
        dtype, operation = (np.float32, op("sum")) if spec.reduces else (np.uint8, None)
        item = np.dtype(dtype).itemsize
        elements = spec.size(world.size, nbytes, item).elements
        layout = Layout.of(schedule, spec)
        source, target = (
            memory[: layout.elements(world.rank, buffer, elements) * item]
            for buffer, memory in zip(
                (Buffer.IN, Buffer.OUT), self._buffers(how.messages * nbytes), strict=True
            )
        )
        what = (schedule, spec, transport, world.rank)
        ends = (source.view(dtype), target.view(dtype), operation, elements)
        # Sums of sums overflow.
        with np.errstate(all="ignore"), Plan(*what, *ends) as plan:
            # The messages themselves keep the ranks of a pair in step; only for ``first`` each
            # exchange follows a barrier, since ranks leave MPI's barrier microseconds apart, which
            # is longer than a small message takes.
            start = Start(world.barrier, every=quantity == "first")
            own = plan.spans(repetitions, start).seconds.tolist()
        return own, trips if how.chained else how.messages

    def _buffers(self, nbytes: int) -> tuple[NDArray[np.uint8], ...]:
        """A vector to send from, and room for two to arrive in; both with room for an answer."""
        nbytes += TOKEN_BYTES
        if not self._memory or len(self._memory[0]) < nbytes:
            self._memory = (self._transport.allocate(nbytes), self._transport.allocate(2 * nbytes))
            for array in self._memory:
                array[:] = self._world.rank % 256
        return self._memory

    def close(self) -> None:
        """Close the transport after a barrier, when no rank waits for another."""
        self._world.barrier()
        self._memory = ()
        self._transport.close()


OnRound = Callable[[int, int, str], object]
Cells = Mapping[str, Mapping[Pair, Estimate]]
Cell = tuple[str, int, int, float, float, float, float]
"""A quantity, from which rank to which, what `Estimate` has, and the `sustained` value."""
SMALL = 8
# A median rate above this many times the sustained rate is refused.
_SUSTAINED = 1.5
# Exchanges before those that count, and those that count for a latency.
_WARMUP, _LATENCY_REPETITIONS = 5, 200
_MOST_BYTES, _MOST_SECONDS = 1 << 28, 1e6
# The most times that suspicious pairs are measured again.
_LOOKS = 3


def _size(word: str) -> int:
    size = parse_size(word)
    if not 8 <= size <= _MOST_BYTES:
        raise argparse.ArgumentTypeError(f"{word!r} is no size from 8 to 256M, such as 64K")
    return size


class PairOptions(OptionGroup):
    """How pairs of ranks are measured."""

    isolated: bool = switch(
        "--isolated  one pair at a time instead of as many disjoint pairs as there are CPUs for"
    )
    bytes: int = option("--bytes N  size of a bandwidth message (default: 1M)", 1 << 20, _size)
    repetitions: int = option(
        "--repetitions N  windows timed (default: 30)", 30, whole(1, "windows", 100_000)
    )
    transport: str = option(
        "--transport NAME  what moves the bytes: mpi (default), shm or shm+mpi", "mpi"
    )
    mpi_threads: str | None = option(
        f"{OPTION}  thread level that MPI is started with (default: the lowest)", choices=LEVELS
    )
    total: float | None = option(
        "--total SECONDS|10m  begin no round after this time, and keep what was measured",
        parse=time_in("s", 0, _MOST_SECONDS),
    )
    sweep: int | None = option(
        "--sweep N  also time messages of 8 bytes, 16, 32 … up to this size, which is what cost"
        " models are fitted on (busbar collectives fit)",
        parse=_size,
    )


class Refused(NamedTuple):
    """The median rate over windows, and the rate over half of the windows in a row; bytes/s."""

    median: float
    sustained: float


@dataclass(frozen=True)
class Measured:
    """The measured latencies and rates between pairs of ranks.

    ``cells[name][a, b]``: the quantity ``name`` from a to b, in seconds or bytes per second.
    ``at_once``: whether any pairs were measured at the same time. ``refused[name][a, b]``: rates
    that are not in ``cells``, because the pair could not sustain them. ``threads``: MPI's thread
    level. ``others_share``: share of all cores that other programs took meanwhile, on the host
    where it was greatest; None: not known.
    """

    places: tuple[RankPlace, ...]
    at_once: bool
    cells: dict[str, dict[Pair, Estimate]]
    library: str
    refused: Mapping[str, Mapping[Pair, Refused]] = field(default_factory=dict)
    threads: str = ""
    others_share: float | None = None


def world(threads: str | None = None) -> MpiWorld:
    """The communicator of MPI's ranks, as a `World`; ``threads``: the requested thread level.

    Raises Unavailable without mpi4py or MPI, Unsupported if the launcher is of another MPI, and
    ProbeError for one rank.
    """
    # Loaded, not started: under another MPI's launcher some libraries end the process there.
    check_library(library_version(load_mpi()))
    joined = MpiWorld(threads=threads)
    if joined.size < 2:
        raise ProbeError(
            "measure",
            "one rank has no partner; start several, as mpirun -n 4 busbar topology measure, "
            "with the mpirun of the MPI that mpi4py uses",
        )
    return joined


class EarlyEnd:
    """Why no further round begins: a signal, or the time of ``--total``; all ranks create one.

    ``reason``: empty while rounds go on; the same on all ranks after `is_due`.
    """

    def __init__(self, total: float | None = None) -> None:
        """``total``: seconds from now, or None."""
        self.reason, self.signal = "", 0
        self._until = math.inf if total is None else time.monotonic() + total

    def is_due(self, world: World) -> bool:
        """True if rank 0 has a reason to end; collective."""
        if not self.reason:
            self.reason = world.broadcast(self._own_reason())
        return bool(self.reason)

    def _own_reason(self) -> str:
        if self.signal:
            return f"{BY_SIGNAL} {Signals(self.signal).name}"
        return TOTAL_OVER if time.monotonic() >= self._until else ""

    @contextmanager
    def at_signals(self) -> Iterator[None]:
        """Note the first signal that asks the run to end; a second one ends the process at once.

        Launchers send it to all ranks, so those of ranks other than 0 are ignored.
        """

        def note(number: int, frame: object) -> None:
            self.signal = number
            restore()

        def restore() -> None:
            for which, handler in handlers.items():
                signal.signal(which, handler or signal.SIG_DFL)

        handlers = {
            which: signal.signal(which, note) for which in (Signals.SIGINT, Signals.SIGTERM)
        }
        try:
            yield
        finally:
            restore()


class PairRun(NamedTuple):
    """The common parameters of all measurements between pairs; ``schedule``: the pairs by rounds.

    ``places``: of every rank. ``progress(done, rounds, what)`` is called on rank 0 before every
    round; ``what`` names what all these rounds measure. ``end``: why rounds are left out.
    """

    world: World
    places: tuple[RankPlace, ...]
    schedule: Sequence[Sequence[Pair]]
    over: PairTimer
    options: PairOptions
    progress: OnRound
    end: EarlyEnd

    @classmethod
    def of(
        cls,
        world: World,
        over: PairTimer,
        options: PairOptions,
        progress: OnRound,
        end: EarlyEnd,
    ) -> PairRun:
        """All pairs, as many at once as the options and the CPUs allow; collective."""
        places = places_of(world)
        every = rounds(len(places))
        schedule = isolated(every) if options.isolated else with_cpus(every, places)
        return cls(world, places, schedule, over, options, progress, end)

    def rounds(self, what: str, passes: int = 1) -> Iterator[tuple[int, Sequence[Pair]]]:
        """Yield each pass's number and the pairs of each of its rounds, after a barrier.

        Ends before all rounds if `EarlyEnd` says so.
        """
        for number in range(passes * len(self.schedule)):
            if self.end.is_due(self.world):
                return
            if self.world.rank == 0:
                self.progress(number, passes * len(self.schedule), what)
            self.world.barrier()
            at, place = divmod(number, len(self.schedule))
            yield at, self.schedule[place]


def measure(run: PairRun) -> Measured:
    """Measure the pairs of a run; collective, with the same result on all ranks."""
    mine = [cell for _, together in run.rounds("pairs") for cell in _round(run, together)]
    cells, refused = sorted_out([cell for own in run.world.gather(mine) for cell in own])
    at_once = any(len(together) > 1 for together in run.schedule)
    level = run.world.threads()
    library = library_version(load_mpi())
    threads = "" if level is None else level.name
    return Measured(run.places, at_once, cells, library, refused, threads)


def sorted_out(
    measured: Sequence[Cell],
) -> tuple[dict[str, dict[Pair, Estimate]], dict[str, dict[Pair, Refused]]]:
    """Sort the measurements of pairs by quantity. Returns those that hold, and refused rates.

    A port with a token bucket passes some bytes at once after every pause. Rates are measured in
    several windows of time; if such a burst fills most of a window, the median over windows is a
    rate that the port cannot sustain, and is refused.
    """
    cells: dict[str, dict[Pair, Estimate]] = {name: {} for name in QUANTITIES}
    refused: dict[str, dict[Pair, Refused]] = {name: {} for name in QUANTITIES}
    for name, a, b, value, low, high, lasting in sorted(measured):
        if QUANTITIES[name] and value > _SUSTAINED * lasting:
            refused[name][a, b] = Refused(value, lasting)
        else:
            cells[name][a, b] = Estimate(value, low, high)
    return cells, refused


def sustained(seconds: Sequence[float]) -> float:
    """The mean of the fastest sequence of samples that has half their number."""
    half = (len(seconds) + 1) // 2
    return min(fmean(seconds[n : n + half]) for n in range(len(seconds) - half + 1))


def look_again(
    run: PairRun, measured: Measured, accused: Callable[[Measured], Sequence[Pair]]
) -> Measured:
    """Measure suspicious or refused pairs again; collective. ``accused``: the same on all ranks.

    Other work makes a pair as slow as a bad link does, but not each time. The best of all
    measurements of a pair counts; a pair that is always slow stays suspicious.
    """
    for _ in range(_LOOKS):
        if run.end.reason:
            break
        named = {
            *accused(measured),
            *(pair for pairs in measured.refused.values() for pair in pairs),
        }
        if not named:
            break
        marked = {*named, *(pair[::-1] for pair in named)}
        rest = [[pair for pair in together if pair in marked] for together in run.schedule]
        again = run._replace(schedule=[pairs for pairs in rest if pairs], progress=lambda *_: None)
        looked = measure(again)
        cells = better(measured.cells, looked.cells)
        refused = {
            name: {
                pair: one
                for pair, one in (*pairs.items(), *looked.refused[name].items())
                if pair not in cells[name]
            }
            for name, pairs in measured.refused.items()
        }
        measured = replace(measured, cells=cells, refused=refused)
    return measured


def better(first: Cells, again: Cells) -> dict[str, dict[Pair, Estimate]]:
    """Merge two measurements of pairs; of a pair in both, the better value is kept."""
    return {
        name: {
            pair: max(
                (cell, again[name].get(pair, cell)),
                key=lambda one: one.value if QUANTITIES[name] else -one.value,
            )
            for pair, cell in {**again[name], **cells}.items()
        }
        for name, cells in first.items()
    }


def _round(run: PairRun, together: Sequence[Pair]) -> Iterator[Cell]:
    """Measure disjoint pairs at once; yields the measurements on the first rank of each pair."""
    back = [(b, a) for a, b in together]
    large, few = run.options.bytes, run.options.repetitions
    for name, pairs, nbytes, count in (
        ("latency", together, SMALL, _LATENCY_REPETITIONS),
        ("bandwidth", together, large, few),
        ("bandwidth", back, large, few),
        ("bandwidth_both", together, large, few),
    ):
        times = run.over.times(name, pairs, nbytes, _WARMUP + count)
        samples = [_value(name, nbytes, t) for t in times[_WARMUP:]]
        for a, b in pairs:
            if a == run.world.rank:
                estimated = estimate(samples)
                lasting = _value(name, nbytes, sustained(times[_WARMUP:]))
                for way in ((a, b),) if name == "bandwidth" else ((a, b), (b, a)):
                    yield name, *way, estimated.value, estimated.low, estimated.high, lasting


def _value(name: str, nbytes: int, seconds: float) -> float:
    """Seconds one way, or bytes per second, from a result of `PairTimer.times`."""
    if name == "latency":
        return seconds / 2
    return (2 if name == "bandwidth_both" else 1) * nbytes / seconds


def places_of(world: World) -> tuple[RankPlace, ...]:
    """Every rank's host and CPUs; collective."""
    cpus = cores()
    # The NUMA node that holds all of them, if one does.
    numa = next((n for n, has in numa_nodes().items() if cpus and set(cpus) <= set(has)), None)
    return tuple(
        RankPlace(*one) for one in world.gather((socket.gethostname(), listed(cpus), numa, boot()))
    )


_SWEEP_WARMUP = 2
_MOST_SWEPT_RANKS = 64


def sweep(run: PairRun) -> dict[tuple[Pair, str, int], list[float]]:
    """Time the pairs of a run at all sizes up to its ``--sweep``; collective.

    All ranks get the blocks' medians, or none if the run ends early. Raises ProbeError for too many
    ranks to sweep all pairs.
    """
    world = run.world
    if world.size > _MOST_SWEPT_RANKS:
        most = _MOST_SWEPT_RANKS
        reason = f"--sweep goes through all pairs of up to {most} ranks, not of {world.size}"
        raise ProbeError("measure", reason)
    cells = [(name, nbytes) for name in SWEPT for nbytes in sizes(name, run.options.sweep or 0)]
    pairs = [pair for together in run.schedule for pair in together]
    # By cell, block and pair. A pair's first rank fills in its values.
    table = np.zeros((len(cells), BLOCKS, len(pairs)))
    for block, together in run.rounds("sweep of sizes", BLOCKS):
        mine = [pairs.index(pair) for pair in together if pair[0] == world.rank]
        longest: dict[str, float] = {}
        for row, (name, nbytes) in enumerate(cells):
            # On the slowest pair an exchange takes at most twice as long as of half the size.
            trips, count = pace(nbytes, 2 * longest.get(name, 0.0))
            times = run.over.times(name, together, nbytes, _SWEEP_WARMUP + count, trips)
            middle = median(times[_SWEEP_WARMUP:]) if times else 0.0
            if times:
                table[row, block, mine] = middle
            longest[name] = float(world.combine(np.array([middle]), "max")[0])
    if run.end.reason:
        return {}
    whole = world.combine(table.ravel(), "max").reshape(table.shape)
    return {
        (pair, name, nbytes): whole[row, :, column].tolist()
        for row, (name, nbytes) in enumerate(cells)
        for column, pair in enumerate(pairs)
    }


#: The number of random orders in which hosts are paired to find racks, and their seed.
_ORDERS, _SEED = 12, 1
#: A message of this measurement, and repetitions of it.
RACK_BYTES, _RACK_REPETITIONS = 1 << 19, 3
#: A pair within a rack keeps at least this share of its links' rate; a pair across an uplink does
#: not.
_SHARE_KEPT = 0.85
# The share of a rack's pairs that must be quick, and the fewest hosts that racks are looked for in.
_WHOLE, _FEWEST_HOSTS = 0.8, 4


def first_ranks(places: Sequence[RankPlace]) -> list[int]:
    """The first rank of every host."""
    hosts = [place.host for place in places]
    return [hosts.index(host) for host in dict.fromkeys(hosts)]


def orders(ranks: Sequence[int]) -> list[list[Pair]]:
    """Rounds of disjoint pairs; a pair occurs several times, each time beside different pairs."""
    chance = random.Random(_SEED)
    pairings = []
    for _ in range(_ORDERS):
        seats = chance.sample(list(ranks), len(ranks))
        pairings += [[(seats[a], seats[b]) for a, b in together] for together in rounds(len(seats))]
    return pairings


def second_least(values: Sequence[float]) -> float:
    """The second least value, so that no single round decides."""
    return sorted(values)[min(1, len(values) - 1)]


def measure_racks(run: PairRun) -> dict[Pair, float]:
    """Bytes/s of pairs of hosts while all hosts communicate, both ways summed; collective.

    Pairs are of the hosts' first ranks, in both orders. A single pair across racks is as fast as
    one inside a rack, since an uplink carries several links. When all hosts communicate in pairs,
    both ways, an uplink that is narrower than its hosts' links slows the pairs that cross it, and
    only those. Which rounds show that depends on the other pairs, hence several orders of pairs.
    Empty if the run ends early.
    """
    world, schedule = run.world, orders(first_ranks(run.places))
    table = np.zeros((len(schedule), world.size))
    loaded = run._replace(schedule=schedule)
    for number, (_, together) in enumerate(loaded.rounds("all hosts at once")):
        times = run.over.times("bandwidth_both", together, RACK_BYTES, _RACK_REPETITIONS)
        if times:
            table[number, world.rank] = 2 * RACK_BYTES / median(times)
    if run.end.reason:
        return {}
    whole = world.combine(table.ravel(), "max").reshape(table.shape)
    seen: dict[Pair, list[float]] = {}
    for number, together in enumerate(schedule):
        for a, b in together:
            seen.setdefault((min(a, b), max(a, b)), []).append(float(whole[number, a]))
    least = {pair: second_least(values) for pair, values in seen.items()}
    return least | {(b, a): value for (a, b), value in least.items()}


def grouped(loaded: Mapping[Pair, float]) -> list[list[int]]:
    """Group ranks into racks, whose members keep their rates to each other under load.

    A rank's own rate is its best rate to any other rank, so that a slow link does not look like a
    rack. Empty if there are no two distinct racks: one switch, uplinks as wide as their hosts'
    links, or fewer than four hosts.
    """
    ranks = sorted({end for pair in loaded for end in pair})
    if len(ranks) < _FEWEST_HOSTS:
        return []
    best = {rank: max(loaded[rank, other] for other in ranks if other != rank) for rank in ranks}
    near = {
        pair: value >= _SHARE_KEPT * min(best[pair[0]], best[pair[1]])
        for pair, value in loaded.items()
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
    apart = inside and across and np.mean(inside) >= _WHOLE and np.mean(across) <= 1 - _WHOLE
    return racks if apart else []


def ended(run: PairRun, measured: Measured) -> str:
    """Why a run ended early, and how many pairs it has measured; empty if it measured all."""
    if not run.end.reason:
        return ""
    every = sum(map(len, run.schedule))
    done = len({frozenset(pair) for cells in measured.cells.values() for pair in cells})
    return f"{run.end.reason}; {done} of {format_count(every, 'pair')} measured"


SOURCE = "measured"


def as_topology(
    measured: Measured, options: PairOptions, samples: Samples = MappingProxyType({})
) -> Topology:
    """Ranks as devices RANK0, …, below their NUMA node or host, and the matrices between them.

    With one host its id is HOST and its NUMA nodes are NUMA0, …, as in sysfs, so that a map of the
    host can be merged with it. ``samples``: the result of `sweep`, if any.
    """
    hosts = list(dict.fromkeys(place.host for place in measured.places))
    only = len(hosts) == 1
    devices: dict[str, Device] = {}
    for rank, place in enumerate(measured.places):
        number = hosts.index(place.host)
        host = "HOST" if only else f"HOST{number}"
        devices.setdefault(host, Device(host, Kind.HOST, name=place.host))
        parent = host
        if place.numa is not None:
            parent = f"NUMA{place.numa}{'' if only else f'@{host}'}"
            devices.setdefault(parent, Device(parent, Kind.NUMA, place.numa, parent=host))
        near = (Fact("cpu_affinity", place.cpus, SOURCE),) if place.cpus else ()
        id = f"RANK{rank}"
        devices[id] = Device(id, Kind.RANK, rank, parent=parent, facts=near)
    pairs = [
        PairFact(f"RANK{a}", f"RANK{b}", Fact(f"{name}{part}", value, SOURCE))
        for name in QUANTITIES
        for (a, b), cell in measured.cells[name].items()
        for part, value in (("", cell.value), ("_low", cell.low), ("_high", cell.high))
    ]
    swept, machine = sweep_facts(samples, SOURCE)
    others = measured.others_share
    facts = (
        Fact("mpi_library", measured.library, SOURCE),
        *([Fact("mpi_threads", measured.threads, SOURCE)] if measured.threads else ()),
        Fact("transport", options.transport, SOURCE),
        Fact("message_bytes", options.bytes, SOURCE),
        Fact("repetitions", options.repetitions, SOURCE),
        Fact("pairs_at_once", measured.at_once, SOURCE),
        *([] if others is None else [Fact("others_share", others, SOURCE)]),
        *machine,
    )
    return Topology(tuple(devices.values()), (), (*pairs, *swept), facts, (), (SOURCE,))


def with_racks(
    measured: Topology, places: Sequence[RankPlace], racks: Sequence[Sequence[int]]
) -> Topology:
    """Add the hosts that share an uplink to a map; ``racks``: the first ranks of their hosts."""
    text = "; ".join(" ".join(places[rank].host for rank in rack) for rack in racks)
    fact = Fact("racks", text or "none told apart", SOURCE)
    return replace(measured, facts=(*measured.facts, fact))
