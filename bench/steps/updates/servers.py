"""Parameter servers: the first ranks serve; the other ranks, or other processes, learn."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from bench.run.memory import SHARE, Need, Room, free_memory
from bench.steps.job import StepJob, StepOutcome
from bench.steps.options import StepOptions, UpdateChoice
from bench.steps.server.ends import LearnerEnd, ServerEnd
from bench.steps.server.hooks import Training
from bench.steps.server.learning import Rounds, in_blocks
from bench.steps.server.protocol import update_protocol
from bench.steps.server.report import paced
from bench.steps.server.served import exchanged, training
from bench.steps.server.serving import Served, Serving
from bench.steps.trace import Trace
from bench.steps.training.shared import parts
from bench.steps.updates.ways import ServerWays
from bench.steps.waking import one_core
from busbar.errors import Unsupported
from busbar.host import boot
from busbar.launchers import launched
from busbar.units import format_bytes
from collectives.execution.mpi.world import MpiWorld
from collectives.execution.world import State, World
from collectives.schedule.dtypes import dtype
from reports.records.measurement import Record

# A budget ends no run before it has so many updates.
_FEWEST = 6
# All learners make so many rounds with nothing to compute.
_ALONE = 20
# Bytes of weights that are copied sooner than a second core wakes up.
_SMALL = 1 << 20
# Vectors that a learner holds at once, and a server of its part: weights, gradient; and the sum, a
# copy that is on its way, what comes.
_LEARNER_VECTORS, _SERVER_VECTORS = 3, 5


def check(choice: UpdateChoice, nranks: int, options: StepOptions) -> None:
    """Raise Unsupported for a protocol that cannot be on so many ranks."""
    learners = nranks - options.servers
    if learners < 1:
        raise Unsupported(
            f"{choice.label}: of {nranks} ranks {options.servers} serve, and none is left to learn;"
            " start more (--ranks, --threads or --learners)"
        )
    update_protocol(choice.label, learners, options.servers)
    if launched() is not None:  # perhaps over several hosts
        return
    vector = options.workload.elements * dtype(options.dtype).itemsize
    need, free = vector * (_LEARNER_VECTORS * learners + _SERVER_VECTORS), free_memory()
    if need > SHARE * free:
        raise Unsupported(
            f"{choice.label}: {learners} learners and their servers of {format_bytes(vector)} of"
            " weights"
            f" need {format_bytes(need)}, where {format_bytes(free)} are free; take fewer, or"
            " --scale"
        )


def run(job: StepJob) -> StepOutcome:
    """One protocol; all ranks call this together."""
    try:
        mine = _ServerRun(job)
        mine.check()
    except Unsupported as error:  # the same on every rank
        return StepOutcome(Record(skipped=str(error)), job.choice.name)
    return mine.run()


class _ServerRun:
    """One rank's part."""

    def __init__(self, job: StepJob) -> None:
        self.job, self.options = job, job.options
        self.world: World = job.world
        self.servers = self.options.servers
        self.learners = self.options.learners or self.world.size - self.servers
        self.protocol = update_protocol(job.choice.label, self.learners, self.servers)
        self.training = training(self.options, self.learners)
        self.places = parts(self.training.elements, self.servers)
        each = max(1, self.learners // self.protocol.needed)
        self.warmup = self.options.warmup * each  # rounds of all learners
        self.computes = bool(self.job.compute.mean or self.options.training.problem)
        self.one_clock = len(set(self.world.gather(boot()))) == 1
        self.ways = ServerWays(job, self.protocol, self.places, self.training.dtype, self.one_clock)

    def run(self) -> StepOutcome:
        """See `run`."""
        served, kept = self._phase(self.training, self._enough, alone=False)
        if isinstance(self.world, MpiWorld):
            self.world = self.world.survivors()
        return self._outcome(served, kept, self._alone(served))

    def _phase(
        self, what: Training, enough: Callable[[int, float], bool], alone: bool
    ) -> tuple[Served | None, Any]:
        """All updates on this rank, and what a server keeps of them.

        ``alone``: there is nothing to compute, and nothing to be seen in a trace.
        """
        first = self.world.rank < self.servers
        weights = np.empty(0 if first else self.training.elements, self.training.dtype)
        trace = Trace(on=False) if alone else self.job.trace
        with self.ways.ends(weights, alone) as end, self._cores():
            if isinstance(end, ServerEnd):
                return self._serve(end, what, enough, trace)
            self._learn(end, what, alone, trace)
        return None, None

    def _cores(self) -> AbstractContextManager[None]:
        """One core for threads that only wait for each other; several where they use memory."""
        vector = self.training.elements * self.training.dtype.itemsize
        threads = not isinstance(self.world, MpiWorld) and not self.options.learners
        works = self.options.burn or self.options.training.problem is not None
        return one_core() if threads and not works and vector <= _SMALL else nullcontext()

    def _alone(self, served: Served | None) -> list[float]:
        """Seconds per update of the exchange with nothing to compute, as means of blocks.

        Empty where learners are processes, where some were lost, and where nothing was computed
        anyway.
        """
        whole = self.options.learners == 0 and not (served and served.lost)
        if not all(self.world.gather(whole)) or not self.computes:
            return []
        each = max(1, self.learners // self.protocol.needed)

        def enough(updates: int, spent: float) -> bool:
            over = updates >= _ALONE * each or spent >= self.options.budget
            return updates >= max(_FEWEST, 2 * each) and over

        served, _ = self._phase(exchanged(self.options), enough, alone=True)
        return [] if served is None else in_blocks(np.diff(served.updates[each - 1 :]).tolist())

    def check(self) -> None:
        """Raise Unsupported where the memory is not there, or a message would be too long."""
        vector = self.training.elements * self.training.dtype.itemsize
        server = self.world.rank < self.servers
        need = _SERVER_VECTORS * vector // self.servers if server else _LEARNER_VECTORS * vector
        if self.options.learners and self.world.rank == 0:
            need += _LEARNER_VECTORS * vector * self.learners
        lack = Room(self.world, self.job.transport).lack(Need(need))
        if lack is not None:
            raise Unsupported(
                f"{self.job.choice.label}: {self.learners} learners and {self.servers} servers of"
                f" {format_bytes(vector)} need {format_bytes(lack.need)} {lack.name}, where"
                f" {format_bytes(lack.free)}"
                " are free; take fewer, or --scale"
            )
        if self.world.name == "mpi" and vector // self.servers >= 2**31 - 64:
            raise Unsupported(
                f"{self.job.choice.label}: a server's part of"
                f" {format_bytes(vector // self.servers)} is"
                " more than an MPI message of 2 GiB; take more --servers, or --scale"
            )

    # -- roles

    def _serve(
        self, end: ServerEnd, what: Training, enough: Callable[[int, float], bool], trace: Trace
    ) -> tuple[Served, Any]:
        serving = Serving(
            end,
            self.protocol,
            what,
            self.places,
            self.world.rank,
            enough,
            trace=trace,
            note=self.job.note,
            one_clock=self.one_clock,
        )
        if self.world.rank == 0:
            self.job.watch.explained(lambda states, size: self._how_far(serving, states))
            self.job.far(lambda: serving.far().as_json())
        return serving.run(), serving.server.kept()

    def _how_far(self, serving: Serving, states: Mapping[int, State]) -> str:
        """The learners that server 0 waits for, and the other servers' progress, in words.

        The watching thread calls it when an update takes too long.
        """
        told = serving.far().told()
        others = [
            f"server {rank}: " + (f"{states[rank][1]}" if rank in states else "no answer")
            for rank in range(1, self.servers)
        ]
        return "; ".join([told, *others])

    def _learn(self, end: LearnerEnd, what: Training, alone: bool, trace: Trace) -> None:
        rank = self.world.rank
        Rounds(
            end,
            self.protocol,
            what,
            rank - self.servers,
            lambda n: 0.0 if alone else self.job.compute.seconds(rank, n),
            burn=self.options.burn,
            one_clock=self.one_clock,
            trace=trace,
            warmup=self.options.warmup,
        ).run()

    def _enough(self, updates: int, spent: float) -> bool:
        """Whether a server has done what is asked for."""
        self.job.watch.arrived(updates)
        wanted = self.options.iterations
        if wanted is not None:
            return updates >= self.warmup + wanted
        return updates >= self.warmup + _FEWEST and spent >= self.options.budget

    # -- what came of it

    def _outcome(self, served: Served | None, kept: Any, alone: list[float]) -> StepOutcome:
        """The same on every rank. ``kept``: by this rank's server; ``alone``: see `_alone`."""
        everyone = self.world.gather(None if served is None else served.as_json())
        servers = [Served.from_json(one) for one in everyone if one is not None]
        trained = self.world.gather(kept)[: self.servers]
        made: dict[str, Any] = {}
        if self.world.rank == 0:
            compute, first = self.job.compute, self.servers
            fast = compute.fastest(range(first, first + self.learners))
            slow = {n for n in range(self.learners) if first + n not in fast}
            found = paced(
                self.protocol,
                servers,
                compute,
                lambda learner, n: compute.seconds(first + learner, n),
                self.warmup,
                slow,
            )
            more, lines = self.training.told(trained, servers[0].updates, self.protocol.alike)
            made = {
                **found._asdict(),
                "facts": {**found.facts, "exchange_s": alone, **more},
                "lines": [*found.lines, *lines],
                "bytes": [servers[0].bytes_in, servers[0].bytes_out],
            }
        made = self.world.broadcast(made)
        times, updates = tuple(made["times"]), len(servers[0].updates)
        into, out = (round(n / updates) for n in made["bytes"])
        record = Record(
            times_s=times,
            iterations=made["block"],
            timing="loop",
            across="max",
            stopped="budget" if self.options.iterations is None else "iterations",
            sent_bytes=out,
            received_bytes=into,
            total_bytes=self.servers * (out + into),
        )
        return StepOutcome(
            record,
            self.protocol.name,
            messages=round(sum(one.gradients + one.answers for one in servers) / updates),
            predicted=made["predicted"],
            model=made["model"],
            gradients=self.protocol.needed,
            facts=made["facts"],
            lines=made["lines"],
            transport="sockets" if self.options.learners else self.world.name,
        )
