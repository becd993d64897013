"""Timed exchanges between disjoint pairs of ranks, as plans on Busbar's own transports."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from bench.links.exchange import TOKEN_BYTES, exchange, pattern
from busbar.errors import Unsupported
from collectives.execution.plan import Plan
from collectives.execution.registry import transports
from collectives.execution.transport import Start, Transport
from collectives.execution.world import World
from collectives.schedule.layout import Layout
from collectives.schedule.moves import Buffer
from collectives.schedule.ops import op
from topology.model.measured import TRIPS

Pair = tuple[int, int]


def opener(name: str) -> Callable[[World], Transport]:
    """The function that opens a transport by its name. Raises Unsupported with the names."""
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
        self, quantity: str, pairs: Sequence[Pair], nbytes: int, repetitions: int
    ) -> list[float]:
        """Time exchanges within disjoint pairs at once; returns the seconds of each repetition.

        ``quantity`` is ``latency`` (nbytes from a pair's first rank to its second and back),
        ``bandwidth`` (from first to second), ``bandwidth_both`` (both ways at once), or one of
        `topology.model.measured.SWEPT`, timed as described there. The first rank of a pair gets the
        seconds of each repetition, for one message each way; all other ranks get an empty list. The
        time is that of the slower rank of the pair, for ``first`` that of the slowest of all ranks.
        For bandwidths a repetition is a window of messages (`bench.links.exchange.pattern`).
        """
        if quantity == "trip":
            return [t / 2 for t in self.times("latency", pairs, nbytes, repetitions)]
        world = self._world
        own, trips = self._timed(quantity, pairs, nbytes, repetitions)
        world.rest()  # ranks without a pair must not use the cores of the others
        everyone = world.gather(own)
        for a, b in pairs:
            if a == world.rank:
                ends = everyone if quantity == "first" else (everyone[a], everyone[b])
                return [max(each) / trips for each in zip(*filter(None, ends), strict=True)]
        return []

    def _timed(
        self, quantity: str, pairs: Sequence[Pair], nbytes: int, repetitions: int
    ) -> tuple[list[float], int]:
        """This rank's seconds of each iteration, and the number of exchanges in an iteration."""
        world, transport = self._world, self._transport
        how = pattern(quantity, nbytes)
        # An iteration with unchanged data has one exchange: iterations repeat it anyway.
        trips = TRIPS if how.chained and quantity != "first" else 1
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
        with (
            np.errstate(all="ignore"),  # sums of sums grow beyond any type
            Plan(
                schedule,
                spec,
                transport,
                world.rank,
                source.view(dtype),
                target.view(dtype),
                operation,
                elements,
            ) as plan,
        ):
            # If timed from Python, pairs are synchronised by their messages; only for ``first``
            # each exchange follows a barrier. Ranks leave MPI's barrier microseconds apart, which
            # is longer than a small message.
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
        """Close the transport when no rank waits any more."""
        self._world.barrier()
        self._memory = ()
        self._transport.close()
