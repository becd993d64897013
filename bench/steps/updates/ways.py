"""The ends of servers and learners as threads, ranks of MPI, or processes that call sockets."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from secrets import token_hex
from signal import SIGKILL
from subprocess import DEVNULL, Popen, TimeoutExpired
from typing import Any

import numpy as np

from bench.launch import child
from bench.steps.job import StepJob
from bench.steps.server.both import OpenServer
from bench.steps.server.ends import LearnerEnd, ServerEnd
from bench.steps.server.hooks import Vector
from bench.steps.server.messages import MpiLearner, MpiServer
from bench.steps.server.protocol import UpdateProtocol
from bench.steps.server.sockets import SocketServer
from bench.steps.server.threads import Post, ThreadLearner, ThreadServer
from busbar.errors import RankFailure, Unavailable
from busbar.start import python
from collectives.execution.mpi.world import MpiWorld

# How long learners that are processes take to end.
_ENDS_S = 10.0


@dataclass(frozen=True)
class ServerWays:
    """The ends of one rank. ``places``: of the servers' parts in the weights.

    ``one_clock``: all ranks are on one host, so that a socket reaches all servers.
    """

    job: StepJob
    protocol: UpdateProtocol
    places: Sequence[slice]
    dtype: np.dtype[Any]
    one_clock: bool

    @contextmanager
    def ends(self, weights: Vector, alone: bool) -> Iterator[ServerEnd | LearnerEnd]:
        """This rank's end, over whatever joins the ranks.

        ``weights``: a learner's, where the servers' parts are put. ``alone``: nobody may join.
        """
        if self.job.options.learners:
            with self._sockets() as end:
                yield end
            return
        world, servers = self.job.world, self.job.options.servers
        server = world.rank < servers
        if isinstance(world, MpiWorld):
            comm = world.comm.Dup()
            # A lost rank may be replaced by a process outside MPI.
            opens = world.goes_on() and self.one_clock and not (self.protocol.cancels or alone)
            callers = self._callers() if opens else None
            if server:
                end = MpiServer(comm, world.mpi, servers)
                yield end if callers is None else OpenServer(end, callers, self.protocol.learners)
            else:
                yield MpiLearner(comm, world.mpi, weights, self.places)
            if not world.goes_on():  # else ranks that are lost could not take part in this
                comm.Free()
            return
        post = world.once(lambda: Post(servers, self.protocol.learners))
        if server:
            yield ThreadServer(post, world.rank)
        else:
            yield ThreadLearner(post, world.rank - servers, weights, self.places)

    @contextmanager
    def _sockets(self) -> Iterator[ServerEnd]:
        """This server's socket, once all learners, which rank 0 starts, have called."""
        world, end = self.job.world, self._callers()
        assert end is not None  # all ranks serve
        count = self.protocol.learners
        with _processes(end.name, 0 if world.rank else count) as started:
            stopped = child.StoppedProcesses()
            end.gather(count, lambda: _look(started, stopped))
            if world.rank == 0:
                pids = ", ".join(str(process.pid) for process in started)
                self.job.note(f"{count} learners are here (pid {pids})")
            yield end

    def _callers(self) -> SocketServer | None:
        """This server's socket, once learners may call all servers; None on a rank that learns."""
        world, options = self.job.world, self.job.options
        name, end = str(world.broadcast(token_hex(8))), None
        if world.rank < options.servers:
            part = self.places[world.rank]
            about = {
                "words": list(options.argv),
                "update": self.job.choice.label,
                "learners": self.protocol.learners,
                "servers": options.servers,
                # The code of a gradient is at most an index and a value for each element.
                "bytes": (part.stop - part.start) * (self.dtype.itemsize + 8) + 4096,
            }
            end = SocketServer(name, world.rank, about)
        world.barrier()
        if world.rank == 0:
            self.job.note(f"learners may join: python -m bench.step --join {name}")
        return end


@contextmanager
def _processes(name: str, learners: int) -> Iterator[list[Popen[str]]]:
    """So many processes of ``bench.step --join NAME``, which end when this one is killed.

    None is left behind. Raises Unavailable where one cannot be started.
    """
    started: list[Popen[str]] = []
    with ExitStack() as ends:
        for number in range(learners):
            command = python("bench.step", "--join", f"{name}:{number}")
            try:
                process = child.popen(command, os.environ, orphaned=SIGKILL, stdout=DEVNULL)
            except OSError as error:
                raise Unavailable(f"a learner cannot be started: {error.strerror}") from None
            ends.callback(process.wait)
            ends.callback(process.kill)
            started.append(process)
        yield started
        with suppress(TimeoutExpired):
            for process in started:
                process.wait(_ENDS_S)


def _look(started: Sequence[Popen[str]], stopped: child.StoppedProcesses) -> None:
    """Raise RankFailure where a learner has ended, or stays stopped, before it began."""
    for pid in stopped.overdue(process.pid for process in started):
        raise RankFailure(f"a learner (pid {pid}) is stopped before it began")
    for process in started:
        if process.poll() is not None:
            status, pid = child.shell(process.returncode), process.pid
            raise RankFailure(f"a learner (pid {pid}) ended with {status} before it began")
