"""Measure a protocol: the first ranks are servers; the other ranks or processes are learners."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from secrets import token_hex
from signal import SIGKILL
from subprocess import DEVNULL, Popen, TimeoutExpired
from typing import Any

import numpy as np
from msgspec import structs

from bench.launch import child
from bench.run.memory import SHARE, Need, Room, free_memory
from bench.run.noise import NoiseCounters, disturbances
from bench.steps.compute import one_core
from bench.steps.job import StepJob, step_record
from bench.steps.options import StepOptions, UpdateChoice
from bench.steps.server.endpoint import Channel, Kind, Mailboxes, MergedChannel, MpiChannel
from bench.steps.server.loops import (
    ServerLog,
    ServerLoop,
    WorkerLoop,
    block_means,
    describe_progress,
)
from bench.steps.server.protocol import UpdateProtocol, update_protocol
from bench.steps.server.report import build_report, port_seconds
from bench.steps.server.socket_channel import ListeningChannel
from bench.steps.server.trainer_hooks import Trainer, make_exchange_trainer, make_trainer
from bench.steps.trace import Trace
from bench.steps.training.problem import parts
from busbar.errors import RankFailure, Unavailable, Unsupported
from busbar.host import boot
from busbar.launchers import launched
from busbar.start import python
from busbar.units import format_bytes
from collectives.execution.inproc.world import InprocWorld
from collectives.execution.mpi.world import MpiWorld
from collectives.execution.world import State, World
from collectives.schedule.dtypes import dtype
from reports.records.measurement import Noise, Record

# Seconds that learners which are processes are given to end.
_ENDS_S = 10.0


@contextmanager
def open_channel(
    job: StepJob, protocol: UpdateProtocol, gradient_bytes: int, *, joinable: bool
) -> Iterator[Channel]:
    """Open the channel of this rank. All ranks call this together.

    ``gradient_bytes``: the most bytes of a push to one server. ``joinable``: True if processes may
    join a run that can lose ranks.
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
        assert isinstance(world, InprocWorld)
        mailboxes = world.once(lambda: Mailboxes(servers, protocol.learners))
        if world.rank < servers:
            failed = world.failed
            yield mailboxes.server(
                world.rank, lambda: (rank - servers for rank in failed() if rank >= servers)
            )
        else:
            yield mailboxes.learner(world.rank - servers)


@contextmanager
def _listen_to_processes(
    job: StepJob, protocol: UpdateProtocol, gradient_bytes: int
) -> Iterator[Channel]:
    """This server's channel to learner processes. Rank 0 starts them; waits until all connect."""
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
    """This server's channel, after all servers accept connections; None on a learner."""
    world, options = job.world, job.options
    name, channel = str(world.broadcast(token_hex(8))), None
    if world.rank < options.servers:
        about = {
            "words": [*options.argv, "--compress", options.compress],
            "update": job.choice.label,
            "learners": protocol.learners,
            "servers": options.servers,
            "bytes": gradient_bytes,
        }
        channel = ListeningChannel(name, world.rank, about)
    world.barrier()
    if world.rank == 0:
        job.note(f"learners may join: busbar step --join {name}")
    return channel


@contextmanager
def _processes(name: str, learners: int) -> Iterator[list[Popen[str]]]:
    """Start learners as processes (``bench.step --join NAME``); they die with this process.

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
    """Raise RankFailure if a learner's process has ended, or is stopped, before it connected."""
    for pid in stopped.overdue(process.pid for process in processes):
        raise RankFailure(f"a learner (pid {pid}) is stopped before it began")
    for process in processes:
        if process.poll() is not None:
            status, pid = child.shell(process.returncode), process.pid
            raise RankFailure(f"a learner (pid {pid}) ended with {status} before it began")


