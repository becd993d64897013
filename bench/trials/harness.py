"""Overheads of the harness on a launcher's ranks: clock, barrier, empty plan."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from statistics import median

from bench.timing.measure import Timing, measure
from bench.timing.starts import BarrierStart
from collectives.execution.mpi.world import MpiWorld
from collectives.execution.transport import Counted
from collectives.execution.world import World

_READINGS, _BARRIERS, _FIRINGS = 20_000, 2_000, 2_000


class _Nothing(Counted):
    """A plan that moves nothing."""

    def __init__(self) -> None:
        super().__init__(0, 0)

    def __call__(self) -> None:
        """Run once."""

    def close(self) -> None:
        """Nothing is held."""


def costs(world: World, clock: Callable[[], float]) -> dict[str, float]:
    """Seconds of a reading of the clock, of a barrier (median, slowest rank) and of an empty plan.

    All ranks call this together.
    """
    start = clock()
    for _ in range(_READINGS):
        clock()
    reading = (clock() - start) / _READINGS
    barriers = []
    for _ in range(_BARRIERS):
        start = clock()
        world.barrier()
        barriers.append(clock() - start)
    timed = measure(_Nothing(), world, Timing(100, _FIRINGS), BarrierStart(world, clock=clock))
    slowest = max(world.gather(median(barriers)))
    return {"clock": reading, "barrier": slowest, "empty": median(timed.times)}


def main() -> None:
    """Print the costs on rank 0, as JSON."""
    world = MpiWorld()
    found = costs(world, time.perf_counter)
    if world.rank == 0:
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
