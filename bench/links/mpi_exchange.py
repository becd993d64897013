"""Messages between pairs of MPI ranks in host memory, timed; with `bench.links.measuring` what knows mpi4py.

Bandwidth is a window of messages answered by one byte, timed at the sender; bandwidth_both a window
each way, timed at the lower rank. What `topology.measured.sweep` lists goes through persistent requests.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from topology.measured.matrix import Pair
from topology.measured.sweep import BURST, LARGEST_BURST, SWEPT

if TYPE_CHECKING:
    from mpi4py import MPI

Bytes = npt.NDArray[np.uint8]
WINDOW = 4
_ANSWER = 77


@dataclass(frozen=True)
class _Side:
    """One end of a pair: ``first`` leads."""

    comm: MPI.Intracomm
    first: bool
    peer: int
    out: npt.NDArray[np.uint8]
    back: npt.NDArray[np.uint8]

    def times(self, quantity: str, repetitions: int) -> list[float]:
        """Seconds of each round trip, or of one message as its share of a window."""
        actions = {
            "latency": (self.round_trip, 1),
            "bandwidth": (self.window, WINDOW),
            "bandwidth_both": (self.both, WINDOW),
        }
        action, messages = actions[quantity]
        samples = []
        for _ in range(repetitions):
            start = time.perf_counter()
            action()
            samples.append((time.perf_counter() - start) / messages)
        return samples

    def round_trip(self) -> None:
        """The leader sends everything and gets as much back."""
        answer = self.back[: len(self.out)]
        if self.first:
            self.comm.Send(self.out, self.peer)
            self.comm.Recv(answer, self.peer)
        else:
            self.comm.Recv(answer, self.peer)
            self.comm.Send(self.out, self.peer)

    def window(self) -> None:
        """WINDOW messages one way, then one byte of answer."""
        if self.first:
            _wait([self.comm.Isend(self.out, self.peer) for _ in range(WINDOW)])
            self.comm.Recv(self.back[:1], self.peer, _ANSWER)
        else:
            _wait(self._coming())
            self.comm.Send(self.out[:1], self.peer, _ANSWER)

    def both(self) -> None:
        """WINDOW messages each way at once."""
        coming = self._coming()
        _wait([*coming, *(self.comm.Isend(self.out, self.peer) for _ in range(WINDOW))])

    def _coming(self) -> list[Any]:
        parts = np.split(self.back, WINDOW)
        return [self.comm.Irecv(part, self.peer) for part in parts]


def _wait(requests: list[Any]) -> None:
    for request in requests:
        request.Wait()


def _idle() -> None:
    """What a rank does that has no partner in a round."""


class _Bound(NamedTuple):
    """What repetitions do in turn, and the persistent requests that they use."""

    actions: Sequence[Callable[[], None]] = (_idle,)
    requests: Sequence[Any] = ()


class MpiExchange:
    """MPI's own messages between host buffers; see `Exchange` for the methods.

    ``nbytes`` is the most that a message may have.
    """

    def __init__(self, comm: MPI.Intracomm, nbytes: int) -> None:
        self._comm = comm
        large = max(nbytes, 8)
        # Messages under way at once must not arrive in one place; they may well leave from one.
        self._out = np.zeros(max(large, min(BURST * large, BURST * LARGEST_BURST)), dtype=np.uint8)
        self._back = np.zeros(WINDOW * large, dtype=np.uint8)

    def times(
        self, quantity: str, pairs: Sequence[Pair], nbytes: int, repetitions: int
    ) -> list[float]:
        """See `Exchange.times`. Pairs do not wait for each other."""
        rank = self._comm.rank
        if quantity in SWEPT:
            return self._swept(quantity, pairs, nbytes, repetitions)
        for a, b in pairs:
            if rank in (a, b):
                first = rank == a
                out, back = self._out[:nbytes], self._back[: WINDOW * nbytes]
                side = _Side(self._comm, first, b if first else a, out, back)
                found = side.times(quantity, repetitions)
                return found if first else []
        return []

    def _swept(
        self, quantity: str, pairs: Sequence[Pair], nbytes: int, repetitions: int
    ) -> list[float]:
        """Times of what a sweep asks for. All ranks call this: ``first`` begins behind a barrier."""
        comm, rank = self._comm, self._comm.rank
        mine = next((pair for pair in pairs if rank in pair), None)
        bound = _Bound()
        if mine is not None:
            peer = mine[1] if rank == mine[0] else mine[0]
            bound = self._bound(quantity, peer, rank == mine[0], nbytes)
        alone = quantity == "first"
        own = np.zeros(repetitions)
        for i in range(repetitions):
            action = bound.actions[i % len(bound.actions)]
            if alone:
                comm.Barrier()
            start = time.perf_counter()
            action()
            own[i] = time.perf_counter() - start
        for request in bound.requests:
            request.Free()
        if alone:
            everyone = np.zeros((comm.size, repetitions))
            comm.Allgather(own, everyone)
            own = everyone.max(axis=0)
        if mine is None or rank != mine[0]:
            return []
        share = 2 if quantity == "trip" else 1
        return [float(seconds) / share for seconds in own]

    def _bound(self, quantity: str, peer: int, leads: bool, nbytes: int) -> _Bound:
        """What repetitions do in turn. As in a collective, what has arrived is sent on."""
        comm = self._comm
        n = BURST if quantity == "burst" else 1
        here, there = self._out[: n * nbytes], self._back[: n * nbytes]

        def sends(source: Bytes) -> list[Any]:
            return [comm.Send_init(part, peer, i) for i, part in enumerate(np.split(source, n))]

        def receives(target: Bytes) -> list[Any]:
            return [comm.Recv_init(part, peer, i) for i, part in enumerate(np.split(target, n))]

        if quantity == "trip":
            way = [*sends(here), *receives(here)]
            order = way if leads else way[::-1]
            return _Bound((lambda: _in_turn(order),), way)
        forth = [*receives(there), *sends(here)]
        if quantity in ("add", "sum"):
            own, arrived = here.view(np.float32), there.view(np.float32)
            total = own if quantity == "add" else np.empty_like(own)
            return _Bound((_calls(forth, partial(np.add, own, arrived, total)),), forth)
        if quantity == "still":
            return _Bound((_calls(forth),), forth)
        back = [*receives(here), *sends(there)]
        return _Bound((_calls(forth), _calls(back)), [*forth, *back])

    def close(self) -> None:
        """There is nothing to free: the communicator is the caller's."""


def _in_turn(requests: Sequence[Any]) -> None:
    for request in requests:
        request.Start()
        request.Wait()


def _calls(requests: Sequence[Any], *then: Callable[[], object]) -> Callable[[], None]:
    """Start all requests, wait for all, and what follows: a flat list of calls, as a transport has."""
    calls = [*(r.Start for r in requests), *(r.Wait for r in requests), *then]

    def action() -> None:
        for call in calls:
            call()

    return action
