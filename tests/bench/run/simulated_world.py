"""A world of many ranks in one process: its messages are counted, and every rank says the same."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from math import ceil, log2
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from collectives.execution.world import How, Json, State

T = TypeVar("T")


class SimulatedWorld:
    """Rank 0's view of a world whose other ranks say what rank 0 does; see `World`.

    ``messages`` and ``nbytes``: over all ranks, of binomial trees (a broadcast), of recursive
    doubling (a gather, which leaves every rank's value on every rank) and of both trees (a
    reduction). ``into``: bytes that each rank has received; ``at_rank_0``: what rank 0 alone has
    received beside them.
    """

    name, rank = "mpi", 0

    def __init__(self, size: int) -> None:
        self.size = size
        self.nodes: Sequence[int] = tuple(rank // 64 for rank in range(size))
        self.states: dict[int, State] = {}
        self.messages = self.nbytes = self.into = self.at_rank_0 = 0

    def _count(self, messages: int, nbytes: int, into: int) -> None:
        self.messages += messages
        self.nbytes += nbytes
        self.into += into

    def broadcast(self, value: Json, root: int = 0) -> Json:
        """See `World.broadcast`."""
        text = json.dumps(value)
        self._count(self.size - 1, (self.size - 1) * len(text), len(text))
        return json.loads(text)

    def gather(self, value: Json) -> list[Json]:
        """See `World.gather`."""
        text = json.dumps(value)
        into = (self.size - 1) * len(text)
        self._count(self.size * ceil(log2(self.size)), self.size * into, into)
        return [json.loads(text)] * self.size

    def collect(self, value: Json) -> list[Json]:
        """See `World.collect`: of rank 0, what a binomial tree brings."""
        text = json.dumps(value)
        levels = ceil(log2(self.size))
        self._count(self.size - 1, len(text) * self.size * levels // 2, 0)
        self.at_rank_0 += (self.size - 1) * len(text)
        return [json.loads(text)] * self.size

    def combine(self, values: NDArray[np.float64], how: How) -> NDArray[np.float64]:
        """See `World.combine`."""
        self._count(2 * (self.size - 1), 2 * (self.size - 1) * values.nbytes, 2 * values.nbytes)
        return values * self.size if how == "sum" else values.copy()

    def barrier(self) -> None:
        """See `World.barrier`: a dissemination."""
        self._count(self.size * ceil(log2(self.size)), 0, 0)

    rest = barrier

    def threads(self) -> None:
        """See `World.threads`: what is not known."""

    def once(self, make: Callable[[], T]) -> T:
        """See `World.once`."""
        return make()

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"the simulated world has no {name}")
