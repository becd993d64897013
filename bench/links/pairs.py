"""Bytes between disjoint pairs of ranks, moved by our own plans on our own transports, timed."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from bench.links.swaps import STILL, messages, swaps
from busbar.errors import Unsupported
from collectives.execution.mpi.transport import MpiTransport
from collectives.execution.mpi.world import MpiWorld
from collectives.execution.plan import Plan
from collectives.execution.shm.transport import ShmTransport
from collectives.execution.transport import Transport
from collectives.execution.world import World
from collectives.schedule.moves import Buffer, Move, Slot
from collectives.schedule.ops import op
from collectives.schedule.schedule import Schedule
from collectives.schedule.spec import Collective
from topology.measured.sweep import SWEPT, TRIPS

__all__ = ["TRANSPORTS", "PairTimer", "exchange", "opener"]

Pair = tuple[int, int]
#: What may move the bytes between processes, by its name.
TRANSPORTS: Mapping[str, Callable[[MpiWorld], Transport]] = MappingProxyType(
    {"mpi": MpiTransport, "shm": ShmTransport}
)


def opener(name: str) -> Callable[[MpiWorld], Transport]:
    """What opens the transport of that name. Raises Unsupported with the names."""
    if name not in TRANSPORTS:
        raise Unsupported(f"--transport {name}: there are {' and '.join(TRANSPORTS)}")
    return TRANSPORTS[name]


def exchange(
    quantity: str, pairs: Sequence[Pair], nranks: int, trips: int = TRIPS
) -> tuple[Schedule, Collective]:
    """The placed schedule in which disjoint pairs exchange at once, and its collective.

    Rank r has part r. ``bandwidth``: a pair's second rank wants the first's. ``bandwidth_both``:
    each wants the other's. ``latency``: the first's part goes there and back ``trips`` times, and
    each way sends on what has just arrived, so that none can begin early. Raises KeyError for
    others.
    """
    mine, got = Slot(Buffer.IN, 0), Slot(Buffer.OUT, 0)
    steps: dict[str, list[list[Move]]] = {
        "bandwidth": [[Move(a, b, mine, got) for a, b in pairs]],
        "bandwidth_both": [
            [Move(x, y, mine, got) for a, b in pairs for x, y in ((a, b), (b, a))],
        ],
        "latency": [
            [Move(*(ends if forth else ends[::-1]), got if n else mine, got) for ends in pairs]
            for n in range(2 * trips)
            for forth in [n % 2 == 0]
        ],
    }
    wanted = {b: a for a, b in pairs}
    if quantity != "bandwidth":
        wanted |= {a: b if quantity == "bandwidth_both" else a for a, b in pairs}
    spec = Collective(
        name=f"pairs_{quantity}",
        title="disjoint pairs of ranks exchange vectors",
        parts=lambda n: n,
        inputs=lambda n, rank, root: (rank,),
        outputs=lambda n, rank, root: (wanted[rank],) if rank in wanted else (),
        # A rank's whole vector passes its port once, each way.
        bus_factor=lambda n: 1.0,
        in_place=False,
    )
    return Schedule.of(nranks, nranks, steps[quantity]), spec


class PairTimer:
    """One rank's part in timing pairs; all ranks make one together, and call its methods so."""

    def __init__(self, world: World, transport: Transport) -> None:
        self._world, self._transport = world, transport
        self._memory: tuple[NDArray[np.uint8], NDArray[np.uint8]] | tuple[()] = ()

    def times(
        self, quantity: str, pairs: Sequence[Pair], nbytes: int, repetitions: int
    ) -> list[float]:
        """Move bytes within disjoint pairs at once, again and again.

        ``quantity`` is ``latency`` (nbytes from a pair's first rank to its second and back),
        ``bandwidth`` (from first to second) or ``bandwidth_both`` (both ways at once), or one of
        `topology.measured.sweep.SWEPT`, timed as that says. The first rank of a pair gets the
        seconds of each repetition, for one message each way; everyone else an empty list. A
        repetition takes as long as the slower end of the pair, with ``first`` the slowest rank.
        """
        if quantity == "trip":
            return [t / 2 for t in self.times("latency", pairs, nbytes, repetitions)]
        world = self._world
        own, trips = self._timed(quantity, pairs, nbytes, repetitions)
        everyone = world.gather(own)
        for a, b in pairs:
            if a == world.rank:
                ends = everyone if quantity == "first" else (everyone[a], everyone[b])
                return [max(each) / trips for each in zip(*filter(None, ends), strict=True)]
        return []

    def _timed(
        self, quantity: str, pairs: Sequence[Pair], nbytes: int, repetitions: int
    ) -> tuple[list[float], int]:
        """This rank's seconds of each firing, and how many of what is asked for a firing holds."""
        world = self._world
        trips = 1 if quantity in ("first", *STILL) else TRIPS
        if quantity in SWEPT:
            schedule, spec = swaps(quantity, pairs, world.size, trips)
        else:
            schedule, spec = exchange(quantity, pairs, world.size)
            trips = TRIPS if quantity == "latency" else 1
        dtype, operation = (np.float32, op("sum")) if spec.reduces else (np.uint8, None)
        n, wants = messages(quantity), len(spec.outputs(world.size, world.rank, 0))
        source, target = self._buffers(n * nbytes)
        with Plan(
            schedule,
            spec,
            self._transport,
            world.rank,
            source.view(dtype),
            target[: wants * nbytes].view(dtype),
            operation,
            nbytes // np.dtype(dtype).itemsize,
        ) as plan:
            return self._fired(plan, repetitions, quantity == "first"), trips

    def _fired(self, plan: Plan, repetitions: int, together: bool) -> list[float]:
        """Seconds of each firing, timed by the transport where it can.

        Here, pairs keep step by what they send; only ``together`` stands behind a barrier. A rank
        leaves MPI's barrier microseconds after another, which a small message does not last.
        """
        own = plan.times(repetitions, loop=False)
        if own is not None:
            return own
        self._world.barrier()
        own = []
        for _ in range(repetitions):
            if together:
                self._world.barrier()
            start = time.perf_counter()
            plan()
            own.append(time.perf_counter() - start)
        return own

    def _buffers(self, nbytes: int) -> tuple[NDArray[np.uint8], ...]:
        """A vector to send from, and room for two to arrive in."""
        if not self._memory or len(self._memory[0]) < nbytes:
            self._memory = (self._transport.allocate(nbytes), self._transport.allocate(2 * nbytes))
            for array in self._memory:
                array[:] = self._world.rank % 256
        source, target = self._memory
        return source[:nbytes], target[: 2 * nbytes]

    def close(self) -> None:
        """Leave the transport once nobody waits any more."""
        self._world.barrier()
        self._memory = ()
        self._transport.close()
