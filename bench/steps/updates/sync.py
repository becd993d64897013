"""Synchronous updates: all ranks' gradients are added, and all ranks go on with the same sum."""

from __future__ import annotations

from typing import Any

from bench.run.measure import Timing, measure
from bench.steps.compute import spend_until
from bench.steps.job import StepJob, StepOutcome
from bench.steps.options import StepOptions, UpdateChoice
from bench.steps.table import UPDATES
from busbar.arguments import unknown
from busbar.errors import Unsupported
from collectives.execution.plan import Plan
from collectives.execution.transport import Action, LibraryCall
from collectives.formats.load import build, from_file
from collectives.schedule import catalogue
from collectives.schedule.dtypes import dtype
from collectives.schedule.moves import Buffer
from collectives.schedule.ops import op
from collectives.schedule.schedule import Schedule
from collectives.schedule.verify import verify
from reports.records.record import Sample

_NO_SCHEDULE = ("library", "auto", "reduce+broadcast")


def check(choice: UpdateChoice, nranks: int, options: StepOptions) -> None:
    """Raise Unsupported for an update that cannot be on so many ranks."""
    if options.learners:
        raise Unsupported(f"{choice.label} has no server that --learners could call")
    if choice.name in _NO_SCHEDULE:
        return
    known = catalogue.algorithms("allreduce")
    if choice.name not in known and "+" not in choice.name and not from_file(choice.name):
        raise unknown("update", choice.name, (*UPDATES, "library", "auto", *known))
    _schedule(choice, nranks)


def _schedule(choice: UpdateChoice, nranks: int) -> Schedule:
    name, parsed = catalogue.parse(choice.label)
    given: dict[str, Any] = dict(parsed)
    return build("allreduce", name, nranks, **given)


def run(job: StepJob) -> StepOutcome:
    """The steps of one all-reduce; all ranks call this together."""
    step = _Step(job)
    options = job.options.run
    rules = Timing(options.warmup, options.iterations, options.budget, per_rank=options.per_rank)
    try:
        timed = measure(step, job.world, job.transport.clock(), rules, job.watch)
    finally:
        step.close()
    return StepOutcome(
        Sample(timed.times, timed.iterations, stopped=timed.stopped, per_rank=timed.per_rank),
        "synchronous",
        gradients=job.world.size,
    )


class _Step(Action):
    """One rank's step: compute, then one all-reduce of everything."""

    def __init__(self, job: StepJob) -> None:
        self._job, self._number = job, -job.options.run.warmup
        kind = dtype(job.options.dtype)
        n = job.workload.elements
        self._gradients = job.transport.allocate(n * kind.itemsize).view(kind)
        self._gradients[:] = 1
        spec, choice = catalogue.spec("allreduce"), job.choice
        if choice.name == "library":
            both = {Buffer.IN: self._gradients, Buffer.OUT: self._gradients}
            self._exchange: Action = job.baseline.library(
                LibraryCall(spec, both, op("sum"), n, in_place=True)
            )
            return
        if choice.name in ("auto", "reduce+broadcast"):
            raise Unsupported(f"--update {choice.name} is not there yet")
        schedule = _schedule(choice, job.world.size)
        verify(schedule, spec, in_place=True)
        self._exchange = Plan(
            schedule, spec, job.transport, job.world.rank, self._gradients, self._gradients,
            op("sum"), n, in_place=True,
        )  # fmt: skip

    def __call__(self) -> None:
        job, clock = self._job, self._job.transport.clock()
        start = clock()
        end = start + job.compute.seconds(job.world.rank, self._number)
        spend_until(end, job.options.burn)
        job.trace.add("compute", "compute", start, clock(), step=self._number)
        with job.trace.span("exchange", "exchange", step=self._number):
            self._exchange()
        self._number += 1

    @property
    def sent(self) -> int:
        """See `Action.sent`."""
        return self._exchange.sent

    @property
    def received(self) -> int:
        """See `Action.received`."""
        return self._exchange.received

    def close(self) -> None:
        """See `Action.close`."""
        self._exchange.close()
