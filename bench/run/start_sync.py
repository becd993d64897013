"""``--sync`` and ``--arrival``: the part that all rows of a sweep share."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from statistics import median

from bench.options.arrival import ZERO, ArrivalPattern
from bench.options.options import Options
from bench.timing.clock import CommonClock, Skew, skew
from bench.timing.starts import BarrierStart, HowToStart, WindowStart
from busbar.errors import Unsupported
from busbar.host import hostname
from collectives.execution.transport import Transport
from collectives.execution.world import Json, World
from reports.records.measurement import Record


class StartSync:
    """How ranks enter what is timed, on one rank; all ranks make one together.

    Raises Unsupported where times are not taken by the host's clock, or a pattern does not fit.
    """

    def __init__(self, world: World, transport: Transport, options: Options) -> None:
        self._world, self._transport, self._options = world, transport, options
        several = max(world.nodes) > 0
        self._skew = (skew(os.environ, hostname()) if several else None) or Skew()
        self._clock: CommonClock | None = None
        for arrival in options.arrivals:
            arrival.on(world.size)
        if options.sync == "barrier":
            return
        if transport.on_gpu:
            raise Unsupported(
                "--sync window needs times by the host's clock; a GPU's are taken by events on its"
                " stream: use --sync barrier"
            )
        self._clock = CommonClock(world, self._skew.clock(), world.nodes)

    def begin(self, arrival: ArrivalPattern, slower: float | None = None) -> HowToStart:
        """How the iterations of one row and placement begin. All ranks call this together.

        ``slower``: the share of itself by which each is lengthened; None: times are our own.
        """
        world, options = self._world, self._options
        if self._clock is None:
            return BarrierStart(
                world,
                options.across,
                loop=options.timing == "loop",
                one_clock=max(world.nodes) == 0 and not self._transport.on_gpu,
                slower=slower or 0.0,
            )
        self._clock.check()
        return WindowStart(world, self._clock, arrival, slower=slower or 0.0)

    def at(self, arrival: ArrivalPattern, size: int, rows: Sequence[Record]) -> ArrivalPattern:
        """A pattern for rows of a size; ``rows``: those so far."""
        unknown = arrival.seconds is None
        return arrival.on(self._world.size, fastest(rows, size) if unknown else None)

    def facts(self) -> Mapping[str, Json]:
        """The clock in a record's environment."""
        return {} if self._clock is None else self._clock.facts()

    def remarks(self, arrival: ArrivalPattern) -> list[str]:
        """The lines above a table's rows; none with barriers. All ranks call this."""
        clock = self._clock
        if clock is None:
            return []
        lines = ["time: from the earliest start to the latest end on one clock (--sync window)"]
        if arrival != ZERO:
            arrival = arrival.on(self._world.size)
            lines = [f"time: from the last rank's arrival to the latest end (--arrival {arrival})"]
        if not clock.exchanged:
            return [*lines, "clock: CLOCK_MONOTONIC of this host, which all ranks share"]
        return [*lines, clock.describe(), *self._recovered(clock)]

    def _recovered(self, clock: CommonClock) -> list[str]:
        """The error of each rank's common clock, known exactly where clocks are emulated."""
        emulated = self._world.gather(list(self._skew))
        if not any(map(any, emulated)):
            return []
        true = self._world.broadcast(time.perf_counter())
        shown = clock.line.other(self._skew.of(true))
        everyone = self._world.gather(shown)
        worst = max(abs(one - everyone[0]) for one in everyone)
        most, fast = (max(abs(one[i]) for one in emulated) for i in (0, 1))
        return [
            f"clocks are emulated, up to {most:g} s and {fast * 1e6:g} ppm off;"
            f" recovered to {worst * 1e6:.3g} us"
        ]


def fastest(rows: Sequence[Record], size: int) -> float:
    """The median time of the fastest algorithm of a size when no rank was late; 0 if unknown.

    Rounded to two digits, because arrival patterns are named by this time.
    """
    times = [
        median(row.times_s)
        for row in rows
        if row.times_s and row.size == size
        and row.window is not None and row.window.arrival == str(ZERO)
    ]  # fmt: skip
    return float(f"{min(times, default=0.0):.2g}")
