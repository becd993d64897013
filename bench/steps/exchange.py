"""The exchange of one bucket of gradients: a plan or the library's call, made once per range."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from bench.options.options import parse_choice
from bench.run.catalogue import BySize, Chosen, RankSetup, auto
from bench.steps.compressed import CastFirst, CompressedMean, Encoded, Leg, Spent, legs
from bench.steps.fusion import TensorRange
from bench.steps.gradients import GradientLayout, Gradients
from bench.steps.job import StepJob
from bench.steps.options import UpdateChoice
from bench.steps.trained import RankTraining
from busbar.errors import Unsupported
from collectives.execution.lower import lower
from collectives.execution.plan import Plan, memory
from collectives.execution.program import Program
from collectives.execution.transport import Action, LibraryCall
from collectives.schedule import catalogue
from collectives.schedule.catalogue import build
from collectives.schedule.dtypes import dtype
from collectives.schedule.layout import Layout
from collectives.schedule.moves import Buffer
from collectives.schedule.ops import op
from collectives.schedule.schedule import Schedule

#: The update that reduces to rank 0 and broadcasts from it.
REDUCE_BROADCAST = "reduce+broadcast"
# Plans that are kept at most, where ranges differ from step to step.
_MOST_PLANS = 128


def stages(choice: UpdateChoice) -> list[tuple[str, str]]:
    """The collectives of an update, each with the algorithm that carries it out.

    ``reduce+broadcast:ALGORITHM+ALGORITHM`` names both; else the usual ones are taken.
    """
    if choice.name != REDUCE_BROADCAST:
        return [("allreduce", choice.label)]
    names = choice.value.split("+") if choice.value else []
    if len(names) not in (0, 2):
        raise Unsupported(f"--update {choice.label}: write {REDUCE_BROADCAST}:binomial+binomial")
    both = ("reduce", "broadcast")
    return [(one, names[n] if names else catalogue.usual(one)) for n, one in enumerate(both)]


class Exchange:
    """One collective of an update, on ranges of a rank's gradients, in place; sums are averaged.

    ``made``: plans made so far, and by ``carriers``, the transport or the library's, how many each
    carries out; ``name``: for traces. Raises Unsupported where it cannot be on
    these ranks.
    """

    def __init__(self, job: StepJob, collective: str, name: str, training: RankTraining) -> None:
        """``training``: gives the gradients that a reduction begins with, if it has any."""
        self._source = training.source if catalogue.spec(collective).reduces else None
        self._codec = training.codec
        self._algorithm = name.partition(":")[0]
        self._job, self._spec = job, catalogue.spec(collective)
        self.collective, self.name = collective, f"{collective} {name}"
        run, nranks = job.options, job.world.size
        self._chosen: BySize | Chosen | None = None
        if name == "library":
            if not job.baseline.has_library:
                raise Unsupported("threads of one process have no library; leave out library")
        elif name == "auto":
            self._chosen = auto(self._spec, run, RankSetup(nranks, job.transport.name))
        else:
            self._chosen = Chosen(self._spec, run, parse_choice(name), nranks)
            self._chosen.prove()
        self._op = op("avg") if self._spec.reduces else None
        self._plans: dict[TensorRange, Action] = {}
        self._messages: dict[TensorRange, int] = {}
        self._gone = [0, 0]
        self.made, self.carriers = 0, Counter[str]()

    def schedule(self, nbytes: int) -> Schedule | None:
        """The schedule that so many bytes take; None for a library's collective."""
        return None if self._chosen is None else self._chosen.at(nbytes).schedule(0)

    def ours(self, layout: GradientLayout, spans: Sequence[TensorRange]) -> bool:
        """Whether schedules carry all of these ranges, so that everything is counted."""
        ends = ((layout.starts[a], layout.starts[b]) for a, b in spans)
        return all(self.schedule(end - start) is not None for start, end in ends)

    def legs(self, layout: GradientLayout, span: TensorRange) -> list[tuple[Schedule, Leg]]:
        """The collectives that a range goes through, where they have schedules (`ours`)."""
        n, itemsize = layout.elements(span), dtype(layout.kinds[span[0]]).itemsize
        if self.coded:
            nranks = self._job.world.size
            found = legs(self._algorithm, self._codec, n, nranks)
            return [(build(one.collective, one.algorithm, nranks), one) for one in found]
        schedule = self.schedule(n * itemsize)
        assert schedule is not None
        return [(schedule, Leg(self.collective, self._algorithm, n * itemsize, itemsize))]

    def _program(self, layout: GradientLayout, span: TensorRange) -> Program | None:
        n = layout.elements(span)
        schedule = self.schedule(n * dtype(layout.kinds[span[0]]).itemsize)
        if schedule is None:
            return None
        placed = Layout.of(schedule, self._spec)
        return lower(schedule, placed, self._job.world.rank, n, in_place=True)

    def need(self, layout: GradientLayout, span: TensorRange) -> int:
        """Bytes that a range takes beside the gradients themselves: staging, scratch."""
        own = layout.starts[span[1]] - layout.starts[span[0]]
        program = self._program(layout, span)
        if program is None:
            return own  # a vector that the library takes for itself
        itemsize = dtype(layout.kinds[span[0]]).itemsize
        more = memory(program, self._job.transport, itemsize, in_place=True) - own
        return more + self._beside(layout.elements(span))

    def _beside(self, n: int) -> int:
        """Bytes of what so many elements are made from; of their codes, and what those left out."""
        if self._source is None:
            return 0
        codes = (1 + self._job.world.size) * self._codec.nbytes(n) + 4 * n
        return 4 * n + (codes if self.coded else 0)

    def plan(self, gradients: Gradients, span: TensorRange) -> Action:
        """The action that exchanges a range, made once. All ranks ask for the same ranges."""
        if span not in self._plans:
            if len(self._plans) >= _MOST_PLANS:
                self._drop(next(iter(self._plans)))
            self._plans[span] = self._made(gradients, span)
            own = self.coded or self.schedule(gradients.view(span).nbytes) is not None
            self.carriers[(self._job.transport if own else self._job.baseline).name] += 1
            self.made += 1
        return self._plans[span]

    def _made(self, gradients: Gradients, span: TensorRange) -> Action:
        if self._source is None:
            return self._plain(gradients, span)
        first, count = gradients.layout.starts[span[0]], gradients.layout.elements(span)
        at = first // dtype(gradients.layout.kinds[0]).itemsize
        source, view = self._source[at : at + count], gradients.view(span)
        if self._codec.adds is not None:
            return CastFirst(self._plain(gradients, span), source, view)
        world = self._job.world
        where = self._job.transport, world.rank, world.size
        coded = CompressedMean(self._algorithm, self._codec, *where, source, view)
        self._messages[span] = coded.messages
        return coded

    def _plain(self, gradients: Gradients, span: TensorRange) -> Action:
        job, layout, view = self._job, gradients.layout, gradients.view(span)
        schedule = self.schedule(view.nbytes)
        if schedule is None:
            self._messages[span] = 0
            both: dict[Buffer, Any] = {Buffer.IN: view, Buffer.OUT: view}
            call = LibraryCall(self._spec, both, self._op, len(view), in_place=True)
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
        self._gone[0] += plan.sent
        self._gone[1] += plan.received
        plan.close()

    @property
    def coded(self) -> bool:
        """Whether other bytes travel than the schedule says."""
        return self._source is not None and self._codec.adds is None

    @property
    def spent(self) -> Spent:
        """Seconds that encoding and decoding took so far."""
        found = [plan.spent for plan in self._plans.values() if isinstance(plan, Encoded)]
        return Spent(*map(sum, zip(*found, strict=True))) if found else Spent()

    def forget(self) -> None:
        """Drop what error feedback keeps back on this rank."""
        for plan in self._plans.values():
            if isinstance(plan, Encoded):
                plan.forget()

    @property
    def sent(self) -> int:
        """Bytes that this rank has sent so far."""
        return self._gone[0] + sum(plan.sent for plan in self._plans.values())

    @property
    def received(self) -> int:
        """Bytes that this rank has received so far."""
        return self._gone[1] + sum(plan.received for plan in self._plans.values())

    def close(self) -> None:
        """Free all plans."""
        for span in list(self._plans):
            self._drop(span)
