"""Exchanges of compressed gradients: cast for any all-reduce, or coded for those that send once.

Most all-reduces add on the way, so they need numbers. 8-bit codes, signs and indices cannot be
added. They suit the all-reduces in which a vector is sent once and added at its destination. The
sum is sent back in float32, since no rank keeps error feedback for it.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bench.steps.training.codecs import Codec, Feedback, suits
from bench.steps.training.samples import parts
from collectives.execution.plan import Plan
from collectives.execution.transport import Action, Tell, Transport
from collectives.schedule.catalogue import build, spec
from collectives.schedule.layout import Elements

Vector = NDArray[np.float32]


class CodedAlgorithms(NamedTuple):
    """The collectives of a coded exchange, and their algorithms.

    ``push``: sends the codes. ``answer``: sends the mean back, if a rank lacks it. ``shards``:
    every rank adds up a shard of its own.
    """

    push: tuple[str, str]
    answer: tuple[str, str] | None
    shards: bool


#: For each all-reduce that sends a vector once: collectives that move the same without adding.
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
    """The collectives that exchange a vector of so many elements in the code of a codec."""
    coded = _ALGORITHMS[algorithm]
    shards = parts(elements, nranks if coded.shards else 1)
    wire = sum(codec.nbytes(shard.stop - shard.start) for shard in shards)
    calls = [CollectiveCall(*coded.push, wire if coded.shards else nranks * wire, 1)]
    if coded.answer is not None:
        calls.append(CollectiveCall(*coded.answer, 4 * elements, 4))
    return calls


class ExchangeTimes(NamedTuple):
    """Seconds of one rank in all iterations."""

    encode: float = 0.0
    exchange: float = 0.0
    decode: float = 0.0


class Encoded(Action):
    """An exchange that encodes a rank's vector first. ``exchange_times``: its seconds so far."""

    def __init__(self, source: Vector, plans: Sequence[Action]) -> None:
        self._source, self._plans, self.exchange_times = source, plans, ExchangeTimes()

    def __call__(self) -> None:
        """Encode, exchange and decode."""
        self._run(self._plans)

    def traced(self, tell: Tell) -> None:
        """See `Action.traced`."""
        self._run([partial(plan.traced, tell) for plan in self._plans])

    @abstractmethod
    def _run(self, exchanges: Sequence[Callable[[], None]]) -> None:
        """Encode, call the exchanges, which carry out the plans, and decode."""

    def forget(self) -> None:
        """Clear the error feedback of this rank."""
        return

    @property
    def sent(self) -> int:
        """See `Action.sent`."""
        return sum(plan.sent for plan in self._plans)

    @property
    def received(self) -> int:
        """See `Action.received`."""
        return sum(plan.received for plan in self._plans)

    def close(self) -> None:
        """See `Action.close`."""
        for plan in self._plans:
            plan.close()


class CastFirst(Encoded):
    """An exchange in place of a buffer into which a vector is cast first."""

    def __init__(self, exchange: Action, source: Vector, buffer: NDArray[Any]) -> None:
        super().__init__(source, [exchange])
        self._buffer = buffer

    def _run(self, exchanges: Sequence[Callable[[], None]]) -> None:
        start = time.perf_counter()
        with np.errstate(over="ignore"):  # what is too large for the type is infinite
            np.copyto(self._buffer, self._source, casting="unsafe")
        cast = time.perf_counter()
        exchanges[0]()
        encode, exchange, decode = self.exchange_times
        exchange += time.perf_counter() - cast
        self.exchange_times = ExchangeTimes(encode + cast - start, exchange, decode)


class CompressedMean(Encoded):
    """The mean of all ranks' vectors, which are sent in the code of a codec.

    ``source`` and ``target``: float32 vectors of the same length on all ranks, ``target`` in the
    transport's memory. All ranks construct this together. Vectors are added in rank order, and a
    rank decodes its own vector, too, so that all ranks get the same bits. Raises Unsupported as
    `suits` does.
    """

    def __init__(
        self, algorithm: str, codec: Codec, transport: Transport, rank: int, nranks: int,
        source: Vector, target: Vector,
    ) -> None:  # fmt: skip
        suits(codec, algorithm)
        coded = _ALGORITHMS[algorithm]
        self._codec, self._target, self._nranks = codec, target, nranks
        self._shards = parts(len(target), nranks if coded.shards else 1)
        lengths = [shard.stop - shard.start for shard in self._shards]
        self._feedback = [Feedback(codec, n) for n in lengths]
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
        added = time.perf_counter()
        for exchange in exchanges[1:]:
            exchange()
        end = time.perf_counter()
        passed = (encoded - start, arrived - encoded + end - added, added - arrived)
        self.exchange_times = ExchangeTimes(
            *(a + b for a, b in zip(self.exchange_times, passed, strict=True))
        )

    def _add(self) -> None:
        """Add up, in rank order, the vectors that were received for this rank's shard."""
        if self._own is None:
            return
        length = self._own.stop - self._own.start
        total = np.zeros(length, np.float32)
        for wire in self._arrived.reshape(self._nranks, -1):
            total += self._codec.decode(wire, length)
        self._target[self._own] = total / np.float32(self._nranks)

    def forget(self) -> None:
        """See `Encoded.forget`."""
        for feedback in self._feedback:
            feedback.left[:] = 0

    @property
    def messages(self) -> int:
        """Messages that this rank sends in an iteration."""
        return sum(len(step.sends) for plan in self._programs for step in plan.program.steps)
