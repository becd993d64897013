"""A sweep on one rank: tables, rows, records, closing report. All ranks run the same code."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import count as forever
from itertools import groupby

import numpy as np

from bench.launch.line import Hotline
from bench.run.catalogue import Job
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
from bench.run.roofline import Rooflines
from bench.run.row_results import RowResults
from bench.run.rows import Bench
from bench.run.sampler import Gauges
from bench.run.screen import Screen
from bench.run.watchdog import Watchdog
from busbar.errors import RankFailure
from collectives.execution.transport import Transport
from collectives.execution.world import World
from reports.exports.nccl_table import footer
from reports.records.cores import Load
from reports.records.record import Result


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
        if (calls := baseline.library_executor) is not None and world.rank == 0:
            self._environment["library_executor"] = calls
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
        self._rows = RowResults(
            world,
            transport,
            baseline,
            self._bench,
            self._entering,
            self._gauges,
            self._screen,
            self._environment,
            crowd,
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
        return int(self._keeper.failed or self._rows.failed)

    def _noted(self, *remarks: str) -> None:
        """Say what there is to say on standard error."""
        for remark in filter(None, remarks):
            self._screen.note(f"busbar: {remark}")

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
        program = f"{self._spec.name} {chosen.label} ({self._rows.through(chosen)})"
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
        self._watch.row()
        if self._group is not None:
            self._group.together()
        return self._rows.result(work, self._keeper.results)

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
