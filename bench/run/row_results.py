"""One row on one rank: its placements measured, and what a record says of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bench.options.arrival import ArrivalPattern
from bench.run.case import Case
from bench.run.catalogue import Auto, Chosen, told_parameters
from bench.run.corewait import noted
from bench.run.entering import Entering
from bench.run.order import PlannedRow
from bench.run.paired import each
from bench.run.rows import Bench
from bench.run.sampler import Gauges
from bench.run.screen import Screen
from busbar.errors import Unsupported
from collectives.execution.transport import Transport
from collectives.execution.world import World
from collectives.schedule.dtypes import dtype
from collectives.schedule.ops import op
from reports.records.cores import Load
from reports.records.record import WORKSHARING, Result, Sample


class RowResults:
    """Makes the results of rows; every method is called by all ranks alike.

    ``crowd``: the ranks that have the fewest cores. ``failed``: a result was wrong, or what was
    counted while it ran was not what its schedule says.
    """

    def __init__(
        self,
        world: World,
        transport: Transport,
        baseline: Transport,
        bench: Bench,
        entering: Entering,
        gauges: Gauges,
        screen: Screen,
        environment: Mapping[str, Any],
        crowd: Load | None,
    ) -> None:
        self._world, self._transport, self._baseline = world, transport, baseline
        self._bench, self._entering, self._gauges = bench, entering, gauges
        self._screen, self._environment, self._crowd = screen, environment, crowd
        self.failed = False

    def through(self, chosen: Auto | Chosen) -> str:
        """The name of the transport that carries an algorithm."""
        return self._baseline.name if chosen.library else self._transport.name

    def result(self, work: PlannedRow, earlier: Sequence[Result]) -> Result:
        """Measure a row. ``earlier``: the results so far, for arrivals that go by them."""
        options, spec = work.job.options, work.job.spec
        wanted, line = work.chosen, work.line
        chosen = wanted.at(line.size)
        operation = op("max") if spec.idempotent else op(line.op) if spec.reduces else None
        schedule = chosen.schedule(line.root)
        case = Case(
            spec,
            schedule,
            dtype(line.dtype),
            operation,
            line.elements,
            line.root,
            worksharing=not (chosen.scheduled or chosen.library),
            reach=chosen.reach,
            nonblocking=chosen.nonblocking,
        )
        # A row that was slowed as was asked for is no time of ours.
        slower = self._bench.slower
        injected = {} if slower is None else {"injected": slower}
        halves: dict[str, Sample] = {}
        said: dict[str, dict[str, object]] = {}
        waits: dict[str, list[float]] = {}
        noise: dict[str, dict[str, object]] = {}
        overlaps: dict[str, dict[str, float]] = {}
        for placement in options.placements:
            self._bench.pace.begin()
            self._screen.advance(f"{wanted.label} {line.size} B {line.dtype} {line.op} {placement}")
            arrival = self._entering.at(work.arrival, line.size, earlier)
            halves[placement] = self._half(case, placement, chosen, arrival)
            said[placement] = dict((self._baseline if chosen.library else self._transport).said)
            if halves[placement].times and self._bench.noise:
                noise[placement] = self._bench.noise
            if halves[placement].times and (shares := self._waits()):
                waits[placement] = shares
            if halves[placement].times and case.nonblocking and self._bench.overlap:
                overlaps[placement] = self._bench.overlap.as_dict()
        return Result(
            collective=spec.name,
            algorithm=wanted.label,
            transport=self.through(chosen),
            ranks=self._world.size,
            size=line.size,
            count=line.count,
            dtype=line.dtype,
            op=line.op,
            root=line.shown_root,
            bus_factor=spec.bus_factor(self._world.size),
            alg_factor=spec.alg_factor(self._world.size),
            out=halves.get("out"),
            in_place=halves.get("in"),
            parameters=told_parameters(wanted, chosen, said, overlaps) | injected,
            environment=self._environment,
            schedule=chosen.digest(line.root),
            gpus=self._gauges.taken(),
            core_wait=waits,
            noise=noise,
            ranks_per_core=0.0 if self._crowd is None else self._crowd.per_core,
            worksharing=chosen.label == WORKSHARING,
        )

    def _waits(self) -> list[float]:
        """Each rank's share of waiting for a core in the last placement.

        Empty where it is no news.
        """
        crowded = self._crowd is not None and self._crowd.per_core > 1
        shares = [round(share, 3) for share in self._bench.core_waits]
        return shares if noted(shares) and not crowded else []

    def _half(self, case: Case, placement: str, chosen: Chosen, arrival: ArrivalPattern) -> Sample:
        try:
            begin = self._entering.begin(arrival)
            sample, wrong = self._bench.sample(case, placement == "in", begin)
        except Unsupported as error:  # this type on this library, say: the same on every rank
            return Sample(skipped=str(error))
        if wrong:
            self.failed = True
            self._screen.note(f"{chosen.label}: wrong result: {wrong}")
        if case.schedule is not None and sample.times:
            self._compare(chosen, case, sample)
        return each(sample, chosen.holds)

    def _compare(self, chosen: Chosen, case: Case, sample: Sample) -> None:
        """What was counted while running must be what the schedule says."""
        sent, received = chosen.traffic(case.elements, case.dtype.itemsize, case.root)
        if (sample.sent, sample.received) != (sent, received):
            self.failed = True
            self._screen.note(
                f"{chosen.label}: counted {sample.sent} bytes out and {sample.received} in on the"
                f" busiest rank, but the schedule says {sent} and {received}"
            )
