"""A sweep on one rank: tables, rows, records, closing report. All ranks run the same code.

A sweep is the rows of all sizes and algorithms of a command.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count as forever
from itertools import groupby
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from bench.options.arrival import ArrivalPattern
from bench.options.options import RunOptions
from bench.run.contenders import Contender, Job, SizeDependentContender, each
from bench.run.data import describe_checks
from bench.run.environment import RunContext, describe, place
from bench.run.memory import Room
from bench.run.noise import not_quiet, noted
from bench.run.pace import Pace, PlannedRow, all_work, order, planned
from bench.run.recorder import Recorder, closing, closing_sentences, kept_in, repeated, so_far
from bench.run.roofline import Rooflines
from bench.run.rows import Bench, Case
from bench.run.sampler import Gauges
from bench.run.screen import Group, Screen
from bench.run.table_text import RankSummary, alternating, banner, layout, remarks, shown
from bench.run.watchdog import StoppedNeighbour, Watchdog
from bench.timing.measure import Timing
from bench.timing.starts import StartSync
from busbar.errors import RankFailure, Unsupported
from busbar.files import has_content
from busbar.status import EARLY, FOUND, TOTAL_OVER
from busbar.units import format_duration
from collectives.execution.transport import Transport
from collectives.schedule.dtypes import dtype
from collectives.schedule.ops import op
from reports.exports.run_table import footer
from reports.readers.codec import run_of
from reports.records.cores import Load
from reports.records.measurement import WORKSHARING, Placements, Record, Run
from reports.records.metrics import row_name
from reports.records.table import measured


class RunSession:
    """Shared by all kinds of runs, on one rank: screen, records, and a watchdog for the rows.

    ``screen``: of this rank, or of its group. All ranks create one together, and call its methods
    together.
    """

    def __init__(
        self,
        opened: RunContext,
        options: RunOptions,
        screen: Screen | None = None,
    ) -> None:
        world = opened.world
        self._opened, self._world, self._run_options = opened, world, options
        self._screen = screen or Screen(world.rank)
        after = options.after
        # Of several launches the first says its time; a quiet run says that of all launches alone.
        self._says_time = after is None or not (options.quiet or has_content(after))
        brief = None
        if options.quiet and not options.json:
            brief = partial(closing_sentences, statistic=options.statistic, more=repeated(options))
        self._keeper = Recorder(world, self._screen, options, opened.line, sentences=brief)
        places = world.collect(place(world, opened.transport))
        self._people = RankSummary.of(places)
        #: The environment of the records, which only rank 0 writes.
        self._environment = (
            describe(opened.library, world, opened.transport, places) if world.rank == 0 else {}
        )
        if world.rank == 0 and options.recorded:
            self._environment["options"] = options.recorded
        self._watch: Watchdog

    def _start_watch(self) -> None:
        """Start the watchdog, after everything that may refuse the options has been created."""
        tick = StoppedNeighbour(self._opened, self.stop).beside(self._screen.tick)
        timeout, line = self._run_options.timeout, self._opened.line
        self._watch = Watchdog(self._world, timeout, self.stop, line, tick)

    def _noted(self, *remarks: str) -> None:
        """Print the remarks that are not empty on standard error."""
        for remark in filter(None, remarks):
            self._screen.note(f"busbar: {remark}")

    def _start_screen(self, rows: int, pace: Pace, *, endless: bool = False) -> None:
        """Print how long ``rows`` rows and placements may take, and show progress."""
        quiet = self._run_options.quiet
        self._screen.start(rows, pace, endless=endless, limit=self._says_time, progress=not quiet)

    def _wait_until_quiet(self) -> None:
        """With --wait-quiet, wait until other programs leave the cores. All ranks call this."""
        seconds = self._run_options.wait_quiet
        if seconds is not None:
            most = format_duration(seconds)
            if self._says_time or not self._run_options.quiet:
                self._noted(f"waiting until other programs leave the cores, {most} at most")
            self._noted(not_quiet(self._world, seconds))

    def _measure_rows(self, measure: Callable[[], object]) -> None:
        """Measure all rows. If a rank is lost, the results so far are reported first."""
        try:
            measure()
        except RankFailure as error:
            self._end_early(str(error))
            raise
        finally:
            self._screen.close()
            self._watch.close()

    def _closing(self) -> list[str]:
        """The closing report, also of a run that ends early."""
        return []

    def _so_far(self) -> list[str]:
        """What was measured of all that was planned, for a run that ends early."""
        return []

    def _end_early(self, reason: str, spoken: str | None = None) -> None:
        self._keeper.end(self._closing, spoken, lambda: [f"{EARLY} {reason}", *self._so_far()])

    def stop(self, reason: str, aloud: bool) -> None:
        """Report the results so far when the run is ended from outside. The watchdog calls this.

        ``aloud``: also print the reason on standard error; if False, another process prints it.
        """
        self._end_early(reason, f"{reason}{kept_in(self._run_options)}" if aloud else "")


class Session(RunSession):
    """A sweep on one rank. Raises Unsupported if the options do not fit the ranks."""

    def __init__(
        self,
        opened: RunContext,
        jobs: Sequence[Job],
        crowd: Load | None = None,
        group: Group | None = None,
    ) -> None:
        """``jobs``: one or more; the first one's options apply to files, time-out and timing.

        ``crowd``: ranks and cores where ranks share cores most, in all groups. ``group``: this
        rank's group with ``--split``.
        """
        world, transport = opened.world, opened.transport
        if jobs[0].options.check.timed and transport.on_gpu:
            raise Unsupported(
                "--check timed compares results in host memory; on GPUs -c N checks N more"
                " iterations after the timed ones"
            )
        self._jobs, self._group, self._crowd = jobs, group, crowd
        self._options = options = jobs[0].options
        self._layout = layout(options)
        self._listed = False  # whether a table has the list of ranks
        self._work = all_work(jobs, world.size)
        # Tables whose rows are measured, but not printed yet: heading, and rows by place.
        self._held: list[_HeldTable] = []
        super().__init__(opened, options, None if group is None else group.screen)
        self._entering = StartSync(world, transport, options)
        known = {
            "group": None if group is None else group.facts,
            "library_executor": opened.baseline.library_executor,
            "launch": None if options.launch is None else options.launch.facts,
            "clock": self._entering.facts() or None,
        }
        self._environment |= {name: value for name, value in known.items() if value is not None}
        self._start_watch()
        how = (options.timing, options.across, options.per_rank)
        rules = Timing(
            options.warmup, options.iterations, options.budget, *how, settle=options.settle
        )
        self._rooflines = Rooflines(world, transport, options.limit != "none")
        rest = options.energy or options.iterations is None
        self._gauges = Gauges(world, transport, energy=options.energy, rest=rest)
        room = Room(world, transport, 1.0 if group is None else group.part)
        self._pace = planned(jobs, world, room)
        self._bench = Bench(
            opened,
            rules,
            self._watch.arrived,
            check=options.check,
            room=room,
            rooflines=self._rooflines,
            gauges=self._gauges,
            pace=self._pace,
            follow=self._watch.follow,
        )
        self._run: Run | None = None
        # True if a result was wrong, or if bytes counted during the run differ from the schedule.
        self._wrong = False

    # -- the sweep

    def run(self) -> int:
        """Run the whole sweep. Returns the exit status."""
        options = self._options
        cycles = range(options.cycles) if options.cycles else forever()

        def sweep() -> None:
            with contextlib.suppress(_TotalIsOver):
                for cycle in cycles:
                    self._cycle(cycle)
                return
            self._end_early(TOTAL_OVER)
            self._noted(TOTAL_OVER)  # also for a launch whose standard output is left out

        each = len(self._work) * len(options.placements)
        self._wait_until_quiet()
        self._start_screen(each * max(1, options.cycles), self._pace, endless=not options.cycles)
        # In place, a sum grows with every iteration, so overflow is ignored; only checks count.
        with contextlib.closing(self._gauges), np.errstate(all="ignore"):
            self._measure_rows(sweep)
        self._noted(self._rooflines.why, self._gauges.why)
        self._keeper.end(self._closing)
        if self._world.rank == 0:
            from reports.analysis.cautions import in_brief  # not before the first row

            if options.after is None or not options.quiet:  # else it is said of all launches
                self._noted(*in_brief(self._keeper.results))
            reasons = [one.skipped for one in self._keeper.results]
            if reasons and all(reasons):
                self._noted(f"every row was skipped, the first because {reasons[0]}")
                return FOUND
        return int(self._keeper.failed or self._wrong)

    def _cycle(self, cycle: int) -> None:
        """Measure and print all tables; in another order than theirs, after the last row."""
        options, work = self._options, self._work
        tables = [list(t) for _, t in groupby(range(len(work)), lambda at: work[at].table)]
        if options.launch is None and options.order == "algorithm":
            for table in tables:
                self._check_total()
                self._keeper.say(self._heading(work[table[0]]))
                explained = set[str]()
                results = [self._row(work[at], explained) for at in table]
                self._keeper.say(self._footer(work[table[0]], results))
            return
        for table in tables:
            first = work[table[0]]
            self._held.append(_HeldTable(first, self._heading(first), dict.fromkeys(table)))
        table_of = {at: held.rows for held in self._held for at in held.rows}
        for at in order(options, work, cycle):
            result = self._measured(work[at])
            self._keeper.row(result.every, ())
            table_of[at][at] = result
        lines = self._held_lines()
        # Before they are printed: a run that is ended meanwhile would print them once more.
        self._held.clear()
        self._keeper.say(lines)

    def _row(self, work: PlannedRow, explained: set[str]) -> Placements:
        """Measure, keep and print a row; ``explained``: see `shown`."""
        result = self._measured(work)
        self._keeper.row(result.every, shown(result, self._layout, explained))
        return result

    def _held_lines(self) -> list[str]:
        """The lines of the tables that are not printed yet, with the rows measured so far."""
        lines = list[str]()
        for held in self._held:
            results = [one for one in held.rows.values() if one is not None]
            if results:
                lines += held.heading
                explained = set[str]()
                for one in results:
                    lines += shown(one, self._layout, explained)
                lines += self._footer(held.first, results)
        return lines

    def _program(self, first: PlannedRow) -> str:
        through = self._through(first.chosen)
        return f"{first.job.spec.name} {first.chosen.label} ({through})"

    def _footer(self, first: PlannedRow, results: Sequence[Placements]) -> list[str]:
        """The lines below a table's rows."""
        measured = [one for result in results for one in result.every]
        return footer(measured, self._program(first), first.job.options.statistic)

    def _heading(self, first: PlannedRow) -> list[str]:
        """The lines above a table's rows. All ranks call this together."""
        options, program = first.job.options, self._program(first)
        library = self._opened.library
        graph = bool(self._opened.transport.facts.get("graph"))
        top = banner(program, options, library, self._people, self._group, self._listed, graph)
        over = self._through(first.chosen).replace("+", ", ").split(", ")
        level = self._world.threads() if "mpi" in over else None
        transport = self._opened.transport
        texts = remarks(self._group, self._crowd, self._world.size, transport, level, library)
        texts += [] if self._listed else alternating(self._world.nodes)
        texts += self._entering.remarks(first.arrival)
        checked = describe_checks(options.check)
        texts += [checked] if checked and not self._listed else []
        self._listed = True
        return [*(f"# {remark}" for remark in texts), *self._layout.header(top)]

    def _measured(self, work: PlannedRow) -> Placements:
        self._check_total()
        self._watch.row(_name(work, work.job.options.placements[0]))
        if self._group is not None and self._group.together is not None:
            self._group.together.barrier()
        return self._result(work)

    def _check_total(self) -> None:
        """Raise _TotalIsOver on all ranks if it is, by rank 0's clock. All call this together."""
        if self._options.total is None:
            return
        together = None if self._group is None else self._group.together
        if (together or self._world).broadcast(self._pace.is_over()):
            raise _TotalIsOver

    # -- a row

    def _through(self, chosen: SizeDependentContender | Contender) -> str:
        """The names of the transports that carry an algorithm, for all sizes."""
        ones = chosen.every if isinstance(chosen, SizeDependentContender) else [chosen]
        return ", ".join(dict.fromkeys(self._carrier(one).name for one in ones))

    def _carrier(self, chosen: Contender) -> Transport:
        return self._opened.baseline if chosen.library else self._opened.transport

    def _result(self, work: PlannedRow) -> Placements:
        """Measure all placements of a row."""
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
            "ranks": self._world.size,
            "size": line.size,
            "count": line.count,
            "dtype": line.dtype,
            "op": line.op,
            "root": line.shown_root,
            "bus_factor": spec.bus_factor(self._world.size),
            "alg_factor": spec.alg_factor(self._world.size),
            "parameters": dict(chosen.parameters),
            "chosen_algorithm": "" if wanted.label == chosen.label else chosen.label,
            # Marks a row that was slowed on purpose, whose time is not a measurement.
            "injected": work.slower,
            "schedule": chosen.digest(line.root),
            "ranks_per_core": None if self._crowd is None else self._crowd.per_core,
            "worksharing": chosen.label == WORKSHARING,
        }
        pair = Placements()
        for placement in options.placements:
            self._bench.pace.begin()
            self._screen.advance(f"{wanted.label} {line.size} B {line.dtype} {line.op} {placement}")
            what = replace(Record(), **blank, placement=placement)
            arrival = self._entering.at(work.arrival, what, self._keeper.results)
            self._watch.measuring(_name(work, placement))
            in_place = placement == "in"
            record = self._measure_placement(case, in_place, work, chosen, arrival)
            record = replace(
                record, **blank, placement=placement, library_facts=dict(carrier.action_facts)
            )
            one = measured(record, self._run_of(spec.name))
            pair = pair._replace(in_place=one) if in_place else pair._replace(out=one)
        return pair

    def _run_of(self, collective: str) -> Run:
        """The run of all rows, named after the first row's collective."""
        if self._run is None:
            self._run = run_of(self._environment, collective)
        return self._run

    def _measure_placement(
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
            self._wrong = True
            self._screen.note(f"{chosen.label}: wrong result: {self._bench.complaint}")
        if case.schedule is not None and record.times_s:
            self._compare(chosen, case, record)
        crowded = self._crowd is not None and self._crowd.per_core > 1
        shares = tuple(round(share, 3) for share in record.core_wait)
        # Left out if ranks share cores anyway.
        waits = shares if noted(shares) and not crowded else ()
        return replace(each(record, chosen.holds), core_wait=waits)

    def _compare(self, chosen: Contender, case: Case, record: Record) -> None:
        """Check that the bytes counted during the run are those of the schedule."""
        sent, received = chosen.traffic(case.elements, case.dtype.itemsize, case.root)
        if (record.sent_bytes, record.received_bytes) != (sent, received):
            self._wrong = True
            self._screen.note(
                f"{chosen.label}: counted {record.sent_bytes} bytes out and"
                f" {record.received_bytes} in on the busiest rank, but the schedule says {sent}"
                f" and {received}"
            )

    # -- reporting

    def _closing(self) -> list[str]:
        if self._world.rank != 0:
            return []  # only rank 0 prints it
        held = self._held_lines()
        options = self._options
        return [*held, *closing(self._keeper.results, options.statistic, more=repeated(options))]

    def _so_far(self) -> list[str]:
        if self._world.rank != 0 or not self._options.cycles:
            return []
        names = [row.chosen.label for row in self._work] * self._options.cycles
        return so_far(self._keeper.results, names, by_size=self._options.order == "size")


class _TotalIsOver(Exception):
    """Raised on all ranks before a row for which ``--total`` leaves no time."""


class _HeldTable(NamedTuple):
    """A table to be printed later. ``rows``: its rows by place in the plan; None: not measured."""

    first: PlannedRow
    heading: list[str]
    rows: dict[int, Placements | None]


def _name(work: PlannedRow, placement: str) -> str:
    """What a placement of a row measures in a few words."""
    return row_name(work.job.spec.name, work.chosen.label, work.line.size, placement)
