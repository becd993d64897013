"""Latency and bandwidth between ranks in host memory.

Every quantity has a value per repetition, for medians and intervals. Latency is half a round trip
of 8 bytes. Bandwidth is one way; bandwidth_both is both ways at once, as the sum of both
directions. `bench.links.pairs` moves the bytes.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import NamedTuple

from bench.links.pairs import PairTimer
from busbar.cpulist import listed
from busbar.errors import ProbeError
from busbar.host import boot, cores, numa_nodes
from busbar.launchers import check_library
from busbar.mpi import library_version, load_mpi
from collectives.execution.mpi.world import MpiWorld
from collectives.execution.world import World
from topology.measured.matrix import (
    QUANTITIES,
    Estimate,
    Pair,
    RankPlace,
    estimate,
    isolated,
    rounds,
    with_cpus,
)

Cells = Mapping[str, Mapping[Pair, Estimate]]
Cell = tuple[str, int, int, float, float, float, float]
"""A quantity, from which rank to which, what `Estimate` has, and the `sustained` value."""
SMALL = 8
# A median rate above this many times the sustained rate is refused.
_SUSTAINED = 1.5
# How often accused pairs are looked at again, at most.
_LOOKS = 3


@dataclass(frozen=True)
class Settings:
    """``nbytes`` a message of the bandwidth test; repetitions are per pair and quantity.

    ``transport`` is the name of what moves the bytes; ``alone``: one pair at a time, though there
    be CPUs for more. ``sweep``: the largest message of `bench.links.sweep`, 0 for no sweep.
    """

    nbytes: int = 1 << 20
    repetitions: int = 30
    latency_repetitions: int = 200
    warmup: int = 5
    alone: bool = False
    transport: str = "mpi"
    sweep: int = 0


class Refused(NamedTuple):
    """A median of windows, and the rate that the pair had over half of them, both bytes/s."""

    median: float
    sustained: float


@dataclass(frozen=True)
class Measured:
    """The result. ``cells[name][a, b]``: seconds, or bytes per second from a to b.

    ``at_once``: whether any pairs were measured at the same time. ``refused[name][a, b]``: rates
    that are no cells, since the clocks of the pair's ends do not allow them. ``threads``: MPI's
    thread level.
    """

    places: tuple[RankPlace, ...]
    at_once: bool
    cells: dict[str, dict[Pair, Estimate]]
    library: str
    refused: Mapping[str, Mapping[Pair, Refused]] = field(default_factory=dict)
    threads: str = ""


def world(threads: str | None = None) -> MpiWorld:
    """Return MPI's world; ``threads``: the thread level that is asked for.

    Raises Unavailable without mpi4py or MPI, Unsupported where the launcher is another MPI's, and
    ProbeError for one rank.
    """
    # Loaded, not started: under another MPI's launcher some libraries end the process there.
    check_library(library_version(load_mpi()))
    found = MpiWorld(threads=threads)
    if found.size < 2:
        raise ProbeError(
            "measure",
            "one rank has nobody to talk to; start it as mpirun -n 4 python -m topology measure, "
            "with the mpirun of the MPI that mpi4py uses",
        )
    return found


class PairRun(NamedTuple):
    """What all measurements between pairs share: the ranks, the pairs round by round, by what.

    ``places`` are every rank's; ``progress(done, rounds)`` is called on rank 0 before every round.
    """

    world: World
    places: tuple[RankPlace, ...]
    schedule: Sequence[Sequence[Pair]]
    over: PairTimer
    settings: Settings
    progress: Callable[[int, int], object]

    @classmethod
    def of(
        cls,
        world: World,
        over: PairTimer,
        settings: Settings,
        progress: Callable[[int, int], object],
    ) -> PairRun:
        """All pairs, as many at once as the settings and the CPUs allow; collective."""
        places = places_of(world)
        every = rounds(len(places))
        schedule = isolated(every) if settings.alone else with_cpus(every, places)
        return cls(world, places, schedule, over, settings, progress)

    def rounds(self, done: int = 0, of: int = 1) -> Iterator[Sequence[Pair]]:
        """The pairs of each round, once all ranks are there; the ``done``-th time of several."""
        for number, together in enumerate(self.schedule, done * len(self.schedule)):
            if self.world.rank == 0:
                self.progress(number, of * len(self.schedule))
            self.world.barrier()
            yield together


def measure(run: PairRun) -> Measured:
    """Measure the pairs of a run; collective, and all ranks know the result."""
    mine = [cell for together in run.rounds() for cell in _round(run, together)]
    cells, refused = sorted_out([cell for own in run.world.gather(mine) for cell in own])
    at_once = any(len(together) > 1 for together in run.schedule)
    level = run.world.threads()
    library = library_version(load_mpi())
    threads = "" if level is None else level.name
    return Measured(run.places, at_once, cells, library, refused, threads)


def sorted_out(
    measured: Sequence[Cell],
) -> tuple[dict[str, dict[Pair, Estimate]], dict[str, dict[Pair, Refused]]]:
    """Cells by quantity, and apart from them the rates that were not sustained.

    A port may pass some bytes at once after every pause. Where that is most of a window, the median
    window has a rate that the port never has.
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
    """The mean of the quickest half of the samples that follow one another."""
    half = (len(seconds) + 1) // 2
    return min(fmean(seconds[n : n + half]) for n in range(len(seconds) - half + 1))


