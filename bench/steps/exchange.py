"""Exchanges buckets of gradients by a schedule, or by the library's own collective."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from bench.options.options import parse_choice
from bench.run.contenders import Contender, RankSetup, SizeDependentContender, auto
from bench.steps.buckets import GradientLayout, Gradients, TensorRange
from bench.steps.compressed import (
    CastFirst,
    CollectiveCall,
    CompressedMean,
    Encoded,
    ExchangeTimes,
    coded_calls,
)
from bench.steps.job import StepJob
from bench.steps.options import UpdateChoice
from bench.steps.sync_training import RankTraining
from busbar.errors import Unsupported
from collectives.execution.lower import lower
from collectives.execution.plan import Plan, memory
from collectives.execution.program import Program
from collectives.execution.transport import Action, LibraryCall
from collectives.schedule import catalogue
from collectives.schedule.catalogue import build
from collectives.schedule.layout import Layout
from collectives.schedule.moves import Buffer
from collectives.schedule.ops import op
from collectives.schedule.schedule import Schedule

#: The update that reduces to rank 0 and broadcasts from it.
REDUCE_BROADCAST = "reduce+broadcast"
# Plans that an exchange keeps, if the ranges of tensors differ from step to step.
_MOST_PLANS = 128


def stages(choice: UpdateChoice) -> list[tuple[str, str]]:
    """The collectives of an update, each with its algorithm.

    ``reduce+broadcast:ALGORITHM+ALGORITHM`` names both algorithms; otherwise the usual ones are
    used. Raises Unsupported for another number of names.
    """
    if choice.name != REDUCE_BROADCAST:
        return [("allreduce", choice.label)]
    names = choice.value.split("+") if choice.value else []
    if len(names) not in (0, 2):
        raise Unsupported(f"--update {choice.label}: write {REDUCE_BROADCAST}:binomial+binomial")
    collectives = ("reduce", "broadcast")
    return list(zip(collectives, names or map(catalogue.usual, collectives), strict=True))


class Exchange:
    """One collective of an update, on ranges of a rank's gradients, in place; sums are averaged.

    ``name``: in traces. ``plans_made``: plans so far. ``carriers``: how many of them each transport
    carries out, the library's among them. Raises Unsupported if it cannot run on these ranks.
    """

    def __init__(self, job: StepJob, collective: str, name: str, training: RankTraining) -> None:
        """``training``: has the gradients that a reduction begins with, if there are any."""
        self._source = training.source if catalogue.spec(collective).reduces else None
        self._codec = training.codec
        self._algorithm = name.partition(":")[0]
        self._job, self._spec = job, catalogue.spec(collective)
        self.collective, self.name = collective, f"{collective} {name}"
        run, nranks = job.options, job.world.size
        self._contender: SizeDependentContender | Contender | None = None
        if name == "library":
            if not job.baseline.has_library:
                raise Unsupported("threads of one process have no library; leave out library")
        elif name == "auto":
            self._contender = auto(self._spec, run, RankSetup(nranks, job.transport.name))
        else:
            self._contender = Contender(self._spec, run, parse_choice(name), nranks)
            self._contender.prove()
        self._op = op("avg") if self._spec.reduces else None
        self._plans: dict[TensorRange, Action] = {}
        self._messages: dict[TensorRange, int] = {}
        # Bytes that plans sent and received which are closed.
        self._closed_sent = self._closed_received = 0
        self.plans_made, self.carriers = 0, Counter[str]()

    def schedule(self, nbytes: int) -> Schedule | None:
        """The schedule for so many bytes; None for the library's collective."""
        return None if self._contender is None else self._contender.at(nbytes).schedule(0)

    def has_schedules(self, layout: GradientLayout, spans: Sequence[TensorRange]) -> bool:
        """Whether schedules carry out all of these ranges, so that bytes are counted."""
        return all(self.schedule(layout.nbytes_of(span)) is not None for span in spans)

    def calls(
        self, layout: GradientLayout, span: TensorRange
    ) -> list[tuple[Schedule, CollectiveCall]]:
        """The collectives that exchange a range, if they have schedules (`has_schedules`)."""
        if self.coded:
            nranks = self._job.world.size
            calls = coded_calls(self._algorithm, self._codec, layout.elements(span), nranks)
            return [(build(call.collective, call.algorithm, nranks), call) for call in calls]
        nbytes = layout.nbytes_of(span)
        schedule = self.schedule(nbytes)
        assert schedule is not None
        itemsize = layout.itemsize(span)
        return [(schedule, CollectiveCall(self.collective, self._algorithm, nbytes, itemsize))]

    def _program(self, layout: GradientLayout, span: TensorRange) -> Program | None:
        schedule = self.schedule(layout.nbytes_of(span))
        if schedule is None:
            return None
        placed = Layout.of(schedule, self._spec)
        rank, elements = self._job.world.rank, layout.elements(span)
        return lower(schedule, placed, rank, elements, in_place=True)

    def extra_bytes(self, layout: GradientLayout, span: TensorRange) -> int:
        """Bytes that a range needs beside the gradients themselves: staging, scratch, codes."""
        nbytes = layout.nbytes_of(span)
        program = self._program(layout, span)
        if program is None:
            return nbytes  # the library's own vector
        whole = memory(program, self._job.transport, layout.itemsize(span), in_place=True)
        return whole - nbytes + self._source_bytes(layout.elements(span))

    def _source_bytes(self, n: int) -> int:
        """Bytes of the source of so many elements, of their codes, and of error feedback."""
        if self._source is None:
            return 0
        codes = (1 + self._job.world.size) * self._codec.nbytes(n) + 4 * n
        return 4 * n + (codes if self.coded else 0)

    def plan(self, gradients: Gradients, span: TensorRange) -> Action:
        """The action that exchanges a range, made once. All ranks call this with the same range."""
        if span not in self._plans:
            if len(self._plans) >= _MOST_PLANS:
                self._drop(next(iter(self._plans)))
            self._plans[span] = self._make_plan(gradients, span)
            own = self.coded or self.schedule(gradients.view(span).nbytes) is not None
            self.carriers[(self._job.transport if own else self._job.baseline).name] += 1
            self.plans_made += 1
        return self._plans[span]

    def _make_plan(self, gradients: Gradients, span: TensorRange) -> Action:
        if self._source is None:
            return self._make_uncoded_plan(gradients, span)
        layout = gradients.layout
        first = layout.starts[span[0]] // layout.itemsize(span)
        source, view = self._source[first : first + layout.elements(span)], gradients.view(span)
        if self._codec.adds is not None:
            return CastFirst(self._make_uncoded_plan(gradients, span), source, view)
        world = self._job.world
        where = self._job.transport, world.rank, world.size
        plan = CompressedMean(self._algorithm, self._codec, *where, source, view)
        self._messages[span] = plan.messages
        return plan

    def _make_uncoded_plan(self, gradients: Gradients, span: TensorRange) -> Action:
        job, layout, view = self._job, gradients.layout, gradients.view(span)
        schedule = self.schedule(view.nbytes)
        if schedule is None:
            self._messages[span] = 0
            buffers: dict[Buffer, Any] = {Buffer.IN: view, Buffer.OUT: view}
            call = LibraryCall(self._spec, buffers, self._op, len(view), in_place=True)
            return job.baseline.library(call)
        program = self._program(layout, span)
        assert program is not None
        self._messages[span] = sum(len(step.sends) for step in program.steps)
        return Plan(
            schedule, self._spec, job.transport, job.world.rank, view, view, self._op, len(view),
            in_place=True, program=program,
        )  # fmt: skip

    def messages(self, span: TensorRange) -> int:
        """Messages that this rank sends for a range that has a plan."""
        return self._messages[span]

    def _drop(self, span: TensorRange) -> None:
        plan = self._plans.pop(span)
        self._closed_sent += plan.sent
        self._closed_received += plan.received
        plan.close()

    @property
    def coded(self) -> bool:
        """Whether codes are exchanged, whose bytes are not those of the schedule."""
        return self._source is not None and self._codec.adds is None

    @property
    def times(self) -> ExchangeTimes:
        """Seconds of this rank's exchanges so far, with encoding and decoding."""
        times = [plan.exchange_times for plan in self._plans.values() if isinstance(plan, Encoded)]
        return ExchangeTimes(*map(sum, zip(*times, strict=True))) if times else ExchangeTimes()

    def forget(self) -> None:
        """Clear the error feedback of this rank."""
        for plan in self._plans.values():
            if isinstance(plan, Encoded):
                plan.forget()

    @property
    def sent(self) -> int:
        """Bytes that this rank has sent so far."""
        return self._closed_sent + sum(plan.sent for plan in self._plans.values())

    @property
    def received(self) -> int:
        """Bytes that this rank has received so far."""
        return self._closed_received + sum(plan.received for plan in self._plans.values())

    def close(self) -> None:
        """Free all plans."""
        for span in list(self._plans):
            self._drop(span)
