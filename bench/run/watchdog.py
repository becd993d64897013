"""A thread beside the measuring one: ends the run on a signal, and explains a stuck row.

Python runs signal handlers in the main thread, between byte codes. A rank that waits inside MPI for
a dead peer executes none. So signals only wake this thread, which acts on them. It also sends the
state of its rank to the others, on a communicator of its own.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress

import numpy as np

from bench.launch.child import SOFTLY
from bench.launch.line import Hotline, Phase
from bench.launch.segments import Segments
from collectives.execution.mpi.world import MpiWorld
from collectives.execution.world import State, World

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, SOFTLY)
# How long rank 0 waits for the other watching threads to say where their ranks are.
_ANSWER_S = 2.0
_POLL_S = 0.2
# How long a rank that was interrupted leaves the report to rank 0.
_GRACE_S = 5.0
# How long a rank that was signalled waits for its starter to say why: launchers send SIGTERM to
# those that are left when one is gone.
_WORD_S = 0.5
# The report of a run that is ended may take as long; then it ends without.
_LAST_WORDS_S = 8.0


@contextmanager
def _caught_signals() -> Iterator[socket.socket]:
    """Meanwhile what ends a run are bytes on the socket that is given; main thread only."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.setblocking(False)
        before = signal.set_wakeup_fd(theirs.fileno())  # first and last: none may go unheard
        handlers = {
            which: signal.signal(which, lambda *_: None)
            for which in SIGNALS
            # What nohup has made of it stays so.
            if which != signal.SIGHUP or signal.getsignal(which) is not signal.SIG_IGN
        }
        try:
            yield ours
        finally:
            for which, handler in handlers.items():
                signal.signal(which, handler or signal.SIG_DFL)
            signal.set_wakeup_fd(before)


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


def end_all(world: MpiWorld, line: Hotline, status: int) -> None:
    """End every rank, this one by its own will; none of MPI's segments stays. Does not return."""
    _forget_segments()
    line.leave(status)
    world.abort(status)


def _forget_segments() -> None:
    """Unlink what this rank has mapped: whoever ends all ranks may be ended before it is done."""
    mine = Segments()
    mine.look(os.getpid())
    mine.remove(used=True)


