"""Beside the measuring thread: ends the run on a signal, and explains a row that is stuck.

Signals are blocked everywhere and taken here, because Python runs handlers only between byte
codes, and a rank that waits inside MPI for a dead peer has none. For the same reason the state of
each rank is told by its watching thread, on communicators of their own.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Mapping

import numpy as np

from collectives.world import World
from collectives.worlds.mpi import MpiWorld

__all__ = ["SIGNALS", "Watch", "block_signals", "explain"]

SIGNALS = (signal.SIGINT, signal.SIGTERM)
# How long rank 0 waits for the other watching threads to say where their ranks are.
_ANSWER_S = 2.0
_POLL_S = 0.2
State = tuple[int, int]


def block_signals() -> None:
    """Leave SIGINT and SIGTERM to the watching thread; call before MPI starts threads."""
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)


def explain(states: Mapping[int, State], size: int) -> str:
    """Which ranks had not arrived, from (row, iteration) of those that answered."""
    silent = [rank for rank in range(size) if rank not in states]
    front = max(states.values())
    behind = [rank for rank in sorted(states) if states[rank] < front]
    said = []
    if behind:
        said.append(f"not arrived at iteration {front[1]}: {_ranks(behind)}")
    if silent:
        said.append(f"no answer at all from {_ranks(silent)}")
    return (
        "; ".join(said) or f"all ranks are inside iteration {front[1]}; the exchange itself hangs"
    )


def _ranks(ranks: list[int]) -> str:
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, ranks))


class Watch:
    """One a rank. ``end(reason, status)`` is called on rank 0, from the watching thread."""

    def __init__(
        self, world: World, timeout: float | None, end: Callable[[str, int], None]
    ) -> None:
        self._world, self._timeout, self._end = world, timeout, end
        self._row, self._iteration = -1, -1
        self._deadline = float("inf")
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self._thread.start()

    def row(self) -> None:
        """A new row begins; its time-out starts now."""
        self._row, self._iteration = self._row + 1, -1
        if self._timeout is not None:
            self._deadline = time.monotonic() + self._timeout

    def arrived(self, iteration: int) -> None:
        """See `bench.measure.Watcher`."""
        self._iteration = iteration

    def close(self) -> None:
        """The run is over; signals no longer matter."""
        self._over.set()
        self._thread.join(2 * _POLL_S + _ANSWER_S)

    def _run(self) -> None:
        while not self._over.is_set():
            taken = signal.sigtimedwait(SIGNALS, _POLL_S)
            if taken is not None:
                self._signalled(signal.Signals(taken.si_signo))
            elif time.monotonic() > self._deadline:
                self._stuck()

    def _signalled(self, which: signal.Signals) -> None:
        status = 128 + which
        if self._world.rank != 0:
            # Rank 0 is likely to have got it too, and has the report to print.
            time.sleep(1)
            self._world.abort(status)
            os._exit(status)
        self._end(f"interrupted by {which.name}", status)

    def _stuck(self) -> None:
        self._deadline = float("inf")
        states = {self._world.rank: (self._row, self._iteration)}
        if isinstance(self._world, MpiWorld) and self._world.threaded():
            states |= _answers(self._world, states[self._world.rank])
        if self._world.rank == 0:
            said = explain(states, self._world.size)
            self._end(f"the row took longer than {self._timeout:g} s (-T); {said}", 4)


def _answers(world: MpiWorld, mine: State) -> dict[int, State]:
    """Rank 0 collects what the other ranks' watching threads send; the others send it."""
    if world.rank != 0:
        request = world.side.Isend(np.array(mine, np.int64), 0)
        stop = time.monotonic() + 2 * _ANSWER_S
        while not request.Test() and time.monotonic() < stop:
            time.sleep(_POLL_S / 10)
        return {}
    found: dict[int, State] = {}
    stop = time.monotonic() + _ANSWER_S
    while len(found) < world.size - 1 and time.monotonic() < stop:
        status = world.mpi.Status()
        if not world.side.Iprobe(status=status):
            time.sleep(_POLL_S / 10)
            continue
        state = np.empty(2, np.int64)
        world.side.Recv(state, source=status.Get_source())
        found[int(status.Get_source())] = (int(state[0]), int(state[1]))
    return found
