"""One row on one rank: its placements measured, and what a record says of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bench.options.arrival import ArrivalPattern
from bench.run.case import Case
from bench.run.catalogue import BySize, Chosen, told_parameters
from bench.run.entering import Entering
from bench.run.noise import noted
from bench.run.opened import Opened
from bench.run.order import PlannedRow
from bench.run.paired import each
from bench.run.rows import Bench, Half
from bench.run.sampler import Gauges
from bench.run.screen import Screen
from busbar.errors import Unsupported
from collectives.execution.transport import Transport
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
        opened: Opened,
        bench: Bench,
        entering: Entering,
        gauges: Gauges,
        screen: Screen,
        environment: Mapping[str, Any],
        crowd: Load | None,
    ) -> None:
        self._opened, self._nranks = opened, opened.world.size
        self._bench, self._entering, self._gauges = bench, entering, gauges
        self._screen, self._environment, self._crowd = screen, environment, crowd
        self.failed = False

    def through(self, chosen: BySize | Chosen) -> str:
        """The names of what carries an algorithm: of one for each size all that it may take."""
        ones = chosen.every if isinstance(chosen, BySize) else [chosen]
        return ", ".join(dict.fromkeys(self._carrier(one).name for one in ones))

    def _carrier(self, chosen: Chosen) -> Transport:
        return self._opened.baseline if chosen.library else self._opened.transport

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
        injected = {} if work.slower is None else {"injected": work.slower}
        carrier = self._carrier(chosen)
        halves: dict[str, Half] = {}
        said: dict[str, dict[str, object]] = {}
        for placement in options.placements:
            self._bench.pace.begin()
            self._screen.advance(f"{wanted.label} {line.size} B {line.dtype} {line.op} {placement}")
            arrival = self._entering.at(work.arrival, line.size, earlier)
            halves[placement] = self._half(case, placement, work, chosen, arrival)
            said[placement] = dict(carrier.said)
        measured = {name: half for name, half in halves.items() if half.sample.times}
        waits = {name: self._waits(half) for name, half in measured.items()}
        overlaps = {name: one.as_dict() for name, h in measured.items() if (one := h.overlap)}
        return Result(
            collective=spec.name,
            algorithm=wanted.label,
            transport=carrier.name,
            ranks=self._nranks,
            size=line.size,
            count=line.count,
            dtype=line.dtype,
            op=line.op,
            root=line.shown_root,
            bus_factor=spec.bus_factor(self._nranks),
            alg_factor=spec.alg_factor(self._nranks),
            out=halves["out"].sample if "out" in halves else None,
            in_place=halves["in"].sample if "in" in halves else None,
            parameters=told_parameters(wanted, chosen, said, overlaps) | injected,
            environment=self._environment,
            schedule=chosen.digest(line.root),
            gpus=self._gauges.taken(),
            core_wait={name: shares for name, shares in waits.items() if shares},
            noise={name: dict(half.noise) for name, half in measured.items() if half.noise},
            ranks_per_core=0.0 if self._crowd is None else self._crowd.per_core,
            worksharing=chosen.label == WORKSHARING,
        )

    def _waits(self, half: Half) -> list[float]:
        """Each rank's share of waiting for a core; empty where it is no news."""
        crowded = self._crowd is not None and self._crowd.per_core > 1
        shares = [round(share, 3) for share in half.waits]
        return shares if noted(shares) and not crowded else []

    def _half(
        self,
        case: Case,
        placement: str,
        work: PlannedRow,
        chosen: Chosen,
        arrival: ArrivalPattern,
    ) -> Half:
        try:
            how = self._entering.begin(arrival, work.slower)
            half = self._bench.sample(case, placement == "in", how)
        except Unsupported as error:  # this type on this library, say: the same on every rank
            return Half(Sample(skipped=str(error)))
        if half.complaint:
            self.failed = True
            self._screen.note(f"{chosen.label}: wrong result: {half.complaint}")
        if case.schedule is not None and half.sample.times:
            self._compare(chosen, case, half.sample)
        return half._replace(sample=each(half.sample, chosen.holds))

    def _compare(self, chosen: Chosen, case: Case, sample: Sample) -> None:
        """What was counted while running must be what the schedule says."""
        sent, received = chosen.traffic(case.elements, case.dtype.itemsize, case.root)
        if (sample.sent, sample.received) != (sent, received):
            self.failed = True
            self._screen.note(
                f"{chosen.label}: counted {sample.sent} bytes out and {sample.received} in on the"
                f" busiest rank, but the schedule says {sent} and {received}"
            )
