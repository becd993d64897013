"""A learner's loop: wait for weights, compute a gradient, push it; begin anew if cancelled."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from bench.steps.compute import spend_until
from bench.steps.server.endpoint import Channel, Endpoint, Kind, Message
from bench.steps.server.protocol import UpdateProtocol
from bench.steps.server.trainer_hooks import Trainer, Vector
from bench.steps.trace import MESSAGES, Trace
from busbar.errors import BusbarError

# A learner that burns its core looks for messages at this interval.
_BURN_S = 500e-6
#: Parts into which a series is cut for the interval of its mean.
BLOCKS = 20


def block_means(values: Sequence[float]) -> list[float]:
    """The means of `BLOCKS` equal parts of a series; one mean of less than two values for each."""
    blocks = np.array_split(values, BLOCKS if len(values) >= 2 * BLOCKS else 1)
    return [float(block.mean()) for block in blocks if len(block)]


@dataclass
class WorkerLog:
    """A learner's measurements. Times are in seconds."""

    number: int = -1
    #: Gradients that were pushed, and computations that were cancelled.
    pushed: int = 0
    cancelled: int = 0
    #: Seconds of pushes, to all servers one after the other.
    pushing: float = 0.0
    #: Seconds by which computations ended late (late timers).
    late: float = 0.0
    #: Seconds that weights travelled after which the learner could begin, and how many these were.
    travel: float = 0.0
    answers: int = 0
    #: For each round, from one beginning to the next: its seconds, the seconds that were drawn for
    #: its computation, and those of exposed communication.
    rounds: list[float] = field(default_factory=list)
    drawn: list[float] = field(default_factory=list)
    exposed: list[float] = field(default_factory=list)
    #: The error that ended the loop.
    failed: str = ""

    def to_json(self, warmup: int) -> str:
        """The content of `Kind.BYE`: rounds after the first ``warmup`` as means of blocks."""
        series = {name: getattr(self, name) for name in ("rounds", "drawn", "exposed")}
        blocks = {name: block_means(values[warmup:]) for name, values in series.items()}
        return json.dumps({**vars(self), **blocks})


