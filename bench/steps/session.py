"""One run of steps on one rank: each update with its record and row. All ranks run this code."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from bench.run.context import Opened
from bench.run.environment import describe, load, place
from bench.run.keeping import Keeper
from bench.run.pace import Pace
from bench.run.screen import Screen
from bench.run.stopped import StoppedNeighbour
from bench.run.watchdog import Watchdog
from bench.steps.job import StepJob, StepOutcome
from bench.steps.options import StepOptions, UpdateChoice
from bench.steps.record import measurement
from bench.steps.rows import best_fusion, header, row
from bench.steps.table import update
from bench.steps.trace import MESSAGES, MOST, Trace, chrome, spans
from bench.steps.waking import prompt_timers
from busbar.errors import RankFailure
from busbar.files import check, write
from busbar.host import boot
from busbar.process import load as loaded
from reports.analysis.steps import summaries
from reports.readers.codec import Writer
from reports.records.measurement import Measurement, Record


def measure(options: StepOptions, opened: Opened) -> int:
    """Run every update that was asked for; gives the exit status. All ranks call this together."""
    with prompt_timers():
        return _StepSession(options, opened).run()


class _StepSession:
    """The state of one run on one rank."""

    def __init__(self, options: StepOptions, opened: Opened) -> None:
        self._options, self._workload, self._opened = options, options.workload, opened
        world, transport = opened.world, opened.transport
        self._world = world
        self._screen, self._status, self._writer = Screen(world.rank), 0, Writer()
        self._trace = Trace(on=options.trace is not None)
        # The update that goes on, and how far it is.
        self._running: StepJob | None = None
        self._far: Callable[[], Mapping[str, Any]] = dict
        for path in (options.trace, options.plot):
            if path is not None and world.rank == 0:
                check(path)
        places = world.gather(place(world, transport))
        self._crowd = load(world, transport)
        self._environment = (
            describe(opened.library, world, transport, places) if world.rank == 0 else {}
        )
        self._keeper = Keeper(world, self._screen, options, opened.line)
        tick = StoppedNeighbour(opened, self._stop).beside(self._screen.tick)
        self._watch = Watchdog(world, options.timeout, self._stop, opened.line, tick)

    def run(self) -> int:
        """All updates, one after the other."""
        options = self._options
        budget = options.budget + 2 * options.warmup * options.compute.mean
        cases = _cases(options)
        pace = Pace([budget] * len(cases), bounded=options.iterations is None)
        self._screen.start(len(cases), pace)
        try:
            if not options.json:
                ranks = self._world.size + options.learners
                level = self._world.threads()
                self._keeper.say(header(options, ranks, self._crowd, level, self._opened.library))
            for choice, mine in cases:
                self._screen.advance(f"{choice.label} {mine.fusion.label}")
                self._watch.row()
                lost = self._one(choice, mine)
                if lost:
                    self._depart(choice, lost)
        except RankFailure as error:
            reason = str(error)
            self._keeper.end(lambda: [f"# ended early: {reason}"])
            raise
        finally:
            self._screen.close()
            self._watch.close()
        self._keeper.end(self._closing)
        self._draw()
        self._plot()
        return 1 if self._keeper.failed else self._status

    def _closing(self) -> list[str]:
        """The result of a sweep."""
        if self._options.sweep != "fusion" or self._options.json:
            return []
        return best_fusion(self._keeper.results)

    def _depart(self, choice: UpdateChoice, lost: int) -> None:
        """End where ranks of MPI are gone: whatever comes now is for all of them."""
        more = "" if choice is self._options.updates[-1] else "; what comes after it needs all"
        self._keeper.end(lambda: [f"# ended after {choice.label}, with {lost} ranks less{more}"])
        self._watch.depart(1 if self._keeper.failed else self._status)

    def _one(self, choice: UpdateChoice, options: StepOptions) -> int:
        """One update; gives how many ranks of MPI were lost in it."""
        job = StepJob(
            world=self._world,
            transport=self._opened.transport,
            baseline=self._opened.baseline,
            workload=self._workload,
            compute=options.compute,
            options=options,
            choice=choice,
            watch=self._watch,
            trace=self._trace,
            note=lambda text: self._screen.note(f"busbar: {text}"),
            far=self._tell_far,
        )
        self._tell_far(lambda: {"iteration": self._world.states[self._world.rank][1]})
        self._running = job
        outcome = loaded(f"{update(choice.name).module}:run")(job)
        self._running = None
        one = measurement(job, outcome, self._environment, self._crowd)
        lines = self._as_json(one) if self._options.json else [*row(one), *outcome.lines]
        self._keeper.row([one], lines)
        if one.wrong:
            self._status = 1
        return len(outcome.facts.get("lost", ())) if self._world.name == "mpi" else 0

    def _as_json(self, one: Measurement) -> list[str]:
        return self._writer.lines([one]).decode().splitlines()

    def _tell_far(self, far: Callable[[], Mapping[str, Any]]) -> None:
        self._far = far

    def _keep_stuck(self, reason: str) -> None:
        """The record of an update that hangs: no times, but why, and how far it was."""
        job = self._running
        if job is None:
            return
        facts: dict[str, Any] = {"stuck": dict(self._far())}
        if update(job.choice.name).fused:
            facts["fusion"] = job.options.fusion.label
        outcome = StepOutcome(Record(skipped=reason), job.choice.name, facts=facts)
        one = measurement(job, outcome, self._environment, self._crowd)
        # The reason is the run's last line, too.
        self._keeper.row([one], self._as_json(one) if self._options.json else [])

    def _draw(self) -> None:
        """Write the trace of all ranks.

        Ranks of rank 0's host have its clock; those of others are held together by a barrier.
        """
        path = self._options.trace
        if path is None:
            return
        trace, choice = self._trace, self._options.updates[0]
        self._world.barrier()
        zero = time.perf_counter()
        everyone = self._world.gather([boot(), zero, trace.spans, trace.lost])
        if self._world.rank == 0:
            here = everyone[0][0]
            ranks = {
                rank: (zero if host == here else its, spans(mine))
                for rank, (host, its, mine, _) in enumerate(everyone)
            }
            ranks |= {rank: (zero, mine) for rank, mine in trace.others.items()}
            write(path, chrome(ranks, f"{self._workload.name} {choice.label}"))
            lost = sum(one[3] for one in everyone)
            more = f"; {lost} spans are left out, over {MOST} a rank" if lost else ""
            if not any(span.lane == MESSAGES for _, mine in ranks.values() for span in mine):
                more += f"; {self._unseen(choice)}"
            self._screen.note(f"busbar: wrote {path}; open it in ui.perfetto.dev{more}")

    def _unseen(self, choice: UpdateChoice) -> str:
        """Why a trace has no messages."""
        if choice.name == "library":
            return "the library tells nothing of its messages"
        if self._world.size == 1:
            return "one rank has no messages"
        return f"{self._opened.transport.name} has no messages to be seen; --transport mpi has"

    def _plot(self) -> None:
        """Draw time per update and loss, on rank 0."""
        path = self._options.plot
        if path is None or self._world.rank:
            return
        from reports.figures.steps import picture

        write(path, picture(summaries(self._keeper.results), path.suffix[1:]))
        self._screen.note(f"busbar: wrote {path}")

    def _stop(self, reason: str, aloud: bool) -> None:
        """Report the results so far when the run is ended from outside. The watchdog calls this."""
        if self._watch.stuck:
            self._keep_stuck(reason)
        self._keeper.end(lambda: [f"# ended early: {reason}"], reason if aloud else "")


def _cases(options: StepOptions) -> list[tuple[UpdateChoice, StepOptions]]:
    """Every update, with every fusion that is to be tried where it has any."""
    return [
        (choice, replace(options, tried=how))
        for choice in options.updates
        for how in (options.fusions if update(choice.name).fused else options.fusions[:1])
    ]