class Watchdog:
    """One a rank. ``end(reason, aloud)`` reports on rank 0, from the watching thread."""

    def __init__(
        self,
        world: World,
        timeout: float | None,
        end: Callable[[str, bool], None],
        line: Hotline,
        tick: Callable[[], None],
    ) -> None:
        """Made in the main thread a watch takes the process's signals.

        Until there is a watch, and after it, they do what they always did. ``tick`` is called
        several times a second, also while a row takes long.
        """
        self._world, self._timeout, self._end, self._tick = world, timeout, end, tick
        self._line = line
        self._ends = ExitStack()
        main = threading.current_thread() is threading.main_thread()
        self._signals = self._ends.enter_context(_caught_signals()) if main else None
        self._row, self._iteration = -1, -1
        #: Whether the run is ended since a row takes too long.
        self.stuck = False
        self._explain: Callable[[Mapping[int, State], int], str] = explain
        self._deadline = float("inf")
        self._over = threading.Event()
        line.stage(Phase.ROWS)
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self._thread.start()

    def row(self) -> None:
        """A new row begins; its time-out starts now."""
        self._row, self._iteration = self._row + 1, -1
        self._explain = explain
        self._world.states[self._world.rank] = self._row, self._iteration
        self._line.tell(row=self._row)
        if self._timeout is not None:
            self._deadline = time.monotonic() + self._timeout

    def explained(self, how: Callable[[Mapping[int, State], int], str]) -> None:
        """Until the next row ``how``, called as `explain` is, says what is waited for."""
        self._explain = how

    def arrived(self, iteration: int) -> None:
        """See `bench.run.batches.Arrived`."""
        self._iteration = iteration
        self._world.states[self._world.rank] = self._row, iteration

    def depart(self, status: int) -> None:
        """End this rank without MPI's end, which would wait for ranks that are gone."""
        if isinstance(self._world, MpiWorld):
            _forget_segments()
        self._line.leave(status)
        with suppress(OSError):
            sys.stdout.flush()
        os._exit(status)

    def close(self) -> None:
        """The run is over; signals no longer matter."""
        self._line.stage(Phase.ENDING)
        self._over.set()
        self._thread.join(2 * _POLL_S + _ANSWER_S)
        if not self._thread.is_alive():
            self._ends.close()

    def _run(self) -> None:
        while not self._over.is_set():
            taken, word = self._taken()
            self._tick()
            if word is not None:
                self._told(word)
            elif taken in SIGNALS:
                self._signalled(signal.Signals(taken))
            elif time.monotonic() > self._deadline:
                self._stuck()

    def _taken(self) -> tuple[int, str | None]:
        """The number of a signal that has come, or 0 after a while, and the starter's word."""
        listening: list[socket.socket | Hotline] = [] if self._signals is None else [self._signals]
        if self._line.here:
            listening.append(self._line)
        if not listening:
            self._over.wait(_POLL_S)
            return 0, None
        try:
            ready, _, _ = select.select(listening, [], [], _POLL_S)
        except (OSError, ValueError, AssertionError):  # this rank leaves
            return 0, None
        word = self._line.heard() if self._line in ready else None
        if self._signals is None or self._signals not in ready:
            return 0, word
        return self._signals.recv(1)[0], word

    def _signalled(self, which: signal.Signals) -> None:
        if self._line.here and select.select([self._line], [], [], _WORD_S)[0]:
            word = self._line.heard()
            if word is not None:
                self._told(word)
        # Rank 0 is likely to have got it too, has the report to print, and ends all then.
        if self._world.rank != 0 and which != SOFTLY:
            self._line.tell(signalled=int(which))
        name = "" if which == SOFTLY else f" by {which.name}"
        status = 128 + (signal.SIGINT if which == SOFTLY else which)
        self._leave(f"interrupted{name}", status, _GRACE_S)

    def _told(self, word: str) -> None:
        """End as the starter says: its exit status and its reason."""
        status, _, reason = word.partition(" ")
        if not status.isdigit():  # nobody is there to say anything
            self._leave(word, 4, _GRACE_S)
        self._leave(reason, int(status), _GRACE_S, aloud=False)  # the starter says it

    def _stuck(self) -> None:
        self._deadline, self.stuck = float("inf"), True
        states = dict(self._world.states)
        if isinstance(self._world, MpiWorld) and self._world.threaded():
            states |= _answers(self._world, states[self._world.rank])
        late = f"the row took longer than {self._timeout:g} s (-T)"
        if self._world.rank == 0:
            self._leave(f"{late}; {self._explain(states, self._world.size)}", 4)
        # Rank 0 ends all by now, unless it is the one that is missing.
        elif isinstance(self._world, MpiWorld) and not self._over.wait(_GRACE_S):
            if self._world.rank == 1:
                print(f"busbar: {late}; rank 0 gave no answer", file=sys.stderr, flush=True)
            self._leave("", 4)

    def _leave(self, reason: str, status: int, grace: float = 0.0, aloud: bool = True) -> None:
        """Report on rank 0, after ``grace`` on others nothing, and end all ranks. Never returns."""
        timer = threading.Timer(grace + _LAST_WORDS_S, os._exit, [status])
        timer.daemon = True
        timer.start()
        try:
            if isinstance(self._world, MpiWorld):
                _forget_segments()
            if self._world.rank == 0:
                self._end(reason, aloud)
            else:
                time.sleep(grace)
        finally:
            if isinstance(self._world, MpiWorld):
                end_all(self._world, self._line, status)
            os._exit(status)


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
