"""The measuring itself, between MPI ranks in host memory. The one file here that knows mpi4py.

Every quantity is taken per repetition, so that medians and intervals can be had: latency is half a
round trip of 8 bytes; bandwidth is one way, bandwidth_both both ways at once with both directions
added. `MpiExchange` moves the bytes unless another `Exchange` is given: bandwidth is then a window of
messages answered by one byte, timed at the sender; bandwidth_both a window each way, timed at the
lower rank.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from topology.errors import ProbeError
from topology.exchange import BUILT_IN, Exchange
from topology.measure import QUANTITIES, Estimate, Pair, estimate, isolated, rounds
from topology.sources.cpulist import listed, members

if TYPE_CHECKING:
    from mpi4py import MPI

WINDOW = 4
SMALL = 8
_TEXT = 1024
_ANSWER = 77


@dataclass(frozen=True)
class Settings:
    """``nbytes`` a message of the bandwidth test; repetitions are per pair and quantity.

    ``transport`` is the name of what moves the bytes; ``alone``: one pair at a time.
    """

    nbytes: int = 1 << 20
    repetitions: int = 30
    latency_repetitions: int = 200
    warmup: int = 5
    alone: bool = False
    transport: str = BUILT_IN


@dataclass(frozen=True)
class Place:
    """Where a rank runs: host name, CPU list it may use, and the NUMA node if that is one node."""

    host: str
    cpus: str
    numa: int | None


@dataclass(frozen=True)
class Measured:
    """What rank 0 knows in the end. ``cells[name][a, b]``: seconds, or bytes per second from a to b."""

    places: tuple[Place, ...]
    cells: dict[str, dict[Pair, Estimate]]
    library: str


def world() -> MPI.Intracomm:
    """Return MPI's world. ProbeError when mpi4py or MPI is missing, or there is only one rank."""
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        reason = f"MPI cannot be used here ({error}); pip install 'busbar[mpi]'"
        raise ProbeError("measure", reason) from None
    comm = MPI.COMM_WORLD
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


def measure(
    comm: MPI.Intracomm,
    exchange: Exchange,
    settings: Settings,
    progress: Callable[[int, int], None],
) -> Measured | None:
    """Measure all pairs; collective. Rank 0 gets the result, the others None.

    ``progress(done, rounds)`` is called on rank 0 before every round.
    """
    size, rank = comm.size, comm.rank
    schedule = isolated(rounds(size)) if settings.alone else rounds(size)
    table = np.zeros((len(QUANTITIES), size, size, 3))
    for done, together in enumerate(schedule):
        if rank == 0:
            progress(done, len(schedule))
        comm.Barrier()
        _round(rank, exchange, settings, table, together)
        comm.Barrier()
    whole = np.zeros_like(table)
    comm.Reduce(table, whole, root=0)
    places = _places(comm)
    if rank != 0:
        return None
    from mpi4py import MPI

    library = MPI.Get_library_version().split("\n")[0].replace("\0", "").strip()
    return Measured(places, _cells(whole, schedule), " ".join(library.split()))


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


@dataclass(frozen=True)
class _Side:
    """One end of a pair: ``first`` leads."""

    comm: MPI.Intracomm
    first: bool
    peer: int
    out: npt.NDArray[np.uint8]
    back: npt.NDArray[np.uint8]

    def times(self, quantity: str, repetitions: int) -> list[float]:
        """Seconds of each round trip, or of one message as its share of a window."""
        actions = {
            "latency": (self.round_trip, 1),
            "bandwidth": (self.window, WINDOW),
            "bandwidth_both": (self.both, WINDOW),
        }
        action, messages = actions[quantity]
        samples = []
        for _ in range(repetitions):
            start = time.perf_counter()
            action()
            samples.append((time.perf_counter() - start) / messages)
        return samples

    def round_trip(self) -> None:
        """The leader sends SMALL bytes and gets them back."""
        small, answer = self.out[:SMALL], self.back[:SMALL]
        if self.first:
            self.comm.Send(small, self.peer)
            self.comm.Recv(answer, self.peer)
        else:
            self.comm.Recv(answer, self.peer)
            self.comm.Send(small, self.peer)

    def window(self) -> None:
        """WINDOW messages one way, then one byte of answer."""
        if self.first:
            _wait([self.comm.Isend(self.out, self.peer) for _ in range(WINDOW)])
            self.comm.Recv(self.back[:1], self.peer, _ANSWER)
        else:
            _wait(self._coming())
            self.comm.Send(self.out[:1], self.peer, _ANSWER)

    def both(self) -> None:
        """WINDOW messages each way at once."""
        coming = self._coming()
        _wait([*coming, *(self.comm.Isend(self.out, self.peer) for _ in range(WINDOW))])

    def _coming(self) -> list[Any]:
        parts = np.split(self.back, WINDOW)
        return [self.comm.Irecv(part, self.peer) for part in parts]


def _wait(requests: list[Any]) -> None:
    for request in requests:
        request.Wait()


class MpiExchange:
    """MPI's own messages between host buffers; see `Exchange` for the methods.

    ``nbytes`` is the most that a message may have.
    """

    def __init__(self, comm: MPI.Intracomm, nbytes: int) -> None:
        self._comm = comm
        large = max(nbytes, SMALL)
        # Messages under way at once must not arrive in one place; they may well leave from one.
        self._out = np.zeros(large, dtype=np.uint8)
        self._back = np.zeros(WINDOW * large, dtype=np.uint8)

    def times(
        self, quantity: str, pairs: Sequence[Pair], nbytes: int, repetitions: int
    ) -> list[float]:
        """See `Exchange.times`. Pairs do not wait for each other."""
        rank = self._comm.rank
        for a, b in pairs:
            if rank in (a, b):
                first = rank == a
                out, back = self._out[:nbytes], self._back[: WINDOW * nbytes]
                side = _Side(self._comm, first, b if first else a, out, back)
                found = side.times(quantity, repetitions)
                return found if first else []
        return []

    def close(self) -> None:
        """There is nothing to free: the communicator is the caller's."""


def _put(table: npt.NDArray[np.float64], name: str, way: Pair, found: Estimate) -> None:
    table[list(QUANTITIES).index(name), way[0], way[1]] = (found.value, found.low, found.high)


def _places(comm: MPI.Intracomm) -> tuple[Place, ...]:
    """Gather everyone's host and CPUs as fixed-size text; rank 0 gets them all, others nothing."""
    cpus = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    numa = _numa(set(cpus))
    text = f"{socket.gethostname()[:200]}\n{listed(cpus)[:600]}\n{'' if numa is None else numa}"
    mine = np.zeros(_TEXT, dtype=np.uint8)
    raw = text.encode()
    mine[: len(raw)] = np.frombuffer(raw, dtype=np.uint8)
    everyone = np.zeros((comm.size, _TEXT), dtype=np.uint8)
    comm.Gather(mine, everyone, root=0)
    if comm.rank != 0:
        return ()
    rows = [bytes(row).rstrip(b"\0").decode("utf-8", "replace").split("\n") for row in everyone]
    return tuple(Place(host, cpus, int(n) if n else None) for host, cpus, n in rows)


def _numa(cpus: set[int]) -> int | None:
    """The NUMA node that holds all of these CPUs, or None (unbound, or no sysfs)."""
    for folder in sorted(Path("/sys/devices/system/node").glob("node[0-9]*")):
        try:
            inside = members((folder / "cpulist").read_text().strip()) or []
        except OSError:
            continue
        if cpus and cpus <= set(inside):
            return int(folder.name.removeprefix("node"))
    return None
