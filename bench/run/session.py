"""A sweep on one rank: tables, rows, records, closing report. All ranks run the same code."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import count as forever
from itertools import groupby
from typing import Any

import numpy as np

from bench.run.contenders import Job
from bench.run.context import RunContext
from bench.run.environment import describe, place
from bench.run.groups import Group
from bench.run.layout import layout
from bench.run.memory import Room
from bench.run.noise import not_quiet
from bench.run.pace import PlannedRow, all_work, order, planned
from bench.run.proof import remark as check_remark
from bench.run.recorder import Recorder, closing, closing_sentences
from bench.run.roofline import Rooflines
from bench.run.row_results import RowResults
from bench.run.rows import Bench
from bench.run.sampler import Gauges
from bench.run.screen import Screen
from bench.run.start_sync import StartSync
from bench.run.stopped_neighbour import StoppedNeighbour
from bench.run.table_text import RankSummary, banner, remarks, shown
from bench.run.watchdog import Watchdog
from bench.timing.measure import Timing
from busbar.errors import RankFailure, Unsupported
from reports.exports.run_table import footer
from reports.records.cores import Load
from reports.records.measurement import Placements


class Session:
    """Everything one run needs on one rank. Raises Unsupported where the options do not fit it."""

    def __init__(
        self,
        opened: RunContext,
        jobs: Sequence[Job],
        crowd: Load | None = None,
        group: Group | None = None,
    ) -> None:
        """``jobs``: one or more; files, time-out and timing are those of the first one's options.

        ``crowd``: the ranks that have the fewest cores, of all groups. ``group``: which of several
        this is.
        """
        world, transport = opened.world, opened.transport
        if jobs[0].options.check.timed and transport.on_gpu:
            raise Unsupported(
                "--check timed compares results in host memory; on GPUs -c N checks N more"
                " iterations after the timed ones"
            )
        self._opened, self._world, self._jobs = opened, world, jobs
        self._group, self._crowd = group, crowd
        self._options = options = jobs[0].options
        self._screen = Screen(world.rank) if group is None else group.screen
        self._layout = layout(options)
        self._listed = False  # whether a table has the list of ranks
        brief = partial(closing_sentences, statistic=options.statistic) if options.quiet else None
        self._keeper = Recorder(world, self._screen, options, opened.line, sentences=brief)
        places = world.gather(place(world, transport))
        self._people = RankSummary.of(places)
        self._entering = StartSync(world, transport, options)
        environment = self._environment(places) if world.rank == 0 else {}
        tick = StoppedNeighbour(opened, self.stop).beside(self._screen.tick)
        self._watch = Watchdog(world, options.timeout, self.stop, opened.line, tick)
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
        self._rows = RowResults(
            opened, self._bench, self._entering, self._gauges, self._screen, environment, crowd
        )

    def _environment(self, places: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """The environment of the records, which only rank 0 writes."""
        opened, launch, group = self._opened, self._options.launch, self._group
        known = {
            "group": None if group is None else group.facts,
            "library_executor": opened.baseline.library_executor,
            "launch": None if launch is None else launch.facts,
            "clock": self._entering.facts() or None,
        }
        facts = describe(opened.library, opened.world, opened.transport, places)
        return facts | {name: value for name, value in known.items() if value is not None}

    # -- the sweep

    def run(self) -> int:
        """The whole run; gives the exit status."""
        options = self._options
        work = all_work(self._jobs, self._world.size)
        cycles = range(options.cycles) if options.cycles else forever()
        each = len(work) * len(options.placements)
        self._screen.start(each * max(1, options.cycles), self._pace, endless=not options.cycles)
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
        if self._world.rank == 0:
            from reports.analysis.cautions import in_brief  # not before the first row

            self._noted(*in_brief(self._keeper.results))
        return int(self._keeper.failed or self._rows.failed)

    def _noted(self, *remarks: str) -> None:
        """Say what there is to say on standard error."""
        for remark in filter(None, remarks):
            self._screen.note(f"busbar: {remark}")

    def _cycle(self, work: Sequence[PlannedRow], cycle: int) -> None:
        """All tables: row by row; of a launch, whose order is drawn, when all rows are on disk."""
        options = self._options
        done: dict[int, Placements] = {}
        if options.launch is not None:
            for at in order(options, work, cycle):
                done[at] = self._measured(work[at])
                self._keeper.row(done[at].every, ())
        for _, numbered in groupby(enumerate(work), lambda one: one[1].table):
            table = list(numbered)
            results = (done.get(at) or self._measured(row) for at, row in table)
            self._table(table[0][1], results, kept=bool(done))

    def _table(self, first: PlannedRow, results: Iterable[Placements], *, kept: bool) -> None:
        """A table; ``kept``: its rows are on disk already."""
        options, chosen = first.job.options, first.chosen
        through = self._rows.through(chosen)
        program = f"{first.job.spec.name} {chosen.label} ({through})"
        library = self._opened.library
        graph = bool(self._opened.transport.facts.get("graph"))
        top = banner(program, options, library, self._people, self._group, self._listed, graph)
        over = through.replace("+", ", ").split(", ")
        level = self._world.threads() if "mpi" in over else None
        transport = self._opened.transport
        texts = remarks(self._group, self._crowd, self._world.size, transport, level, library)
        texts += self._entering.remarks(first.arrival)
        checked = check_remark(options.check)
        texts += [checked] if checked and not self._listed else []
        self._keeper.say([f"# {remark}" for remark in texts])
        self._listed = True
        self._keeper.say(self._layout.header(top))
        measured = []
        for result in results:
            lines = shown(result, self._layout)
            if kept:
                self._keeper.say(lines)
            else:
                self._keeper.row(result.every, lines)
            measured += result.every
        self._keeper.say(footer(measured, program, options.statistic))

    def _measured(self, work: PlannedRow) -> Placements:
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
        """Report what there is when the run is ended from outside. The watchdog's thread calls it.

        ``aloud``: the reason is also said on standard error, and by nobody else.
        """
        self._keeper.end(lambda: self._early(reason), reason if aloud else "")
