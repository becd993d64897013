"""A schedule: the moves of each step, as data, independent of collective, size and transport.

The rules on which every reader of a schedule may rely:

1. All reads of a step precede all of its writes.
2. A plain write shares its slot with no other read or write of its step; several reducing writes
   may share one.
3. Moves between one pair of ranks keep their order at both ends, so no tags are needed.
4. Steps order a rank's own moves; there is no barrier between ranks.

The moves of a step are made on demand and need not be kept. A rank's part of a step is the subset
of its moves that read from the rank or write to it.

*Vector form.* Most algorithms are written on one virtual vector that all ranks share: every slot is
``(OUT, chunk of the vector)``, as if run in place. `collectives.schedule.place.place` turns that
into slots of ``in``, ``out`` and ``scratch`` for a given collective. Schedules in vector form
compose by concatenation: reduce-scatter then all-gather is an all-reduce.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import overload

import numpy as np
from numpy.typing import NDArray

from busbar.units import format_count
from collectives.schedule.moves import Move, Moves


@dataclass(frozen=True, repr=False)
class Step:
    """Moves that may happen at once; ``make()`` returns all of them, the same each time.

    A rank executes a subset of the moves that were proven. ``signature``: steps of one schedule
    with the same signature (not None) move the same amounts between the same ranks in the same
    order, and add the same; only the chunks' numbers may differ. It saves making all of them.
    ``parts``: the steps of which this step is the union, if it is one.
    """

    make: Callable[[], Moves]
    signature: Hashable = None
    parts: tuple[Step, ...] = ()

    @classmethod
    def fixed(cls, all_moves: Moves) -> Step:
        """A step whose moves are already made."""
        return cls(lambda: all_moves)

    def moves(self, rank: int | None = None) -> Moves:
        """All moves of the step, or those from or to ``rank``, always in the same order."""
        every = self.make()
        return every if rank is None else every.touching(rank)

    def __repr__(self) -> str:
        return f"<Step: {format_count(len(self.make()), 'move')}>"


@dataclass(frozen=True)
class StepRun:
    """``count`` consecutive steps of one signature; ``make(i)``: the moves of the i-th of them."""

    count: int
    make: Callable[[int], Moves]
    signature: Hashable

    def step(self, i: int) -> Step:
        """The i-th step of the run."""
        return Step(lambda: self.make(i), self.signature)

    def reversed(self) -> StepRun:
        """The same run in reverse order."""
        return StepRun(self.count, lambda i: self.make(self.count - 1 - i), self.signature)


class Steps(Sequence[Step]):
    """Steps as runs, made when they are read: a ring of a million ranks has two runs."""

    def __init__(self, runs: Iterable[StepRun]) -> None:
        self.runs = tuple(runs)
        self._ends = list(accumulate(run.count for run in self.runs))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    @overload
    def __getitem__(self, index: int) -> Step: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Step]: ...
    def __getitem__(self, index: int | slice) -> Step | Sequence[Step]:
        numbers = range(len(self))[index]
        if isinstance(numbers, range):
            return tuple(self[i] for i in numbers)
        at = bisect_right(self._ends, numbers)
        return self.runs[at].step(numbers - self._ends[at] + self.runs[at].count)

    def __iter__(self) -> Iterator[Step]:
        return (run.step(i) for run in self.runs for i in range(run.count))


def runs_of(steps: Sequence[Step]) -> Iterator[tuple[Step, int, Sequence[Step]]]:
    """Runs of steps of one signature: the first step, their number, and all of them."""
    if isinstance(steps, Steps):
        for run in steps.runs:
            if run.count:
                yield run.step(0), run.count, Steps([run])
    else:
        yield from ((step, 1, (step,)) for step in steps)


@dataclass(frozen=True, repr=False)
class Schedule:
    """Steps over ``nranks`` ranks and a vector of ``nchunks`` equal chunks.

    ``packed``: all data that a pair of ranks exchanges in a step shall travel as one message
    (`pack`). ``scratch``: the most scratch slots that a rank needs. ``vector``: the schedule is in
    vector form. ``name`` and ``parameters``: the algorithm that made it. ``held``: for every rank
    the vector chunk that each of its scratch slots stands for (see `scratch_chunks`). ``fusible``:
    a rank may forward in one pass what it receives, as an algorithm's relay does. It is False for
    an exchange that measures how long a message takes, because each message must be separate.
    """

    nranks: int
    nchunks: int
    steps: Sequence[Step]
    scratch: int = 0
    vector: bool = True
    packed: bool = False
    fusible: bool = True
    name: str = ""
    parameters: tuple[tuple[str, object], ...] = ()
    held: tuple[NDArray[np.int64], ...] = field(default=(), compare=False)

    def __repr__(self) -> str:
        name = f" {self.name}" if self.name else ""
        ranks, chunks = format_count(self.nranks, "rank"), format_count(self.nchunks, "chunk")
        steps = format_count(len(self.steps), "step")
        return f"<Schedule{name}: {steps}, {ranks}, {chunks}>"

    @classmethod
    def of(
        cls,
        nranks: int,
        nchunks: int,
        steps: Sequence[Iterable[Move]],
        *,
        scratch: int = 0,
        vector: bool = False,
    ) -> Schedule:
        """Make a schedule from single moves, for tests and imports."""
        fixed = tuple(Step.fixed(Moves.of(step)) for step in steps)
        return cls(nranks, nchunks, fixed, scratch, vector)

    def scratch_chunks(self, rank: int) -> NDArray[np.int64]:
        """The vector chunk that each scratch slot of a rank stands for, and so its size.

        By default slot c stands for chunk c modulo the number of chunks.
        """
        if self.held:
            return self.held[rank]
        return np.arange(self.scratch) % max(1, self.nchunks)

    @cached_property
    def all_moves(self) -> tuple[Moves, ...]:
        """Every step's moves, made once and kept: for proofs, costs and drawings."""
        return tuple(step.moves() for step in self.steps)
