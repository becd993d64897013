"""Compressed gradients: cast for any all-reduce, or coded where a gradient is sent only once.

An algorithm that adds on the way needs numbers it can add. 8-bit codes, signs and indices are not
such numbers. They suit the all-reduces in which a vector is sent once and added where it arrives.
The sum is sent back in float32, since no rank keeps error feedback for it.
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
from bench.steps.training.shared import parts
from collectives.execution.plan import Plan
from collectives.execution.transport import Action, Tell, Transport
from collectives.schedule.catalogue import build, spec
from collectives.schedule.layout import Elements

Vector = NDArray[np.float32]


class Exchanged(NamedTuple):
    """The collectives of a coded exchange: coded vectors go out, the mean comes back."""

    push: tuple[str, str]
    answer: tuple[str, str] | None
    #: Every rank adds up a shard of its own.
    shards: bool


#: The moves of the all-reduces in which a vector travels once, without the additions.
_MOVES = {
    "one_shot": Exchanged(("allgather", "direct"), None, False),
    "ps": Exchanged(("gather", "flat"), ("broadcast", "flat"), False),
    "sharded_ps": Exchanged(("alltoall", "direct"), ("allgather", "direct"), True),
}


class Leg(NamedTuple):
    """A collective that is part of an exchange: its size (see `Collective.size`) and element."""

    collective: str
    algorithm: str
    nbytes: int
    itemsize: int


def legs(algorithm: str, codec: Codec, elements: int, nranks: int) -> list[Leg]:
    """The collectives that a vector of so many elements takes as a codec's bytes."""
    how = _MOVES[algorithm]
    shards = nranks if how.shards else 1
    wire = sum(codec.nbytes(one.stop - one.start) for one in parts(elements, shards))
    push = Leg(*how.push, wire if how.shards else nranks * wire, 1)
    return [push] if how.answer is None else [push, Leg(*how.answer, 4 * elements, 4)]


class Spent(NamedTuple):
    """Seconds of one rank, all iterations together."""

    encode: float = 0.0
    exchange: float = 0.0
    decode: float = 0.0


class Encoded(Action):
    """An exchange that encodes a rank's vector first. ``spent``: its seconds by part."""

    def __init__(self, source: Vector, plans: Sequence[Action]) -> None:
        self._source, self._plans, self.spent = source, plans, Spent()

    def __call__(self) -> None:
        """Encode, exchange and decode."""
        self._run(self._plans)

    def traced(self, tell: Tell) -> None:
        """See `Action.traced`."""
        self._run([partial(plan.traced, tell) for plan in self._plans])

    @abstractmethod
    def _run(self, exchanges: Sequence[Callable[[], None]]) -> None:
        """The whole, with these in place of its plans."""

    def forget(self) -> None:
        """Drop what error feedback keeps back on this rank."""
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
    """An exchange in place of a buffer that a vector is copied into first, in the buffer's type."""

    def __init__(self, exchange: Action, source: Vector, buffer: NDArray[Any]) -> None:
        super().__init__(source, [exchange])
        self._buffer = buffer

    def _run(self, exchanges: Sequence[Callable[[], None]]) -> None:
        start = time.perf_counter()
        with np.errstate(over="ignore"):  # what is too large for the type is infinite
            np.copyto(self._buffer, self._source, casting="unsafe")
        cast = time.perf_counter()
        exchanges[0]()
        encode, exchanged, decode = self.spent
        passed = time.perf_counter() - cast
        self.spent = Spent(encode + cast - start, exchanged + passed, decode)


class CompressedMean(Encoded):
    """The mean of all ranks' vectors, each as its code decodes.

    ``source`` and ``target``: float32, ``target`` of the transport's memory; the same length on all
    ranks, which make this together. Every rank adds in rank order, its own vector decoded like the
    others', so that all end with the same bits. Raises Unsupported where `suits` does.
    """

    def __init__(
        self, algorithm: str, codec: Codec, transport: Transport, rank: int, nranks: int,
        source: Vector, target: Vector,
    ) -> None:  # fmt: skip
        suits(codec, algorithm)
        how = _MOVES[algorithm]
        self._codec, self._target, self._nranks = codec, target, nranks
        self._shards = parts(len(target), nranks if how.shards else 1)
        lengths = [part.stop - part.start for part in self._shards]
        self._feedback = [Feedback(codec, n) for n in lengths]
        # Which of its shards this rank adds up: every rank all of one, or the root alone.
        adds = rank if how.shards else 0
        self._own = self._shards[adds] if how.answer is None or how.shards or rank == 0 else None
        sizes = [codec.nbytes(n) for n in lengths]
        self._sent = transport.allocate(sum(sizes))
        arriving = 0 if self._own is None else nranks * sizes[adds]
        self._arrived = transport.allocate(arriving)

        def plan(
            what: tuple[str, str], source: NDArray[np.generic], target: NDArray[np.generic],
            elements: Elements, *, in_place: bool,
        ) -> Plan:  # fmt: skip
            collective, algorithm = what
            schedule = build(collective, algorithm, nranks)
            where = (transport, rank, source, target, None, elements)
            return Plan(schedule, spec(collective), *where, in_place=in_place)

        each: Elements = np.tile(sizes, nranks) if how.shards else sizes[0]
        self._moves = [plan(how.push, self._sent, self._arrived, each, in_place=False)]
        if how.answer is not None:
            own = target[:0] if self._own is None else target[self._own]
            self._moves.append(plan(how.answer, own, target, np.array(lengths), in_place=True))
        super().__init__(source, self._moves)

    def _run(self, exchanges: Sequence[Callable[[], None]]) -> None:
        start = time.perf_counter()
        at = 0
        for part, feedback in zip(self._shards, self._feedback, strict=True):
            wire = feedback.encode(self._source[part])
            self._sent[at : at + len(wire)] = wire
            at += len(wire)
        encoded = time.perf_counter()
        exchanges[0]()
        arrived = time.perf_counter()
        self._add()
        added = time.perf_counter()
        for exchange in exchanges[1:]:
            exchange()
        end = time.perf_counter()
        passed = (encoded - start, arrived - encoded + end - added, added - arrived)
        self.spent = Spent(*(a + b for a, b in zip(self.spent, passed, strict=True)))

    def _add(self) -> None:
        """The sum, in rank order, of what has come for this rank's shard."""
        if self._own is None:
            return
        length = self._own.stop - self._own.start
        total = np.zeros(length, np.float32)
        for wire in self._arrived.reshape(self._nranks, -1):
            total += self._codec.decode(wire, length)
        self._target[self._own] = total / np.float32(self._nranks)

    def forget(self) -> None:
        """See `Encoded.forget`."""
        for one in self._feedback:
            one.left[:] = 0

    @property
    def messages(self) -> int:
        """Messages that this rank sends with an iteration."""
        return sum(len(step.sends) for plan in self._moves for step in plan.program.steps)