def look_again(
    run: PairRun, found: Measured, accused: Callable[[Measured], Sequence[Pair]]
) -> Measured:
    """Measure pairs again that stand accused or were refused; collective. All accuse the same.

    A busy moment makes a pair as slow as a bad link does, but not each time. Of all looks at a
    pair the best counts; who is slow at every look stays accused.
    """
    for _ in range(_LOOKS):
        named = {*accused(found), *(pair for pairs in found.refused.values() for pair in pairs)}
        if not named:
            break
        marked = {*named, *(pair[::-1] for pair in named)}
        rest = [[pair for pair in together if pair in marked] for together in run.schedule]
        again = run._replace(schedule=[pairs for pairs in rest if pairs], progress=lambda *_: None)
        looked = measure(again)
        cells = better(found.cells, looked.cells)
        refused = {
            name: {
                pair: one
                for pair, one in (*pairs.items(), *looked.refused[name].items())
                if pair not in cells[name]
            }
            for name, pairs in found.refused.items()
        }
        found = replace(found, cells=cells, refused=refused)
    return found


def better(first: Cells, again: Cells) -> dict[str, dict[Pair, Estimate]]:
    """The cells of two looks, those that are in both with the better of the two."""
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
    """Measure disjoint pairs; the first rank of each gives its cells."""
    settings = run.settings
    back = [(b, a) for a, b in together]
    large, few = max(settings.nbytes, SMALL), settings.repetitions
    for name, pairs, nbytes, repetitions in (
        ("latency", together, SMALL, settings.latency_repetitions),
        ("bandwidth", together, large, few),
        ("bandwidth", back, large, few),
        ("bandwidth_both", together, large, few),
    ):
        times = run.over.times(name, pairs, nbytes, settings.warmup + repetitions)
        samples = [_value(name, nbytes, t) for t in times[settings.warmup :]]
        for a, b in pairs:
            if a == run.world.rank:
                found = estimate(samples)
                lasting = _value(name, nbytes, sustained(times[settings.warmup :]))
                for way in ((a, b),) if name == "bandwidth" else ((a, b), (b, a)):
                    yield name, *way, found.value, found.low, found.high, lasting


def _value(name: str, nbytes: int, seconds: float) -> float:
    """Seconds of one way, or bytes per second, from what `PairTimer.times` gives."""
    if name == "latency":
        return seconds / 2
    return (2 if name == "bandwidth_both" else 1) * nbytes / seconds


def places_of(world: World) -> tuple[RankPlace, ...]:
    """Return everyone's host and CPUs; collective."""
    cpus = cores()
    # The NUMA node that holds all of them, if one does.
    numa = next((n for n, has in numa_nodes().items() if cpus and set(cpus) <= set(has)), None)
    return tuple(
        RankPlace(*one) for one in world.gather((socket.gethostname(), listed(cpus), numa, boot()))
    )
