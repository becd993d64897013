"""A sweep on one rank: tables, rows, records, closing report. All ranks run the same code."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import count as forever
from itertools import groupby

import numpy as np

from bench.launch.line import Hotline
from bench.options.arrival import ArrivalPattern
from bench.run.case import Case
from bench.run.catalogue import Auto, Chosen, Job, told_parameters
from bench.run.corewait import noted
from bench.run.entering import Entering
from bench.run.environment import describe, place
from bench.run.groups import Group
from bench.run.keeping import Keeper, cautions, closing
from bench.run.layout import layout
from bench.run.lines import People, banner, remarks, shown
from bench.run.measure import Timing
from bench.run.memory import Room
from bench.run.noise import not_quiet
from bench.run.order import PlannedRow, all_work, order, planned
from bench.run.paired import each
from bench.run.roofline import Rooflines
from bench.run.rows import Bench
from bench.run.sampler import Gauges
from bench.run.screen import Screen
from bench.run.watchdog import Watchdog
from busbar.errors import RankFailure, Unsupported
from collectives.execution.transport import Transport
from collectives.execution.world import World
from collectives.schedule.dtypes import dtype
from collectives.schedule.ops import op
from reports.exports.nccl_table import footer
from reports.records.cores import Load
from reports.records.record import WORKSHARING, Result, Sample


class Session:
    """Everything one run needs on one rank. Raises Unsupported where the options do not fit it."""

    def __init__(
        self,
        world: World,
        transport: Transport,
        baseline: Transport,
        library: str,
        jobs: Sequence[Job],
        line: Hotline,
        crowd: Load | None = None,
        group: Group | None = None,
    ) -> None:
        """``baseline``: the transport whose library is compared with.

        ``jobs``: one or more; files, time-out and timing are those of the first one's options.
        ``line``: to whoever started the run. ``crowd``: the ranks that have the fewest cores, of
        all groups. ``group``: which of several this is.
        """
        self._group, self._crowd = group, crowd
        self._world, self._jobs = world, jobs
        self._transport, self._baseline = transport, baseline
        self._spec, self._options = jobs[0].spec, jobs[0].options
        options = self._options
        self._screen = Screen(world.rank) if group is None else group.screen
        self._status = 0
        self._layout = layout(options)
        self._listed = False  # whether a table has the list of ranks
        self._keeper = Keeper(world, self._screen, options, line)
        places = world.gather(place(world, transport))
        self._people = People.of(places)
        self._library = library
        # Only rank 0 writes records.
        self._environment = describe(library, world, transport, places) if world.rank == 0 else {}
        if group is not None:
            self._environment["group"] = group.facts
        if options.launch is not None:
            self._environment["launch"] = options.launch.facts
        self._entering = Entering(world, transport, options)
        self._environment |= {"clock": facts} if (facts := self._entering.facts()) else {}
        self._watch = Watchdog(world, options.timeout, self.stop, line, self._screen.tick)
        rules = Timing(
            options.warmup,
            options.iterations,
            options.budget,
            options.timing,
            options.across,
            options.per_rank,
            settle=options.settle,
        )
        self._rooflines = Rooflines(world, transport, options.limit != "none")
        self._gauges = Gauges(
            world,
            transport,
            energy=options.energy,
            rest=options.energy or options.iterations is None,
        )
        room = Room(world, transport, 1.0 if group is None else group.part)
        self._pace = planned(jobs, world, room)
        self._bench = Bench(
            world,
            transport,
            baseline,
            rules,
            self._watch,
            check=options.check,
            room=room,
            rooflines=self._rooflines,
            gauges=self._gauges,
            pace=self._pace,
        )

    # -- the sweep

    def run(self) -> int:
        """The whole run; gives the exit status."""
        options = self._options
        work = all_work(self._jobs, self._world.size)
        cycles = range(options.cycles) if options.cycles else forever()
        each = len(work) * len(options.placements)
        self._screen.start(each * max(1, options.cycles), self._pace)
        if options.wait_quiet is not None:
            self._noted(not_quiet(self._world, options.wait_quiet))
        try:
            # In place a sum grows from one iteration to the next; only the proof's result counts.
            with np.errstate(all="ignore"):
                for cycle in cycles:
                    self._cycle(work, cycle)
        except RankFailure as error:
            reason = str(error)
            self._keeper.end(lambda: self._early(reason))
            raise
        finally:
            self._screen.close()
            self._watch.close()
            self._gauges.close()
        self._noted(self._rooflines.why, self._gauges.why)
        self._keeper.end(self._closing)
        self._noted(*(cautions(self._keeper.results) if self._world.rank == 0 else ()))
        return 1 if self._keeper.failed else self._status

    def _noted(self, *remarks: str) -> None:
        """Say what there is to say on standard error."""
        for remark in filter(None, remarks):
            self._screen.note(f"busbar: {remark}")

    def _through(self, chosen: Auto | Chosen) -> str:
        """The name of the transport that carries an algorithm."""
        return self._baseline.name if chosen.library else self._transport.name

    def _cycle(self, work: Sequence[PlannedRow], cycle: int) -> None:
        """All tables: row by row; of a launch, whose order is drawn, when all rows are on disk."""
        done: dict[int, Result] = {}
        if self._options.inject:
            self._bench.slower = self._options.inject[cycle % len(self._options.inject)]
        if self._options.launch is not None:
            for at in order(self._options, len(work), cycle):
                done[at] = self._measured(work[at])
                self._keeper.row(done[at], ())
        for _, numbered in groupby(enumerate(work), lambda one: one[1].table):
            table = list(numbered)
            first = table[0][1]
            self._spec, self._options = first.job.spec, first.job.options
            if done:
                self._table(first, [done[at] for at, _ in table], self._again)
            else:
                self._table(first, (self._measured(w) for _, w in table), self._keeper.row)

    def _again(self, _: Result, lines: Sequence[str]) -> None:
        """Print a row that is on disk already."""
        self._keeper.say(lines)

    def _table(
        self,
        first: PlannedRow,
        results: Iterable[Result],
        kept: Callable[[Result, Sequence[str]], None],
    ) -> None:
        options, chosen = self._options, first.chosen
        program = f"{self._spec.name} {chosen.label} ({self._through(chosen)})"
        top = banner(program, options, self._library, self._people, self._group, self._listed)
        said = remarks(self._group, self._crowd, self._world.size, self._transport)
        said += self._entering.remarks(first.arrival)
        self._keeper.say([f"# {remark}" for remark in said])
        self._listed = True
        self._keeper.say(self._layout.header(top))
        lines = []
        for result in results:
            kept(result, shown(result, self._layout))
            lines.append(result)
        self._keeper.say(footer(lines, program, options.statistic))

    def _measured(self, work: PlannedRow) -> Result:
        self._spec, self._options = work.job.spec, work.job.options
        self._watch.row()
        if self._group is not None:
            self._group.together()
        return self._row(work)

    def _row(self, work: PlannedRow) -> Result:
        options, spec = self._options, self._spec
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
        halves: dict[str, Sample] = {}
        said: dict[str, dict[str, object]] = {}
        waits: dict[str, list[float]] = {}
        noise: dict[str, dict[str, object]] = {}
        overlaps: dict[str, dict[str, float]] = {}
        for placement in options.placements:
            self._pace.begin()
            self._screen.advance(f"{wanted.label} {line.size} B {line.dtype} {line.op} {placement}")
            arrival = self._entering.at(work.arrival, line.size, self._keeper.results)
            halves[placement] = self._half(case, placement, chosen, arrival)
            said[placement] = self._said(chosen)
            if halves[placement].times and self._bench.noise:
                noise[placement] = self._bench.noise
            if halves[placement].times and (shares := self._waits()):
                waits[placement] = shares
            if halves[placement].times and case.nonblocking and self._bench.overlap:
                overlaps[placement] = self._bench.overlap.as_dict()
        return Result(
            collective=spec.name,
            algorithm=wanted.label,
            transport=self._through(chosen),
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
            parameters=told_parameters(wanted, chosen, said, overlaps) | self._injected(),
            environment=self._environment,
            schedule=chosen.digest(line.root),
            gpus=self._gauges.taken(),
            core_wait=waits,
            noise=noise,
            ranks_per_core=0.0 if self._crowd is None else self._crowd.per_core,
            worksharing=chosen.label == WORKSHARING,
        )

    def _injected(self) -> dict[str, object]:
        """By how much the row was slowed, where that was asked for: it is no time of ours then."""
        return {} if self._bench.slower is None else {"injected": self._bench.slower}

    def _said(self, chosen: Chosen) -> dict[str, object]:
        """What the transport says of the placement that it has just run: what a library chose."""
        return dict((self._baseline if chosen.library else self._transport).said)

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
            self._status = 1
            self._screen.note(f"{chosen.label}: wrong result: {wrong}")
        if case.schedule is not None and sample.times:
            self._compare(chosen, case, sample)
        return each(sample, chosen.holds)

    def _compare(self, chosen: Chosen, case: Case, sample: Sample) -> None:
        """What was counted while running must be what the schedule says."""
        sent, received = chosen.traffic(case.elements, case.dtype.itemsize, case.root)
        if (sample.sent, sample.received) != (sent, received):
            self._status = 1
            self._screen.note(
                f"{chosen.label}: counted {sample.sent} bytes out and {sample.received} in on the"
                f" busiest rank, but the schedule says {sent} and {received}"
            )

    # -- reporting

    def _closing(self) -> list[str]:
        if self._world.rank != 0:
            return []  # nobody would print it
        return closing(self._keeper.results, self._options.statistic)

    def _early(self, reason: str) -> list[str]:
        """The closing report of a run that did not come to its end."""
        return [f"# ended early: {reason}", *self._closing()]

    def stop(self, reason: str, aloud: bool) -> None:
        """The report so far, when the run is ended from outside. Called by the watching thread.

        ``aloud``: the reason is also said on standard error, and by nobody else.
        """
        self._keeper.end(lambda: self._early(reason), reason if aloud else "")
