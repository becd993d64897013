"""One run of training steps on one rank: measures each kind of exchange, and keeps its record."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from bench.run.environment import RunContext, load
from bench.run.pace import Pace
from bench.run.recorder import repeated
from bench.run.session import RunSession
from bench.steps.compute import prompt_timers
from bench.steps.job import StepJob, step_record, update
from bench.steps.options import StepOptions, UpdateChoice
from bench.steps.step_table import closing_lines, header, row
from bench.steps.trace import MESSAGES, MOST, Trace, chrome, spans
from busbar.files import check, write
from busbar.host import boot, emulated_port_rate
from busbar.process import load as loaded
from reports.readers.codec import Writer, run_of
from reports.records.measurement import Measurement, Record
from reports.records.table import measured


def measure(options: StepOptions, opened: RunContext) -> int:
    """Measure all kinds of gradient exchange; returns the exit status. All ranks call this."""
    with prompt_timers():
        return _StepSession(options, opened).run()


class _StepSession(RunSession):
    """A run of training steps on one rank: a row for each kind of gradient exchange."""

    def __init__(self, options: StepOptions, opened: RunContext) -> None:
        world = opened.world
        self._options, self._workload = options, options.workload
        self._status, self._writer = 0, Writer()
        self._trace = Trace(on=options.trace is not None)
        # The update that is being measured, and what returns its progress.
        self._running: StepJob | None = None
        self._progress: Callable[[], Mapping[str, Any]] = dict
        for path in (options.trace, options.plot):
            if path is not None and world.rank == 0:
                check(path)
        super().__init__(opened, options)
        self._crowd = load(world, opened.transport)
        # Ranks of one host share its port.
        alone = 1 < world.size == len(set(world.nodes))
        self._port_rate = emulated_port_rate(os.environ) if alone else None
        self._start_watch()

    def run(self) -> int:
        """Measure all kinds of exchange, one after the other; returns the exit status."""
        options = self._options
        budget = options.budget + 2 * options.warmup * options.compute.mean
        cases = _cases(options)
        pace = Pace([budget] * len(cases), bounded=options.iterations is None)
        self._wait_until_quiet()
        self._start_screen(len(cases), pace)
        self._measure_rows(lambda: self._measure_cases(cases))
        self._keeper.end(self._closing)
        self._draw()
        self._plot()
        return 1 if self._keeper.failed else self._status

    def _measure_cases(self, cases: Sequence[tuple[UpdateChoice, StepOptions]]) -> None:
        """Print the heading, and measure all cases."""
        options = self._options
        if not options.json:
            ranks, level = self._world.size + options.learners, self._world.threads()
            self._keeper.say(header(options, ranks, self._crowd, level, self._opened.library))
        for choice, case in cases:
            fused = update(choice.name).fused
            what = f"{choice.label} {case.fusion.label}" if fused else choice.label
            self._screen.advance(what)
            self._watch.row(what)
            lost = self._measure(choice, case)
            if lost:
                self._depart(choice, lost)

    def _closing(self) -> list[str]:
        """The lines below the table."""
        if self._options.json:
            return []
        options, rows = self._options, self._keeper.results
        whole, fusions = options.after is None, options.sweep == "fusion"
        return closing_lines(rows, repeated(options), whole=whole, fusions=fusions)

    def _depart(self, choice: UpdateChoice, lost: int) -> None:
        """End this rank: MPI ranks were lost, and all further kinds of exchange need them.

        ``choice``: the last one that was measured; ``lost``: how many ranks were lost.
        """
        more = "" if choice is self._options.updates[-1] else "; what comes after it needs all"
        self._keeper.end(lambda: [f"# ended after {choice.label}, with {lost} ranks less{more}"])
        self._watch.depart(1 if self._keeper.failed else self._status)

    def _measure(self, choice: UpdateChoice, options: StepOptions) -> int:
        """Measure one kind of gradient exchange; returns how many MPI ranks were lost meanwhile."""
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
            set_progress=self._set_progress,
            oversubscribed=None if self._crowd is None else self._crowd.per_core > 1,
            port_rate=self._port_rate,
        )
        self._set_progress(lambda: {"iteration": self._world.states[self._world.rank][1]})
        self._running = job
        record, more = loaded(f"{update(choice.name).module}:run")(job)
        self._running = None
        one = self._measured(record)
        lines = self._as_json(one) if self._options.json else [*row(one), *more]
        self._keeper.row([one], lines)
        if one.wrong:
            self._status = 1
        return len(record.step.lost) if self._world.name == "mpi" else 0

    def _measured(self, record: Record) -> Measurement:
        """A record together with the facts of the whole run."""
        per_core = None if self._crowd is None else self._crowd.per_core
        run = run_of(self._environment, record.collective)
        return measured(replace(record, ranks_per_core=per_core), run)

    def _as_json(self, one: Measurement) -> list[str]:
        return self._writer.lines([one]).decode().splitlines()

    def _set_progress(self, progress: Callable[[], Mapping[str, Any]]) -> None:
        self._progress = progress

    def _keep_stuck(self, reason: str) -> None:
        """Keep a record of an exchange that hangs, with the reason and its progress."""
        job = self._running
        if job is None:
            return
        facts: dict[str, Any] = {"stuck": dict(self._progress())}
        if update(job.choice.name).fused:
            facts["fusion"] = job.options.fusion.label
        one = self._measured(step_record(job, Record(skipped=reason), job.choice.name, **facts))
        # The reason is also printed as the run's last line.
        self._keeper.row([one], self._as_json(one) if self._options.json else [])

    def _draw(self) -> None:
        """Write the trace of all ranks.

        Ranks on rank 0's host use the same clock. Clocks of other hosts are aligned at a barrier.
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
                rank: (zero if host == here else clock, spans(values))
                for rank, (host, clock, values, _) in enumerate(everyone)
            }
            ranks |= {rank: (zero, others) for rank, others in trace.others.items()}
            write(path, chrome(ranks, f"{self._workload.name} {choice.label}"))
            lost = sum(rank[3] for rank in everyone)
            more = f"; {lost} spans are left out, over {MOST} a rank" if lost else ""
            if not any(span.lane == MESSAGES for _, row in ranks.values() for span in row):
                more += f"; {self._unseen(choice)}"
            self._screen.note(f"busbar: wrote {path}; open it in ui.perfetto.dev{more}")

    def _unseen(self, choice: UpdateChoice) -> str:
        """A phrase that says why the trace has no messages."""
        if choice.name == "library":
            return "the library does not report its messages"
        if self._world.size == 1:
            return "one rank has no messages"
        return f"{self._opened.transport.name} does not report messages; --transport mpi does"

    def _plot(self) -> None:
        """Draw time per update of the weights, and loss. Rank 0 does this."""
        path = self._options.plot
        if path is None or self._world.rank:
            return
        from reports.figures.steps import picture

        write(path, picture(self._keeper.results, path.suffix[1:]))
        self._screen.note(f"busbar: wrote {path}")

    def stop(self, reason: str, aloud: bool) -> None:
        """End the run early (`RunSession.stop`); also keep a record of an exchange that hangs."""
        if self._watch.stuck:
            self._keep_stuck(reason)
        super().stop(reason, aloud)


def _cases(options: StepOptions) -> list[tuple[UpdateChoice, StepOptions]]:
    """The kinds of exchange to measure with their options, of one fusion, overlap and compression.

    A server's pushes have no fusion and no overlap.
    """
    pushes = {case.compress: case for case in options.cases}.values()
    return [
        (choice, case.replace(tried=how))
        for choice in options.updates
        for is_fused in [update(choice.name).fused]
        for case in (options.cases if is_fused else pushes)
        for how in (options.fusions if is_fused else options.fusions[:1])
    ]
