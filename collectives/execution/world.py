"""The control plane: the ranks of a run, and how they exchange small values.

Messages here are JSON, never pickled objects, and are never timed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from busbar.errors import RankFailure, Unavailable
from busbar.mpi import ThreadLevel

How = Literal["rank0", "avg", "min", "max", "sum"]
Json = Any
T = TypeVar("T")


class State(NamedTuple):
    """A rank's progress: its row, the iteration, and the rank whose message it waits for.

    ``waits_for``: -1 if it waits for none, or this is unknown.
    """

    row: int
    iteration: int
    waits_for: int = -1


class World(Protocol):
    """All ranks of a run, seen from one of them, and control messages between them.

    Like a communicator, but for small JSON values and numbers; buffers are moved by a `Transport`.
    """

    @property
    def name(self) -> str:
        """``mpi`` or ``inproc``."""

    @property
    def rank(self) -> int:
        """The number of this rank."""

    @property
    def size(self) -> int:
        """The number of ranks."""

    @property
    def nodes(self) -> Sequence[int]:
        """The node that each rank is on, numbered from 0 in the order of ranks."""

    @property
    def states(self) -> dict[int, State]:
        """The last reported progress of ranks in this process, by rank."""

    def broadcast(self, value: Json, root: int = 0) -> Json:
        """The root's value, on every rank."""

    def gather(self, value: Json) -> list[Json]:
        """Every rank's value, in rank order, on every rank."""

    def collect(self, value: Json) -> list[Json]:
        """Every rank's value, in rank order, on rank 0; an empty list on every other rank."""

    def combine(self, values: NDArray[np.float64], how: How) -> NDArray[np.float64]:
        """Combine all ranks' arrays elementwise; every rank gets the result.

        ``how``: a reduction, or ``rank0`` for rank 0's values.
        """

    def barrier(self) -> None:
        """Return when every rank has called this."""

    def rest(self) -> None:
        """Return when every rank has called this; sleep meanwhile, so that the core is free."""

    def send(self, peer: int, values: NDArray[np.float64]) -> None:
        """Send a few numbers to a rank, which must `receive` the same number."""

    def receive(self, peer: int, into: NDArray[np.float64]) -> None:
        """Wait for the numbers that a rank sends."""

    def alarm(self, value: Json) -> None:
        """Send a message to all other ranks without waiting, for instance that this one failed."""

    def alarms(self) -> list[tuple[int, Json]]:
        """The alarms of other ranks since the last call, as (rank, message)."""

    def once(self, make: Callable[[], T]) -> T:
        """The result of ``make``, made once for all ranks of a process. All ranks call this."""

    def threads(self) -> ThreadLevel | None:
        """MPI's thread level, on which some libraries' choices depend; None without MPI."""

    def split(self, color: int, key: int) -> World:
        """A `World` of the ranks with the same ``color``, ordered by ``key``. All ranks call it."""

    def abort(self, status: int) -> None:
        """End every rank at once with an exit status; does not return under MPI."""


def agree(world: World, why: str) -> None:
    """Raise Unavailable on all ranks, with the first reason, if any rank has a reason ``why``."""
    reasons = sorted(filter(None, world.gather(why)))
    if reasons:
        raise Unavailable(reasons[0])


#: Why a wait failed, with the numbers of native/src/watch.hpp and native/cuda/plan.cuh.
DIED, LEFT, LATE = 1, 2, 3


def lost(me: int, peer: int, reason: int, deadline: float) -> RankFailure:
    """The error of a rank whose wait for another failed; ``deadline``: seconds that it waited."""
    if reason == LATE:
        return RankFailure(f"rank {me} waited {deadline:g} s for rank {peer}, which did not arrive")
    what = "died" if reason == DIED else "has left"
    return RankFailure(f"rank {peer} {what} while rank {me} waited in a collective")
