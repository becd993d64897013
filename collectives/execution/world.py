"""The control plane: who the ranks are, and how they agree on small things.

Messages here are JSON, never pickled objects, and are never timed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from busbar.errors import RankFailure
from busbar.mpi import ThreadLevel

How = Literal["rank0", "avg", "min", "max", "sum"]
Json = Any
T = TypeVar("T")


class State(NamedTuple):
    """How far a rank is: a row, an iteration of it, and the rank whose message it waits for.

    ``waits_for``: -1 where it waits for none, or cannot tell.
    """

    row: int
    iteration: int
    waits_for: int = -1


class World(Protocol):
    """All ranks of a run, seen from one of them."""

    @property
    def name(self) -> str:
        """``mpi`` or ``inproc``."""

    @property
    def rank(self) -> int:
        """The number of the rank that asks."""

    @property
    def size(self) -> int:
        """The number of ranks."""

    @property
    def nodes(self) -> Sequence[int]:
        """The node that each rank is on, numbered from 0 in the order of ranks."""

    @property
    def states(self) -> dict[int, State]:
        """How far ranks have said they are; those of other processes are not among them."""

    def broadcast(self, value: Json, root: int = 0) -> Json:
        """The root's value, on every rank."""

    def gather(self, value: Json) -> list[Json]:
        """Every rank's value, in rank order, on every rank."""

    def combine(self, values: NDArray[np.float64], how: How) -> NDArray[np.float64]:
        """Elementwise rank 0's value, or a reduction of all ranks', on every rank."""

    def barrier(self) -> None:
        """Return when every rank is here."""

    def rest(self) -> None:
        """Return when every rank is here; sleep until then, so that others have the core."""

    def send(self, peer: int, values: NDArray[np.float64]) -> None:
        """Send a few numbers to a rank, which is to `receive` as many."""

    def receive(self, peer: int, into: NDArray[np.float64]) -> None:
        """Wait for the numbers that a rank sends."""

    def alarm(self, value: Json) -> None:
        """Send a message to all other ranks without waiting, for instance that this one failed."""

    def alarms(self) -> list[tuple[int, Json]]:
        """The alarms of other ranks since the last call, each with its rank."""

    def once(self, make: Callable[[], T]) -> T:
        """The result of ``make``, which ranks of one process share. All ranks call this."""

    def threads(self) -> ThreadLevel | None:
        """MPI's thread level, by which some libraries choose their collectives; None without."""

    def split(self, color: int, key: int) -> World:
        """The ranks of the same colour as a world of their own, by ``key``. All ranks call this."""

    def abort(self, status: int) -> None:
        """End every rank at once with an exit status; does not return under MPI."""


#: Why a rank waits in vain, by the numbers of native/src/watch.hpp and native/cuda/plan.cuh.
DIED, LEFT, LATE = 1, 2, 3


def lost(me: int, peer: int, reason: int, deadline: float) -> RankFailure:
    """The error of a rank that waits in vain for another; ``deadline``: seconds that it waited."""
    if reason == LATE:
        return RankFailure(f"rank {me} waited {deadline:g} s for rank {peer}, which did not arrive")
    what = "died" if reason == DIED else "has left"
    return RankFailure(f"rank {peer} {what} while rank {me} waited in a collective")
