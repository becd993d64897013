"""Exchange buckets of gradients by an all-reduce, or by reduce and broadcast; perhaps compressed.

Gradients are compressed by a cast to a shorter type, for any all-reduce, or by an encoding: 8-bit
numbers with a scale, signs, or the largest elements with their indices. Most all-reduces add
partial sums on the way, but such encodings cannot be added. They suit the all-reduces that send
each vector once and add at its destination. The sum is sent back in float32, since no rank keeps
error feedback for it.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bench.options.options import parse_choice
from bench.run.contenders import Contender, RankSetup, SizeDependentContender, auto
from bench.steps.buckets import GradientLayout, Gradients, TensorRange
from bench.steps.job import StepJob
from bench.steps.options import UpdateChoice
from bench.steps.training.codecs import Codec, Feedback, suits
from bench.steps.training.problem import parts
from busbar.errors import Unsupported
from collectives.execution.lower import lower
from collectives.execution.plan import Plan, memory
from collectives.execution.program import Program
from collectives.execution.transport import Action, LibraryCall, Tell, Transport
from collectives.schedule import catalogue
from collectives.schedule.catalogue import build, spec
from collectives.schedule.layout import Elements, Layout
from collectives.schedule.moves import Buffer
from collectives.schedule.ops import op
from collectives.schedule.schedule import Schedule

Vector = NDArray[np.float32]


class CodedAlgorithms(NamedTuple):
    """The collectives that exchange gradients whose encoding cannot be added, with algorithms.

    ``push``: sends the encoded gradients. ``answer``: sends the mean back; None if all ranks
    compute it. ``shards``: True if each rank adds up one shard of the vector.
    """

    push: tuple[str, str]
    answer: tuple[str, str] | None
    shards: bool


#: For each all-reduce that sends a vector once: collectives that move the data, without adding.
_ALGORITHMS = {
    "one_shot": CodedAlgorithms(("allgather", "direct"), None, False),
    "ps": CodedAlgorithms(("gather", "flat"), ("broadcast", "flat"), False),
    "sharded_ps": CodedAlgorithms(("alltoall", "direct"), ("allgather", "direct"), True),
}


class CollectiveCall(NamedTuple):
    """A collective that is part of an exchange. ``nbytes``: as `Collective.size` defines it."""

    collective: str
    algorithm: str
    nbytes: int
    itemsize: int


def coded_calls(algorithm: str, codec: Codec, elements: int, nranks: int) -> list[CollectiveCall]:
    """The collectives that exchange a vector of ``elements`` elements, encoded by ``codec``."""
    coded = _ALGORITHMS[algorithm]
    shards = parts(elements, nranks if coded.shards else 1)
    wire = sum(codec.nbytes(shard.stop - shard.start) for shard in shards)
    calls = [CollectiveCall(*coded.push, wire if coded.shards else nranks * wire, 1)]
    if coded.answer is not None:
        calls.append(CollectiveCall(*coded.answer, 4 * elements, 4))
    return calls


class CodingTimes(NamedTuple):
    """Seconds that one rank took to encode and to decode, in all its iterations together."""

    encode: float = 0.0
    decode: float = 0.0

    def plus(self, encode: float, decode: float) -> CodingTimes:
        """These times and the given ones."""
        return CodingTimes(self.encode + encode, self.decode + decode)


class Encoded(Action):
    """An exchange that first encodes a rank's vector.

    ``times``: seconds to encode and decode, in all iterations so far.
    """

    def __init__(self, source: Vector, plans: Sequence[Action]) -> None:
        self._source, self._plans, self.times = source, plans, CodingTimes()

    def __call__(self) -> None:
        """Encode, exchange and decode."""
        self._run(self._plans)

    def traced(self, tell: Tell) -> None:
        """Run once, and call ``tell`` with each message, see `Action.traced`."""
        self._run([partial(plan.traced, tell) for plan in self._plans])

    @abstractmethod
    def _run(self, exchanges: Sequence[Callable[[], None]]) -> None:
        """Encode, call the exchanges (each runs one of the plans), and decode."""

    @property
    def sent(self) -> int:
        """Bytes that this rank has sent to other ranks so far."""
        return sum(plan.sent for plan in self._plans)

    @property
    def received(self) -> int:
        """Bytes that this rank has received so far."""
        return sum(plan.received for plan in self._plans)

    def close(self) -> None:
        """Close the plans of the exchange."""
        for plan in self._plans:
            plan.close()


class CastFirst(Encoded):
    """An in-place exchange of a buffer, after a vector is cast into that buffer."""

    def __init__(self, exchange: Action, source: Vector, buffer: NDArray[Any]) -> None:
        super().__init__(source, [exchange])
        self._buffer = buffer

    def _run(self, exchanges: Sequence[Callable[[], None]]) -> None:
        start = time.perf_counter()
        with np.errstate(over="ignore"):  # values too large for the type become infinite
            np.copyto(self._buffer, self._source, casting="unsafe")
        self.times = self.times.plus(time.perf_counter() - start, 0.0)
        exchanges[0]()


class CompressedMean(Encoded):
    """The mean of all ranks' vectors, which are sent encoded by a codec.

    ``source`` and ``target``: float32 vectors of the same length on all ranks, ``target`` in the
    transport's memory. All ranks construct this together. Vectors are added in rank order, and a
    rank also uses the decoded form of its own vector, so that all ranks get the same bits. Raises
    Unsupported if the codec does not suit the algorithm (`suits`).
    """

    def __init__(
        self, algorithm: str, codec: Codec, transport: Transport, rank: int, nranks: int,
        source: Vector, target: Vector, left: Vector | None = None,
    ) -> None:  # fmt: skip
        """``left``: memory for the error feedback of the vector, if others use it, too."""
        suits(codec, algorithm)
        coded = _ALGORITHMS[algorithm]
        self._codec, self._target, self._nranks = codec, target, nranks
        self._shards = parts(len(target), nranks if coded.shards else 1)
        lengths = [shard.stop - shard.start for shard in self._shards]
        self._feedback = [
            Feedback(codec, n, None if left is None else left[shard])
            for n, shard in zip(lengths, self._shards, strict=True)
        ]
        # The shard that this rank adds up; None if only rank 0 adds.
        adds = rank if coded.shards else 0
        everyone_adds = coded.answer is None or coded.shards
        self._own = self._shards[adds] if everyone_adds or rank == 0 else None
        sizes = [codec.nbytes(n) for n in lengths]
        self._sent = transport.allocate(sum(sizes))
        arriving = 0 if self._own is None else nranks * sizes[adds]
        self._arrived = transport.allocate(arriving)

        def plan(
            call: tuple[str, str], source: NDArray[np.generic], target: NDArray[np.generic],
            elements: Elements, *, in_place: bool,
        ) -> Plan:  # fmt: skip
            collective, algorithm = call
            schedule = build(collective, algorithm, nranks)
            where = (transport, rank, source, target, None, elements)
            return Plan(schedule, spec(collective), *where, in_place=in_place)

        elements: Elements = np.tile(sizes, nranks) if coded.shards else sizes[0]
        self._programs = [plan(coded.push, self._sent, self._arrived, elements, in_place=False)]
        if coded.answer is not None:
            own = target[:0] if self._own is None else target[self._own]
            self._programs.append(plan(coded.answer, own, target, np.array(lengths), in_place=True))
        super().__init__(source, self._programs)

    def _run(self, exchanges: Sequence[Callable[[], None]]) -> None:
        start = time.perf_counter()
        first = 0
        for shard, feedback in zip(self._shards, self._feedback, strict=True):
            wire = feedback.encode(self._source[shard])
            self._sent[first : first + len(wire)] = wire
            first += len(wire)
        encoded = time.perf_counter()
        exchanges[0]()
        arrived = time.perf_counter()
        self._add()
        self.times = self.times.plus(encoded - start, time.perf_counter() - arrived)
        for exchange in exchanges[1:]:
            exchange()

    def _add(self) -> None:
        """Add up, in rank order, the vectors that were received for this rank's shard."""
        if self._own is None:
            return
        length = self._own.stop - self._own.start
        total = np.zeros(length, np.float32)
        for wire in self._arrived.reshape(self._nranks, -1):
            total += self._codec.decode(wire, length)
        self._target[self._own] = total / np.float32(self._nranks)

    @property
    def messages(self) -> int:
        """Messages that this rank sends in an iteration."""
        return sum(len(step.sends) for plan in self._programs for step in plan.program.steps)