class WorkerLoop:
    """One learner. ``seconds``: gives the seconds that its n-th gradient takes at least.

    A gradient that is computed faster is pushed when these seconds are over.
    """

    def __init__(
        self,
        channel: Channel,
        weights: Vector,
        places: Sequence[slice],
        protocol: UpdateProtocol,
        trainer: Trainer,
        number: int,
        seconds: Callable[[int], float],
        *,
        burn: bool = False,
        one_clock: bool = True,
        trace: Trace | None = None,
        sends_trace: bool = False,
        warmup: int = 0,
    ) -> None:
        """``weights``: memory for them; ``places``: the servers' parts; ``number``: the learner's.

        ``burn``: computing keeps a core busy. ``one_clock``: the servers are on this host, so that
        their clock is this one. ``sends_trace``: the servers write this learner's trace, too.
        ``warmup``: the first rounds, whose times are not reported.
        """
        self._weights, self._places = weights, places
        self._endpoint = Endpoint(channel, [weights[place] for place in places])
        self._protocol, self._seconds = protocol, seconds
        self._gradient, self._coding = trainer.gradient_function(number), trainer.coding(places)
        self._burn, self._one_clock, self._warmup = burn, one_clock, warmup
        self._trace, self._sends_trace = trace or Trace(on=False), sends_trace
        self._servers = range(len(places))
        # The version of each server's weights, and the oldest of them at the last push.
        self._versions, self._pushed = [-1 for _ in places], -1
        self._due = set(self._servers)  # servers that have not answered the last push
        self._ended = set[int]()  # servers that have ended the run
        self.log = WorkerLog(number)
        self._next = seconds(0)
        # When this round began (0: there is none), when its push began, when its push ended (0:
        # it was cancelled), and the latest `cause` of weights.
        self._began, self._push_began, self._push_ended, self._cause = 0.0, 0.0, 0.0, 0.0

    def run(self) -> WorkerLog:
        """Learn until the servers end the run. An error here is sent to the servers."""
        try:
            while self._wait_for_weights():
                self._round()
            if self._sends_trace:
                for text in self._trace.texts():
                    self._send_text(Kind.SPANS, text)
            self._send_text(Kind.BYE, self.log.to_json(self._warmup))
        except BusbarError as error:
            self.log.failed = str(error)
            self._send_text(Kind.FAILED, str(error))
        while len(self._ended) < len(self._servers):  # weights on their way must be received
            self._handle(self._endpoint.receive())
        self._endpoint.channel.close()
        return self.log

    def _send_text(self, kind: int, text: str) -> None:
        self._endpoint.post(self._servers, kind, 0, np.frombuffer(text.encode(), np.uint8))

    def _wait_for_weights(self) -> bool:
        """Return True once the learner can begin; False if the run has ended."""
        while not self._ended:
            if self._can_begin():
                return True
            self._handle(self._endpoint.receive())
        return False

    def _can_begin(self) -> bool:
        """Whether the weights are such that the learner can begin with them.

        Where an update cancels, they must be of one version of all servers, and of a new one unless
        the protocol goes on without new weights. Else every server must have answered the last
        push.
        """
        if not self._protocol.cancels:
            return not self._due
        oldest = min(self._versions)
        new = oldest > self._pushed or (self._protocol.goes_on and oldest >= 0)
        return new and oldest == max(self._versions)

    def _round(self) -> None:
        began, log = time.perf_counter(), self.log
        self._end_round(began)
        ends = began + self._next
        log.drawn.append(self._next)
        gradient = self._gradient(self._weights, min(self._versions))
        # Drawn during this computation, so that drawing delays none.
        self._next = self._seconds(log.pushed + log.cancelled + 1)
        while (rest := ends - time.perf_counter()) > 0:
            message = self._endpoint.receive(self._spend(rest))
            if message is not None:
                self._handle(message)
                if self._ended or self._protocol.cancels:
                    break
        now = time.perf_counter()
        self._push_began, self._push_ended = now, 0.0
        if rest > 0:
            log.cancelled += not self._ended  # else the run ended
            self._trace.add("cancelled", "compute", began, now)
            return
        log.late += now - ends
        self._trace.add("gradient", "compute", began, now)
        self._pushed, self._due = min(self._versions), set(self._servers)
        for server, place in enumerate(self._places):
            self._push(server, self._coding.encode(gradient[place], server))
        log.pushed += 1
        self._push_ended = time.perf_counter()
        log.pushing += self._push_ended - now
        while self._protocol.goes_on and (message := self._endpoint.receive(0.0)) is not None:
            self._handle(message)

    def _end_round(self, now: float) -> None:
        """Note the round that ends here, and how much of it was exposed communication.

        Communication is exposed from the learner's push on. Where a later push of another learner
        made the update, or cancelled this computation, it is exposed from the beginning of that
        push: until then the learner waited for learners, not for messages. Time before the round
        does not count.
        """
        log, one_clock = self.log, self._one_clock
        if self._began:
            log.rounds.append(now - self._began)
            if one_clock or not self._protocol.waits:
                others = one_clock and self._cause > self._push_ended
                begun = self._cause if others else self._push_began
                log.exposed.append(max(0.0, now - max(begun, self._began)))
        self._began = now

    def _push(self, server: int, data: Vector) -> None:
        version, start = self._versions[server], time.perf_counter()
        self._endpoint.push(server, version, data)
        if self._trace.on:
            facts = {"bytes": data.nbytes, "version": version}
            self._trace.add(f"gradient to {server}", MESSAGES, start, time.perf_counter(), **facts)

    def _spend(self, rest: float) -> float:
        """Compute for a moment if computing keeps the core busy; returns how long to wait."""
        if not self._burn:
            return rest
        spend_until(time.perf_counter() + min(rest, _BURN_S), burn=True)
        return 0.0

    def _handle(self, message: Message | None) -> None:
        """Note the weights that were received, or that a server has ended the run."""
        if message is None:
            return
        if message.kind == Kind.STOP:
            self._ended.add(message.peer)
            return
        server, version = message.peer, message.version
        self._due.discard(server)
        self._versions[server] = version
        self._cause = max(self._cause, message.cause)
        if self._trace.on and self._one_clock:
            now, nbytes = time.perf_counter(), message.data.nbytes
            name, facts = f"weights from {server}", {"bytes": nbytes, "version": version}
            self._trace.add(name, MESSAGES, message.sent, now, **facts)
        if self._one_clock and self._can_begin():  # with several servers, the last one counts
            self.log.travel += max(0.0, time.perf_counter() - message.sent)
            self.log.answers += 1
