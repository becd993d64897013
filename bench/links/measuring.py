"""The measuring itself, between MPI ranks in host memory.

Every quantity is taken per repetition, so that medians and intervals can be had: latency is half a
round trip of 8 bytes; bandwidth is one way, bandwidth_both both ways at once with both directions
added. `bench.links.mpi_exchange` moves the bytes unless another `Exchange` is given.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from bench.links.exchange import BUILT_IN, Exchange
from busbar.cpulist import listed
from busbar.errors import ProbeError, Unsupported
from busbar.host import cores, numa_nodes
from busbar.launchers import wrong_library
from busbar.mpi import library_version, load_mpi
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

if TYPE_CHECKING:
    from mpi4py import MPI

Cells = Mapping[str, Mapping[Pair, Estimate]]
SMALL = 8
_TEXT = 1024


@dataclass(frozen=True)
class Settings:
    """``nbytes`` a message of the bandwidth test; repetitions are per pair and quantity.

    ``transport`` is the name of what moves the bytes; ``alone``: one pair at a time, though there be CPUs
    for more. ``sweep``: the largest message of `bench.links.sweep`, 0 for no sweep.
    """

    nbytes: int = 1 << 20
    repetitions: int = 30
    latency_repetitions: int = 200
    warmup: int = 5
    alone: bool = False
    transport: str = BUILT_IN
    sweep: int = 0


@dataclass(frozen=True)
class Measured:
    """What rank 0 knows in the end. ``cells[name][a, b]``: seconds, or bytes per second from a to b.

    ``at_once``: whether any pairs were measured at the same time.
    """

    places: tuple[RankPlace, ...]
    at_once: bool
    cells: dict[str, dict[Pair, Estimate]]
    library: str


def world() -> MPI.Intracomm:
    """Return MPI's world.

    Raises Unavailable without mpi4py or MPI, Unsupported where the launcher is another MPI's, and
    ProbeError for one rank.
    """
    # Loaded, not started: under another MPI's launcher some libraries end the process there.
    wrong = wrong_library(library_version(load_mpi(initialize=False)))
    if wrong is not None:
        raise Unsupported(wrong)
    comm: MPI.Intracomm = load_mpi().COMM_WORLD
    if comm.size < 2:
        raise ProbeError(
            "measure",
            "one rank has nobody to talk to; start it as mpirun -n 4 python -m topology measure, "
            "with the mpirun of the MPI that mpi4py uses",
        )
    return comm


def first_in_trouble(comm: MPI.Intracomm, fine: bool) -> int | None:
    """Return the lowest rank that cannot go on, None if all can; collective."""
    flags = np.zeros(comm.size, dtype=np.int32)
    comm.Allgather(np.array([fine], dtype=np.int32), flags)
    return next((rank for rank, flag in enumerate(flags.tolist()) if not flag), None)


def schedule_of(places: Sequence[RankPlace], settings: Settings) -> tuple[tuple[Pair, ...], ...]:
    """Return which pairs are measured together, round by round."""
    every = rounds(len(places))
    return isolated(every) if settings.alone else with_cpus(every, places)


def measure(
    comm: MPI.Intracomm,
    places: Sequence[RankPlace],
    schedule: Sequence[Sequence[Pair]],
    exchange: Exchange,
    settings: Settings,
    progress: Callable[[int, int], None],
) -> Measured | None:
    """Measure the pairs of a schedule; collective. Rank 0 gets the result, the others None.

    ``places`` are every rank's; ``progress(done, rounds)`` is called on rank 0 before every round.
    """
    size, rank = comm.size, comm.rank
    table = np.zeros((len(QUANTITIES), size, size, 3))
    for done, together in enumerate(schedule):
        if rank == 0:
            progress(done, len(schedule))
        comm.Barrier()
        _round(rank, exchange, settings, table, together)
        comm.Barrier()
    whole = np.zeros_like(table)
    comm.Reduce(table, whole, root=0)
    if rank != 0:
        return None
    at_once = any(len(together) > 1 for together in schedule)
    library = _library(load_mpi().Get_library_version())
    return Measured(tuple(places), at_once, _cells(whole, schedule), library)


def second_look(
    comm: MPI.Intracomm,
    schedule: Sequence[Sequence[Pair]],
    exchange: Exchange,
    settings: Settings,
    found: Measured | None,
    accused: Sequence[Pair],
) -> Measured | None:
    """Measure accused pairs again, as they were; collective. Rank 0 gives and gets the result.

    One busy moment makes a pair as slow as a bad link does, but not twice. Of the two looks at a pair
    the better one counts.
    """
    size = comm.size
    marked = np.zeros((size, size), dtype=np.int32)
    for pair in accused:
        marked[pair] = 1
    comm.Bcast(marked, root=0)
    rest = [[p for p in together if marked[p] or marked[p[::-1]]] for together in schedule]
    places = found.places if found is not None else ()
    again = measure(
        comm, places, [pairs for pairs in rest if pairs], exchange, settings, lambda *_: None
    )
    if found is None or again is None:
        return None
    return replace(found, cells=better(found.cells, again.cells))


def better(first: Cells, again: Cells) -> dict[str, dict[Pair, Estimate]]:
    """The cells of a first look, those that were looked at again with the better of the two."""
    return {
        name: {
            pair: max(
                (cell, again[name].get(pair, cell)),
                key=lambda one: one.value if QUANTITIES[name] else -one.value,
            )
            for pair, cell in cells.items()
        }
        for name, cells in first.items()
    }


def _library(version: str) -> str:
    """The first line of an MPI's version text, in single blanks."""
    return " ".join(version.split("\n")[0].replace("\0", "").split())


