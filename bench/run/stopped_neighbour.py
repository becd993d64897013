"""Looks whether a rank of this host is stopped (SIGSTOP), where no starter does.

A plain ``mpirun`` says nothing of a stopped rank, and all others wait for it for ever. Each rank
looks at the next one of its host, so that it reads one small file of /proc twice a second, on the
watching thread.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable

from bench.launch import child
from bench.run.context import RunContext
from bench.run.watchdog import end_all
from busbar.errors import RankFailure
from busbar.host import boot
from collectives.execution.mpi.world import MpiWorld

# The report of a run that is ended may take as long; then it ends without.
_LAST_WORDS_S = 8.0


class StoppedNeighbour:
    """One a rank, made by all together. `look` ends the run where the next rank stays stopped.

    ``end(reason, aloud)``: see `bench.run.watchdog.Watchdog`.
    """

    def __init__(self, opened: RunContext, end: Callable[[str, bool], None]) -> None:
        self._opened, self._end = opened, end
        self._look, self._rank, self._pid = child.StoppedProcesses(), -1, 0
        if not isinstance(opened.world, MpiWorld):
            return
        # A process number holds in its namespace; hosts may have the same.
        here = [boot(), _namespace()]
        ranks = opened.world.gather([here, os.getpid(), opened.line.connected])
        mine = [rank for rank, (where, _, _) in enumerate(ranks) if where == here]
        if len(mine) > 1 and here[1] and not any(started for _, _, started in ranks):
            self._rank = mine[(mine.index(opened.world.rank) + 1) % len(mine)]
            self._pid = ranks[self._rank][1]

    def beside(self, tick: Callable[[], None]) -> Callable[[], None]:
        """A function that calls ``tick``, and then `look` where there is a neighbour."""

        def both() -> None:
            tick()
            self.look()

        return both if self._pid else tick

    def look(self) -> None:
        """Does not return where the run is over. May be called often, by one thread."""
        if self._look.overdue([self._pid]):
            self._over(f"rank {self._rank} (pid {self._pid}) is stopped")

    def _over(self, reason: str) -> None:
        world, line, status = self._opened.world, self._opened.line, RankFailure.exit_status
        assert isinstance(world, MpiWorld)
        timer = threading.Timer(_LAST_WORDS_S, os._exit, [status])
        timer.daemon = True
        timer.start()
        try:
            if world.rank == 0:
                self._end(reason, True)
            else:
                print(f"busbar: {reason}", file=sys.stderr, flush=True)
        finally:
            end_all(world, line, status)


def _namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")  # noqa: PTH115
    except OSError:
        return ""
