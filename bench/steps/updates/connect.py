"""Opens the channel of a server or a learner: a thread's, an MPI rank's, or a process's."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from secrets import token_hex
from signal import SIGKILL
from subprocess import DEVNULL, Popen, TimeoutExpired

from bench.launch import child
from bench.steps.job import StepJob
from bench.steps.server.endpoint import Channel, MergedChannel
from bench.steps.server.mpi_channel import MpiChannel
from bench.steps.server.protocol import UpdateProtocol
from bench.steps.server.socket_channel import ListeningChannel
from bench.steps.server.thread_channel import Mailboxes
from busbar.errors import RankFailure, Unavailable
from busbar.start import python
from collectives.execution.mpi.world import MpiWorld

# How long learners that are processes take to end.
_ENDS_S = 10.0


@contextmanager
def open_channel(
    job: StepJob, protocol: UpdateProtocol, gradient_bytes: int, *, joinable: bool
) -> Iterator[Channel]:
    """Open the channel of this rank. All ranks call this together.

    ``gradient_bytes``: of a push to one server, at most. ``joinable``: processes may join the run
    where a rank may be lost.
    """
    world, servers = job.world, job.options.servers
    if job.options.learners:
        with _listen_to_processes(job, protocol, gradient_bytes) as channel:
            yield channel
    elif isinstance(world, MpiWorld):
        comm = world.comm.Dup()
        processes = None
        if world.goes_on() and joinable and not protocol.cancels:
            processes = _listen(job, protocol, gradient_bytes)
        ranks = MpiChannel(comm, world.mpi, servers)
        yield MergedChannel(ranks, processes, protocol.learners) if processes else ranks
        if not world.goes_on():  # else lost ranks could not take part in this
            comm.Free()
    else:
        mailboxes = world.once(lambda: Mailboxes(servers, protocol.learners))
        serves = world.rank < servers
        yield mailboxes.server(world.rank) if serves else mailboxes.learner(world.rank - servers)


@contextmanager
def _listen_to_processes(
    job: StepJob, protocol: UpdateProtocol, gradient_bytes: int
) -> Iterator[Channel]:
    """This server's channel, once all learners, which rank 0 starts, have connected."""
    channel, rank = _listen(job, protocol, gradient_bytes), job.world.rank
    assert channel is not None  # all ranks serve
    with _processes(channel.name, 0 if rank else protocol.learners) as processes:
        stopped = child.StoppedProcesses()
        channel.gather(lambda: _check_running(processes, stopped))
        if rank == 0:
            pids = ", ".join(str(process.pid) for process in processes)
            job.note(f"{protocol.learners} learners are here (pid {pids})")
        yield channel


def _listen(job: StepJob, protocol: UpdateProtocol, gradient_bytes: int) -> ListeningChannel | None:
    """This server's channel, once processes can connect to all servers; None on a learner."""
    world, options = job.world, job.options
    name, channel = str(world.broadcast(token_hex(8))), None
    if world.rank < options.servers:
        about = {
            "words": list(options.argv),
            "update": job.choice.label,
            "learners": protocol.learners,
            "servers": options.servers,
            "bytes": gradient_bytes,
        }
        channel = ListeningChannel(name, world.rank, about)
    world.barrier()
    if world.rank == 0:
        job.note(f"learners may join: python -m bench.step --join {name}")
    return channel


@contextmanager
def _processes(name: str, learners: int) -> Iterator[list[Popen[str]]]:
    """Start processes of ``bench.step --join NAME``, which are killed when this one ends.

    Raises Unavailable if one cannot be started.
    """
    processes: list[Popen[str]] = []
    with ExitStack() as stack:
        for number in range(learners):
            command = python("bench.step", "--join", f"{name}:{number}")
            try:
                process = child.popen(command, os.environ, orphaned=SIGKILL, stdout=DEVNULL)
            except OSError as error:
                raise Unavailable(f"a learner cannot be started: {error.strerror}") from None
            stack.callback(process.wait)
            stack.callback(process.kill)
            processes.append(process)
        yield processes
        with suppress(TimeoutExpired):
            for process in processes:
                process.wait(_ENDS_S)


def _check_running(processes: Sequence[Popen[str]], stopped: child.StoppedProcesses) -> None:
    """Raise RankFailure if a learner has ended, or stays stopped, before it began."""
    for pid in stopped.overdue(process.pid for process in processes):
        raise RankFailure(f"a learner (pid {pid}) is stopped before it began")
    for process in processes:
        if process.poll() is not None:
            status, pid = child.shell(process.returncode), process.pid
            raise RankFailure(f"a learner (pid {pid}) ended with {status} before it began")