# The least number of updates of a run, even if its budget is spent.
_FEWEST = 6
# The number of rounds of all learners in which the exchange alone is measured.
_ALONE = 20
# Weights of at most this many bytes are copied before a second core would have woken up.
_SMALL = 1 << 20
# Vectors in memory at once. A learner has weights, a gradient and the data it sends. A server has
# the same, the sum of gradients, and the data it receives.
_LEARNER_VECTORS, _SERVER_VECTORS = 3, 5


def check(choice: UpdateChoice, nranks: int, options: StepOptions) -> None:
    """Raise Unsupported if the protocol cannot run on ``nranks`` ranks with these options."""
    learners = nranks - options.servers
    if learners < 1:
        raise Unsupported(
            f"{choice.label}: of {nranks} ranks {options.servers} serve, and none is left to learn;"
            " start more (--ranks, --threads or --learners)"
        )
    update_protocol(choice.label, learners, options.servers)
    for rank in options.compute.slow:
        if rank < options.servers:
            raise Unsupported(
                f"--straggler {rank}: rank {rank} serves {choice.label} and computes nothing;"
                f" learners are ranks {options.servers} to {nranks - 1}"
            )
    if launched() is not None:  # perhaps over several hosts
        return
    vector = options.workload.elements * dtype(options.dtype).itemsize
    need, free = vector * (_LEARNER_VECTORS * learners + _SERVER_VECTORS), free_memory()
    if need > SHARE * free:
        raise Unsupported(
            f"{choice.label}: {learners} learners and their servers of {format_bytes(vector)} of"
            f" weights need {format_bytes(need)}, where {format_bytes(free)} are free; take fewer,"
            " or --scale"
        )


def run(job: StepJob) -> tuple[Record, Sequence[str]]:
    """Measure one protocol; returns its record and the lines below its row.

    All ranks call this together.
    """
    try:
        server_run = _ServerRun(job)
        server_run.check()
    except Unsupported as error:  # the same on every rank
        return step_record(job, Record(skipped=str(error)), job.choice.name), []
    return server_run.run()