#: The update that reduces to rank 0 and broadcasts from rank 0.
REDUCE_BROADCAST = "reduce+broadcast"
# The most plans that an exchange keeps, unless it has more ranges in every step. With a cycle,
# ranges may differ from step to step.
_MOST_PLANS = 128


def stages(choice: UpdateChoice) -> list[tuple[str, str]]:
    """The collectives that exchange gradients by one kind of ``--update``, each with its algorithm.

    An all-reduce is one collective. ``reduce+broadcast:ALGORITHM+ALGORITHM`` names two algorithms;
    without names the catalogue's usual ones are used. Raises Unsupported for another number of
    names.
    """
    if choice.name != REDUCE_BROADCAST:
        return [("allreduce", choice.label)]
    names = choice.value.split("+") if choice.value else []
    if len(names) not in (0, 2):
        raise Unsupported(f"--update {choice.label}: write {REDUCE_BROADCAST}:binomial+binomial")
    collectives = ("reduce", "broadcast")
    return list(zip(collectives, names or map(catalogue.usual, collectives), strict=True))


class Exchange:
    """One collective of a gradient exchange, in place on ranges of tensors; reductions average.

    ``name``: its name in traces. ``plans_made``: how many plans were made so far. ``carriers``: for
    each transport, the number of these plans that it runs; the library's transport counts, too.
    Raises Unsupported if the collective cannot run on these ranks.
    """

    def __init__(
        self, job: StepJob, collective: str, name: str, source: Vector | None, ranges: int
    ) -> None:
        """``source``: the gradients that a reduction reads; None: those in the buckets.

        ``ranges``: into how many ranges all gradients are divided.
        """
        self._most_plans = max(_MOST_PLANS, ranges)
        self._source = source if catalogue.spec(collective).reduces else None
        self._codec = job.options.codec
        self._algorithm = name.partition(":")[0]
        self._job, self._spec = job, catalogue.spec(collective)
        self.collective, self.name = collective, f"{collective} {name}"
        run, nranks = job.options, job.world.size
        self._contender: SizeDependentContender | Contender | None = None
        if name == "library":
            if not job.baseline.has_library:
                raise Unsupported("threads of one process have no library; leave out library")
        elif name == "auto":
            setup = RankSetup(nranks, job.transport.name, oversubscribed=job.oversubscribed)
            self._contender = auto(self._spec, run, setup)
        else:
            self._contender = Contender(self._spec, run, parse_choice(name), nranks)
            self._contender.prove()
        self._op = op("avg") if self._spec.reduces else None
        # The error feedback of all gradients, for whichever range they are exchanged in.
        self._left: Vector | None = None
        if self._source is not None and self.coded and self._codec.feedback:
            self._left = np.zeros(len(self._source), np.float32)
        self._plans: dict[TensorRange, Action] = {}
        self._messages: dict[TensorRange, int] = {}
        # Bytes that were sent and received by plans that are closed now, and their seconds.
        self._closed_sent = self._closed_received = 0
        self._closed_times = CodingTimes()
        self.plans_made, self.carriers = 0, Counter[str]()

    def schedule(self, nbytes: int) -> Schedule | None:
        """The schedule for ``nbytes`` bytes; None for the library's collective."""
        return None if self._contender is None else self._contender.at(nbytes).schedule(0)

    def has_schedules(self, layout: GradientLayout, spans: Sequence[TensorRange]) -> bool:
        """True if schedules exchange all of these ranges, so that sent bytes are known."""
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
        """Bytes that a range of tensors needs besides its gradients.

        They are for staging, scratch, and encoded gradients with their error feedback. ``layout``:
        where the tensors' gradients lie.
        """
        nbytes = layout.nbytes_of(span)
        program = self._program(layout, span)
        if program is None:
            return nbytes  # the library's own vector
        whole = memory(program, self._job.transport, layout.itemsize(span), in_place=True)
        if self._source is None:
            return whole - nbytes
        # A source in float32, its codes, and its error feedback.
        n, size = layout.elements(span), self._job.world.size
        codes = (1 + size) * self._codec.nbytes(n) + 4 * n
        return whole - nbytes + 4 * n + (codes if self.coded else 0)

    def plan(self, gradients: Gradients, span: TensorRange) -> Action:
        """The action that exchanges a range, kept for reuse. All ranks pass the same range."""
        if span not in self._plans:
            if len(self._plans) >= self._most_plans:
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
        part = slice(first, first + layout.elements(span))
        source, view = self._source[part], gradients.view(span)
        if self._codec.adds is not None:
            return CastFirst(self._make_uncoded_plan(gradients, span), source, view)
        world = self._job.world
        where = self._job.transport, world.rank, world.size
        left = None if self._left is None else self._left[part]
        plan = CompressedMean(self._algorithm, self._codec, *where, source, view, left)
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
        if isinstance(plan, Encoded):
            self._closed_times = self._closed_times.plus(*plan.times)
        plan.close()

    @property
    def coded(self) -> bool:
        """True if gradients are sent encoded so that they cannot be added, in fewer bytes."""
        return self._source is not None and self._codec.adds is None

    @property
    def times(self) -> CodingTimes:
        """Seconds that this rank took to encode and to decode so far."""
        times = self._closed_times
        for plan in self._plans.values():
            if isinstance(plan, Encoded):
                times = times.plus(*plan.times)
        return times

    def forget(self) -> None:
        """Clear the error feedback of this rank."""
        if self._left is not None:
            self._left[:] = 0

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
