"""One row on one rank: its placements measured, and what a record says of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from bench.options.arrival import ArrivalPattern
from bench.run.case import Case
from bench.run.contenders import Contender, SizeDependentContender
from bench.run.context import RunContext
from bench.run.noise import noted
from bench.run.pace import PlannedRow
from bench.run.pt2pt import each
from bench.run.rows import Bench
from bench.run.sampler import Gauges
from bench.run.screen import Screen
from bench.run.start_sync import StartSync
from busbar.errors import Unsupported
from collectives.execution.transport import Transport
from collectives.schedule.dtypes import dtype
from collectives.schedule.ops import op
from reports.readers.codec import run_of
from reports.records.cores import Load
from reports.records.measurement import WORKSHARING, Measurement, Placements, Record, Run
from reports.records.table import measured


class RowResults:
    """Makes the results of rows; every method is called by all ranks alike.

    ``crowd``: the ranks that have the fewest cores. ``failed``: a result was wrong, or what was
    counted while it ran was not what its schedule says.
    """

    def __init__(
        self,
        opened: RunContext,
        bench: Bench,
        entering: StartSync,
        gauges: Gauges,
        screen: Screen,
        environment: Mapping[str, Any],
        crowd: Load | None,
    ) -> None:
        self._opened, self._nranks = opened, opened.world.size
        self._bench, self._entering, self._gauges = bench, entering, gauges
        self._screen, self._environment, self._crowd = screen, environment, crowd
        self._of_all: Run | None = None
        self.failed = False

    def through(self, chosen: SizeDependentContender | Contender) -> str:
        """The names of what carries an algorithm: of one for each size all that it may take."""
        ones = chosen.every if isinstance(chosen, SizeDependentContender) else [chosen]
        return ", ".join(dict.fromkeys(self._carrier(one).name for one in ones))

    def _carrier(self, chosen: Contender) -> Transport:
        return self._opened.baseline if chosen.library else self._opened.transport

    def result(self, work: PlannedRow, earlier: Sequence[Measurement]) -> Placements:
        """Measure a row. ``earlier``: the rows so far, for arrivals that go by them."""
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
        carrier = self._carrier(chosen)
        blank = {
            "collective": spec.name,
            "algorithm": wanted.label,
            "transport": carrier.name,
            "ranks": self._nranks,
            "size": line.size,
            "count": line.count,
            "dtype": line.dtype,
            "op": line.op,
            "root": line.shown_root,
            "bus_factor": spec.bus_factor(self._nranks),
            "alg_factor": spec.alg_factor(self._nranks),
            "parameters": dict(chosen.parameters),
            "chosen_algorithm": "" if wanted.label == chosen.label else chosen.label,
            # A row that was slowed as was asked for is no time of ours.
            "injected": work.slower,
            "schedule": chosen.digest(line.root),
            "ranks_per_core": None if self._crowd is None else self._crowd.per_core,
            "worksharing": chosen.label == WORKSHARING,
        }
        pair = Placements()
        for placement in options.placements:
            self._bench.pace.begin()
            self._screen.advance(f"{wanted.label} {line.size} B {line.dtype} {line.op} {placement}")
            arrival = self._entering.at(work.arrival, line.size, earlier)
            in_place = placement == "in"
            record = self._measure(case, in_place, work, chosen, arrival)
            record = replace(
                record, **blank, placement=placement, library_facts=dict(carrier.action_facts)
            )
            one = measured(record, self._run(spec.name))
            pair = pair._replace(in_place=one) if in_place else pair._replace(out=one)
        return pair

    def _run(self, collective: str) -> Run:
        """The run of all rows, which is named after the first one's collective."""
        if self._of_all is None:
            self._of_all = run_of(self._environment, collective)
        return self._of_all

    def _measure(
        self,
        case: Case,
        in_place: bool,
        work: PlannedRow,
        chosen: Contender,
        arrival: ArrivalPattern,
    ) -> Record:
        try:
            how = self._entering.begin(arrival, work.slower)
            record = self._bench.measure(case, in_place, how)
        except Unsupported as error:  # this type on this library, say: the same on every rank
            return Record(skipped=str(error))
        if self._bench.complaint:
            self.failed = True
            self._screen.note(f"{chosen.label}: wrong result: {self._bench.complaint}")
        if case.schedule is not None and record.times_s:
            self._compare(chosen, case, record)
        crowded = self._crowd is not None and self._crowd.per_core > 1
        shares = tuple(round(share, 3) for share in record.core_wait)
        # No news where ranks share cores anyway.
        waits = shares if noted(shares) and not crowded else ()
        return replace(each(record, chosen.holds), core_wait=waits)

    def _compare(self, chosen: Contender, case: Case, record: Record) -> None:
        """What was counted while running must be what the schedule says."""
        sent, received = chosen.traffic(case.elements, case.dtype.itemsize, case.root)
        if (record.sent_bytes, record.received_bytes) != (sent, received):
            self.failed = True
            self._screen.note(
                f"{chosen.label}: counted {record.sent_bytes} bytes out and"
                f" {record.received_bytes} in on the busiest rank, but the schedule says {sent}"
                f" and {received}"
            )