class _ServerRun:
    """One rank's part of the run of a protocol."""

    def __init__(self, job: StepJob) -> None:
        self.job, self.options = job, job.options
        self.world: World = job.world
        self.servers = self.options.servers
        self.learners = self.options.learners or self.world.size - self.servers
        self.protocol = update_protocol(job.choice.label, self.learners, self.servers)
        self.trainer = make_trainer(self.options, self.learners)
        self.places = parts(self.trainer.elements, self.servers)
        # The number of updates in which each learner makes about one round.
        self.updates_a_round = max(1, self.learners // self.protocol.needed)
        self.warmup = self.options.warmup * self.updates_a_round
        self.computes = bool(self.job.compute.mean or self.options.problem)
        self.one_clock = len(set(self.world.gather(boot()))) == 1

    def run(self) -> tuple[Record, Sequence[str]]:
        counters = NoiseCounters(self.world)
        log, shard = self._exchange(self.trainer, self._enough)
        counters.stop()
        if isinstance(self.world, MpiWorld):
            self.world = self.world.survivors()
        noise, waits = self._noise(counters, log)
        record, lines = self._outcome(log, shard, self._exchange_alone(log))
        if disturbed := disturbances(waits, noise):
            lines = [*lines, f"# {self.job.algorithm}: {disturbed}"]
        return structs.replace(record, noise=noise, core_wait=waits), lines

    def _noise(
        self, counters: NoiseCounters, log: ServerLog | None
    ) -> tuple[Noise | None, tuple[float, ...]]:
        """`NoiseCounters.gather`, without a result if learners were lost or joined.

        Their CPU time is not known, so it would count as that of other programs.
        """
        same = log is None or not (log.lost or log.joined)
        return counters.gather() if all(self.world.gather(same)) else (None, ())

    def _exchange(
        self, trainer: Trainer, enough: Callable[[int, float], bool], *, alone: bool = False
    ) -> tuple[ServerLog | None, Any]:
        """Run all updates; returns a server's log and its shard as a JSON value.

        ``alone``: run without computing, without a trace, and without processes that join.
        """
        trace = Trace(on=False) if alone else self.job.trace
        # An encoded gradient has at most an index and a value for each element.
        longest = max(part.stop - part.start for part in self.places)
        gradient_bytes = longest * (self.trainer.dtype.itemsize + 8) + 4096
        # A socket reaches only servers on its host.
        joinable = self.one_clock and not alone
        channels = open_channel(self.job, self.protocol, gradient_bytes, joinable=joinable)
        with channels as channel, self._cores():
            if self.world.rank < self.servers:
                return self._serve(channel, trainer, enough, trace, 0 if alone else self.warmup)
            try:
                self._learn(channel, trainer, alone, trace)
            except BaseException as error:  # servers do not wait for this learner
                text = np.frombuffer(f"ended with {type(error).__name__}".encode(), np.uint8)
                with suppress(RankFailure):
                    channel.post(range(self.servers), Kind.FAILED, 0, text, 0.0)
                raise
        return None, None

    def _cores(self) -> AbstractContextManager[None]:
        """A context: threads that mostly wait for each other run on one core, others on all."""
        threads = not isinstance(self.world, MpiWorld) and not self.options.learners
        works = self.options.burn or self.options.problem is not None
        small = self.trainer.nbytes <= _SMALL
        return one_core() if threads and not works and small else nullcontext()

    def _exchange_alone(self, log: ServerLog | None) -> list[float]:
        """Seconds per update of the exchange without computing, as means of blocks.

        Empty if learners are processes, if learners were lost, or if the run computed nothing.
        """
        whole = self.options.learners == 0 and not (log and log.lost)
        if not all(self.world.gather(whole)) or not self.computes:
            return []
        each = self.updates_a_round

        def enough(updates: int, spent: float) -> bool:
            self.job.watch.arrived(updates)
            over = updates >= _ALONE * each or spent >= self.options.budget
            return updates >= max(_FEWEST, 2 * each) and over

        log, _ = self._exchange(make_exchange_trainer(self.options), enough, alone=True)
        return [] if log is None else block_means(np.diff(log.updates[each - 1 :]).tolist())

    def check(self) -> None:
        """Raise Unsupported if memory is too small, or a message would be too long."""
        vector, label = self.trainer.nbytes, self.job.choice.label
        server = self.world.rank < self.servers
        need = _SERVER_VECTORS * vector // self.servers if server else _LEARNER_VECTORS * vector
        if self.options.learners and self.world.rank == 0:
            need += _LEARNER_VECTORS * vector * self.learners
        lack = Room(self.world, self.job.transport).lack(Need(need))
        if lack is not None:
            raise Unsupported(
                f"{label}: {self.learners} learners and {self.servers} servers of"
                f" {format_bytes(vector)} need {format_bytes(lack.need)} {lack.name}, where"
                f" {format_bytes(lack.free)} are free; take fewer, or --scale"
            )
        if self.world.name == "mpi" and vector // self.servers >= 2**31 - 64:
            raise Unsupported(
                f"{label}: a server's part of {format_bytes(vector // self.servers)} is more than"
                " an MPI message of 2 GiB; take more --servers, or --scale"
            )

    # -- roles

    def _serve(
        self,
        channel: Channel,
        trainer: Trainer,
        enough: Callable[[int, float], bool],
        trace: Trace,
        warmup: int,
    ) -> tuple[ServerLog, Any]:
        server = ServerLoop(
            channel,
            self.protocol,
            trainer,
            self.places,
            self.world.rank,
            enough,
            trace=trace,
            note=self.job.note,
            one_clock=self.one_clock,
            warmup=warmup,
        )
        if self.world.rank == 0:
            self.job.watch.explained(lambda states, size: self._describe_progress(server, states))
            self.job.set_progress(server.progress)
        return server.run(), server.shard.to_json()

    def _describe_progress(self, server: ServerLoop, states: Mapping[int, State]) -> str:
        """A sentence on the learners that server 0 waits for, and on other servers' progress.

        The watchdog's thread calls this when an update takes too long.
        """
        others = [
            f"server {rank}: " + (f"{states[rank][1]}" if rank in states else "no answer")
            for rank in range(1, self.servers)
        ]
        return "; ".join([describe_progress(server.progress()), *others])

    def _learn(self, channel: Channel, trainer: Trainer, alone: bool, trace: Trace) -> None:
        rank = self.world.rank
        WorkerLoop(
            channel,
            np.empty(trainer.elements, trainer.dtype),
            self.places,
            self.protocol,
            trainer,
            rank - self.servers,
            lambda n: 0.0 if alone else self.job.compute.seconds(rank, n),
            burn=self.options.burn,
            one_clock=self.one_clock,
            trace=trace,
            warmup=self.options.warmup,
        ).run()

    def _enough(self, updates: int, spent: float) -> bool:
        """True if a server has made as many updates as the options request."""
        self.job.watch.arrived(updates)
        iterations = self.options.iterations
        if iterations is not None:
            return updates >= self.warmup + iterations
        return updates >= self.warmup + _FEWEST and spent >= self.options.budget

    # -- results

    def _port_seconds(self) -> float | None:
        """Seconds of an update's bytes through a server's port (`port_seconds`).

        None if the rate of ports is not known, and with compression, whose bytes differ.
        """
        if self.job.port_rate is None or self.options.compress != "none":
            return None
        return port_seconds(self.protocol, self.trainer.nbytes / self.servers, self.job.port_rate)

    def _outcome(
        self, log: ServerLog | None, shard: Any, alone: list[float]
    ) -> tuple[Record, Sequence[str]]:
        """The record and the lines below its row, the same on all ranks, from this rank's log."""
        everyone = self.world.gather(None if log is None else log.to_json())
        servers = [ServerLog.from_json(value) for value in everyone if value is not None]
        shards = self.world.gather(shard)[: self.servers]
        figures: dict[str, Any] = {}
        if self.world.rank == 0:
            compute, first = self.job.compute, self.servers
            ranks = range(first, first + self.learners)
            fast = compute.fastest(ranks)
            slow = {n for n in range(self.learners) if first + n not in fast}
            port_s = self._port_seconds()
            report = build_report(
                self.protocol,
                servers,
                compute.among(ranks),
                lambda learner, n: compute.seconds(first + learner, n),
                self.warmup,
                slow,
                hosts=len(set(self.world.nodes)),
                port_s=port_s,
            )
            facts, lines = self.trainer.report(shards, servers[0].updates, self.protocol.alike)
            figures = {
                **report._asdict(),
                "facts": {
                    **report.facts,
                    "exchange_s": alone,
                    "port_s": port_s,
                    "port_rate": self.job.port_rate,
                    **facts,
                },
                "lines": [*report.lines, *lines],
                "bytes": [servers[0].bytes_in, servers[0].bytes_out],
            }
        figures = self.world.broadcast(figures)
        times, updates = tuple(figures["times"]), len(servers[0].updates)
        messages = sum(one.messages for one in servers)
        received, sent = (round(n / updates) for n in figures["bytes"])
        record = Record(
            times_s=times,
            iterations=figures["updates"],
            timing="loop",
            across="max",
            stopped="budget" if self.options.iterations is None else "iterations",
            sent_bytes=sent,
            received_bytes=received,
            total_bytes=self.servers * (sent + received),
        )
        return step_record(
            self.job,
            record,
            self.protocol.name,
            gradients=self.protocol.needed,
            transport="sockets" if self.options.learners else self.world.name,
            messages=round(messages / updates),
            predicted_s=figures["predicted"],
            predicted_by=figures["model"],
            **figures["facts"],
        ), figures["lines"]
