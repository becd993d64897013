"""Transports for ``python -m topology measure``: bytes between pairs of ranks, moved by our own plans.

Registered in pyproject.toml as entry points of the group ``busbar.exchanges``; the protocol is
`bench.links.exchange.Exchange`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from bench.links.swaps import STILL, messages, swaps
from collectives.execution.plan import Plan
from collectives.execution.shm.transport import ShmTransport
from collectives.execution.world import World
from collectives.schedule.moves import Buffer, Move, Slot
from collectives.schedule.ops import op
from collectives.schedule.schedule import Schedule
from collectives.schedule.spec import Collective
from topology.measured.sweep import SWEPT, TRIPS

__all__ = ["PlanExchange", "exchange", "shm"]

Pair = tuple[int, int]


def exchange(
    quantity: str, pairs: Sequence[Pair], nranks: int, trips: int = TRIPS
) -> tuple[Schedule, Collective]:
    """The placed schedule in which disjoint pairs exchange at once, and the collective that it does.

    Rank r has part r. ``bandwidth``: a pair's second rank wants the first's. ``bandwidth_both``: each
    wants the other's. ``latency``: the first's part goes there and back ``trips`` times, and each
    way sends on what has just arrived, so that none can begin early. Raises KeyError for others.
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


class PlanExchange:
    """See `bench.links.exchange.Exchange` for the methods."""

    def __init__(self, world: World, transport: ShmTransport) -> None:
        self._world, self._transport = world, transport
        self._memory: tuple[NDArray[np.uint8], NDArray[np.uint8]] | tuple[()] = ()

    def times(
        self, quantity: str, pairs: Sequence[Pair], nbytes: int, repetitions: int
    ) -> list[float]:
        """See `bench.links.exchange.Exchange.times`.

        A repetition begins on all ranks together and takes as long as the slower end of the pair
        (with ``first``, the slowest of all ranks).
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
            return plan.times(repetitions, loop=False) or [], trips

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


def shm() -> PlanExchange:
    """Ranks of one host through the memory that they share, under MPI; all ranks call this together.

    Raises Unavailable without an MPI, Unsupported where ranks are on several hosts, and what
    `ShmTransport` raises.
    """
    from collectives.execution.mpi.world import MpiWorld

    world = MpiWorld()
    return PlanExchange(world, ShmTransport(world))
