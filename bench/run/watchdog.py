"""Beside the measuring thread: ends the run on a signal, and explains a row that is stuck.

Python runs signal handlers in the main thread, between byte codes, and a rank that waits inside MPI
for a dead peer has none. So signals only wake this thread, which acts on them; and the state of
each rank is told by its watching thread, on a communicator of its own.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager

import numpy as np

from bench.launch.child import SOFTLY
from collectives.execution.mpi.world import MpiWorld
from collectives.execution.world import World

__all__ = ["SIGNALS", "Watchdog", "explain"]

SIGNALS = (signal.SIGINT, signal.SIGTERM, SOFTLY)
# How long rank 0 waits for the other watching threads to say where their ranks are.
_ANSWER_S = 2.0
_POLL_S = 0.2
# How long a rank that was interrupted leaves the report to rank 0.
_GRACE_S = 5.0
State = tuple[int, int]


@contextmanager
def _caught_signals() -> Iterator[socket.socket]:
    """Meanwhile what ends a run are bytes on the socket that is given; main thread only."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.setblocking(False)
        handlers = {which: signal.signal(which, lambda *_: None) for which in SIGNALS}
        before = signal.set_wakeup_fd(theirs.fileno())
        try:
            yield ours
        finally:
            signal.set_wakeup_fd(before)
            for which, handler in handlers.items():
                signal.signal(which, handler or signal.SIG_DFL)


def explain(states: Mapping[int, State], size: int) -> str:
    """Which ranks had not arrived, from (row, iteration) of those that answered."""
    silent = [rank for rank in range(size) if rank not in states]
    front = max(states.values())
    behind = [rank for rank in sorted(states) if states[rank] < front]
    if silent:  # whoever is merely behind waits for them
        return f"{_ranks(silent)} had not arrived and gave no answer at all"
    if behind:
        return f"{_ranks(behind)} had not arrived at iteration {front[1]}"
    return f"all ranks are inside iteration {front[1]}; the exchange itself hangs"


def _ranks(ranks: list[int]) -> str:
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, ranks))


class Watchdog:
    """One a rank. ``end(reason, status)`` is called on rank 0, from the watching thread."""

    def __init__(
        self,
        world: World,
        timeout: float | None,
        end: Callable[[str, int], None],
        signals: bool,
        tick: Callable[[], None],
    ) -> None:
        """``signals``: whether this watch takes the process's; one can, made by the main thread.

        Until there is a watch, and after it, they do what they always did. ``tick`` is called
        several times a second, also while a row takes long.
        """
        self._world, self._timeout, self._end, self._tick = world, timeout, end, tick
        self._ends = ExitStack()
        self._signals = self._ends.enter_context(_caught_signals()) if signals else None
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
        """See `bench.run.measure.Watcher`."""
        self._iteration = iteration

    def close(self) -> None:
        """The run is over; signals no longer matter."""
        self._over.set()
        self._thread.join(2 * _POLL_S + _ANSWER_S)
        if not self._thread.is_alive():
            self._ends.close()

    def _run(self) -> None:
        while not self._over.is_set():
            taken = self._taken()
            self._tick()
            if taken in SIGNALS:
                self._signalled(signal.Signals(taken))
            elif time.monotonic() > self._deadline:
                self._stuck()

    def _taken(self) -> int:
        """The number of a signal that has come, or 0 after a while."""
        if self._signals is None:
            self._over.wait(_POLL_S)
            return 0
        ready, _, _ = select.select([self._signals], [], [], _POLL_S)
        return self._signals.recv(1)[0] if ready else 0

    def _signalled(self, which: signal.Signals) -> None:
        name = "" if which == SOFTLY else f" by {which.name}"
        status = 128 + (signal.SIGINT if which == SOFTLY else which)
        if self._world.rank != 0:
            # Rank 0 is likely to have got it too, has the report to print, and ends all then.
            time.sleep(_GRACE_S)
            self._world.abort(status)
            os._exit(status)
        self._end(f"interrupted{name}", status)

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