def _round(
    rank: int,
    exchange: Exchange,
    settings: Settings,
    table: npt.NDArray[np.float64],
    together: Sequence[Pair],
) -> None:
    """Measure disjoint pairs; the first rank of each writes into its own table."""
    back = [(b, a) for a, b in together]
    large, few = max(settings.nbytes, SMALL), settings.repetitions
    for name, pairs, nbytes, repetitions in (
        ("latency", together, SMALL, settings.latency_repetitions),
        ("bandwidth", together, large, few),
        ("bandwidth", back, large, few),
        ("bandwidth_both", together, large, few),
    ):
        times = exchange.times(name, pairs, nbytes, settings.warmup + repetitions)
        samples = [_value(name, nbytes, t) for t in times[settings.warmup :]]
        for a, b in pairs:
            if a == rank:
                ways = ((a, b),) if name == "bandwidth" else ((a, b), (b, a))
                for way in ways:
                    _put(table, name, way, estimate(samples))


def _value(name: str, nbytes: int, seconds: float) -> float:
    """Seconds of one way, or bytes per second, from what `Exchange.times` gives."""
    if name == "latency":
        return seconds / 2
    return (2 if name == "bandwidth_both" else 1) * nbytes / seconds


def _cells(
    table: npt.NDArray[np.float64], schedule: Sequence[Sequence[Pair]]
) -> dict[str, dict[Pair, Estimate]]:
    pairs = [way for together in schedule for a, b in together for way in ((a, b), (b, a))]
    return {
        name: {(a, b): Estimate(*map(float, table[at, a, b])) for a, b in sorted(pairs)}
        for at, name in enumerate(QUANTITIES)
    }


def _put(table: npt.NDArray[np.float64], name: str, way: Pair, found: Estimate) -> None:
    table[list(QUANTITIES).index(name), way[0], way[1]] = (found.value, found.low, found.high)


def places_of(comm: MPI.Intracomm) -> tuple[RankPlace, ...]:
    """Return everyone's host and CPUs, gathered as fixed-size text; collective."""
    cpus = cores()
    # The NUMA node that holds all of them, if one does.
    numa = next((n for n, has in numa_nodes().items() if cpus and set(cpus) <= set(has)), None)
    text = f"{socket.gethostname()[:200]}\n{listed(cpus)[:600]}\n{'' if numa is None else numa}"
    mine = np.zeros(_TEXT, dtype=np.uint8)
    raw = text.encode()
    mine[: len(raw)] = np.frombuffer(raw, dtype=np.uint8)
    everyone = np.zeros((comm.size, _TEXT), dtype=np.uint8)
    comm.Allgather(mine, everyone)
    rows = [bytes(row).rstrip(b"\0").decode("utf-8", "replace").split("\n") for row in everyone]
    return tuple(RankPlace(host, cpus, int(n) if n else None) for host, cpus, n in rows)
