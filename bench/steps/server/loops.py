"""The loops of servers and learners.

A server receives gradients in the order of their arrival and follows the protocol. A learner waits
for weights, computes a gradient and pushes it, and starts again if its computation is cancelled.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any

import numpy as np

from bench.steps.compute import spend_until
from bench.steps.server.endpoint import Channel, Endpoint, Kind, Message
from bench.steps.server.protocol import Actions, Core, UpdateProtocol
from bench.steps.server.trainer_hooks import Trainer, Vector
from bench.steps.trace import MESSAGES, Trace
from busbar.errors import BusbarError, RankFailure
from busbar.units import format_seconds

# The most learners that `describe_progress` names, and a last push for those that have none.
_NAMED, _NEVER = 8, {"seconds_ago": inf}


@dataclass
class ServerLog:
    """A server's measurements. Times are in seconds; moments count from the first weights sent."""

    #: When each update was made.
    updates: list[float] = field(default_factory=list)
    #: Gradients by their staleness, those of warm-up updates, and those that came too late for
    #: their update. Staleness grows from 0 during the first round of all learners.
    staleness: Counter[int] = field(default_factory=Counter)
    early: int = 0
    dropped: int = 0
    #: For each gradient the time from sending to the begin of receiving; empty over several hosts.
    waits: list[float] = field(default_factory=list)
    #: Bytes of gradients that were received, and of weights that were sent, by all updates, and the
    #: number of these messages. Without the first weights, and without the gradients after the last
    #: update, which made no further one.
    bytes_in: int = 0
    bytes_out: int = 0
    messages: int = 0
    #: The time of the whole run, and how much of it the server waited for messages.
    wall: float = 0.0
    idle: float = 0.0
    #: The time that receiving all gradients, applying them, all updates and all answers took.
    receive_s: float = 0.0
    gradient_s: float = 0.0
    update_s: float = 0.0
    answer_s: float = 0.0
    #: The number of answers to learners, and of batches of answers that were sent together.
    answers: int = 0
    batches: int = 0
    #: (time, learner, reason) of each learner that was lost; (time, learner) of each that joined.
    lost: list[tuple[float, int, str]] = field(default_factory=list)
    joined: list[tuple[float, int]] = field(default_factory=list)
    #: The learners' measurements (`WorkerLog`).
    workers: list[dict[str, Any]] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """The log as a JSON value."""
        return {**vars(self), "staleness": list(self.staleness.items())}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> ServerLog:
        """The log from the JSON value that `to_json` returned."""
        return cls(**{**value, "staleness": Counter(dict(value["staleness"]))})

    @property
    def gradients(self) -> int:
        """The number of received gradients, with those of warm-up and those that came too late."""
        return sum(self.staleness.values()) + self.early + self.dropped

    @property
    def utilisation(self) -> float:
        """The share of the time in which the server did not wait for messages."""
        return 1 - self.idle / self.wall if self.wall else 0.0


def describe_progress(progress: Mapping[str, Any]) -> str:
    """`ServerLoop.progress` as a sentence; learners that have not pushed for longest come first."""
    updates, last_pushes = progress["updates"], progress["last_push"]
    each = f" ({format_seconds(progress['seconds'] / updates)} each)" if updates else ""
    oldest = sorted(last_pushes, key=lambda rank: -(last_pushes[rank] or _NEVER)["seconds_ago"])
    learners = [
        f"rank {rank} pushed last {push['seconds_ago']:.1f} s ago, of version {push['version']}"
        if (push := last_pushes[rank])
        else f"rank {rank} has pushed nothing"
        for rank in oldest[:_NAMED]
    ]
    if len(oldest) > _NAMED:
        learners.append(f"{len(oldest) - _NAMED} others since")
    return f"server 0 has made {updates} updates{each}; " + ", ".join(learners)


class ServerLoop:
    """One parameter server: receives gradients, updates its part of the weights, and sends it.

    ``enough``: takes the number of updates so far and seconds; returns True if the run shall end.
    """

    def __init__(
        self,
        channel: Channel,
        protocol: UpdateProtocol,
        trainer: Trainer,
        places: Sequence[slice],
        number: int,
        enough: Callable[[int, float], bool],
        *,
        trace: Trace | None = None,
        note: Callable[[str], None] = lambda _: None,
        one_clock: bool = True,
        warmup: int = 0,
    ) -> None:
        """``places``: all servers' parts of the weights. ``number``: this server's, and its rank.

        Learners have the ranks after the servers'. ``note``: prints a line about a learner that
        joins or is lost. ``one_clock``: True if all learners are on this host and have its clock.
        ``warmup``: the number of first updates whose staleness is not counted.
        """
        # The version of each learner's last gradient, and when it was received.
        self._last_pushes: dict[int, tuple[int, float]] = {}
        self._endpoint, self._core = Endpoint(channel), Core(protocol, range(protocol.learners))
        self.shard, self._coding = trainer.shard(places[number]), trainer.coding(places)
        self._number, self._servers, self._enough = number, len(places), enough
        self._trace = trace or Trace(on=False)
        self._note, self._one_clock, self._warmup = note, one_clock, warmup
        self._zero, self._cause, self._first_out = 0.0, 0.0, 0
        self._left = set[int]()
        self.log = ServerLog()

    def run(self) -> ServerLog:
        """Serve until ``enough`` returns True and all learners have sent their last messages.

        Raises RankFailure if the protocol cannot continue; first all learners are stopped.
        """
        failure: RankFailure | None = None
        endpoint, log = self._endpoint, self.log
        idle, self._zero = endpoint.channel.idle, time.perf_counter()
        try:
            self._serve()
        except RankFailure as error:
            failure = error
        except BaseException:
            endpoint.post(tuple(self._core.learners), Kind.STOP)
            raise
        log.wall, log.idle = self._now(), endpoint.channel.idle - idle
        self._stop_learners()
        if failure is not None:
            raise failure
        return log

    def progress(self) -> dict[str, Any]:
        """How far this server is, as a JSON value. Any thread may call this.

        ``seconds``: from the start to the last update of the weights. ``last_push``: for each
        learner's rank the version of its last gradient, and how long ago it was received; None if
        it has not pushed yet.
        """
        now, updates = time.perf_counter(), list(self.log.updates)
        last_pushes = {
            str(self._servers + learner): push
            and {"version": push[0], "seconds_ago": round(now - push[1], 3)}
            for learner in list(self._core.learners)
            for push in (self._last_pushes.get(learner),)
        }
        until_last = updates[-1] if updates else 0.0
        return {"updates": len(updates), "seconds": until_last, "last_push": last_pushes}

    def _serve(self) -> None:
        self._act(self._core.start())
        self._first_out = self._endpoint.bytes_out
        # If another server ends the run, all learners leave, and this server gets no more messages.
        while len(self._left) < len(self._core.learners) and not self._enough(
            self._core.version, self._now()
        ):
            message = self._endpoint.receive()
            if message is not None:
                self._handle(message)

    def _stop_learners(self) -> None:
        """Stop all learners, and receive messages until each has sent its last one."""
        learners, endpoint = set(self._core.learners), self._endpoint
        endpoint.post(tuple(learners), Kind.STOP)
        while learners - self._left:
            message = endpoint.receive()
            if message is None:
                continue
            if message.kind == Kind.FAILED:
                learners.discard(message.peer)
            elif message.kind == Kind.JOIN:
                endpoint.post((message.peer,), Kind.STOP)
            elif message.kind != Kind.GRADIENT:
                self._handle(message)
        endpoint.channel.close()

    def _now(self) -> float:
        return time.perf_counter() - self._zero

    def _handle(self, message: Message) -> None:
        if message.kind == Kind.GRADIENT:
            self._apply(message)
        elif message.kind == Kind.JOIN:
            self._join(message.peer)
        elif message.kind == Kind.BYE:
            self._left.add(message.peer)
            self.log.workers.append(json.loads(bytes(message.data)))
        elif message.kind == Kind.SPANS:
            self._trace.other(self._servers + message.peer, bytes(message.data).decode())
        elif message.peer in self._core.learners and message.peer not in self._left:
            self._drop(message.peer, bytes(message.data).decode(errors="replace") or "was lost")

    def _drop(self, learner: int, reason: str) -> None:
        """Continue without a learner. Raises RankFailure if the protocol cannot."""
        core = self._core
        self.log.lost.append((self._now(), learner, reason))
        self._endpoint.post((learner,), Kind.STOP)
        self._act(core.leave(learner, reason))
        remaining = len(core.learners)
        if core.protocol.may_deadlock(remaining, self._servers):
            raise RankFailure(
                f"{remaining} learners are too few for {core.protocol.name} over"
                f" {self._servers} servers, which may deadlock"
            )
        self._note(f"learner {learner} {reason}; {remaining} go on")

    def _join(self, learner: int) -> None:
        if self._core.protocol.cancels:  # such a protocol needs exactly its first learners
            self._endpoint.post((learner,), Kind.STOP)
            return
        self.log.joined.append((self._now(), learner))
        self._act(self._core.join(learner))
        self._note(f"learner {learner} joins at version {self._core.version}")

    def _apply(self, message: Message) -> None:
        """Apply a gradient that was received, and act as the protocol requires."""
        log, learner, sent, began = self.log, message.peer, message.sent, message.began
        received = time.perf_counter()
        log.receive_s += received - began
        self._last_pushes[learner] = message.version, began
        self._cause = sent
        if self._one_clock:
            log.waits.append(max(0.0, began - sent))
            self._trace.add("queue", "queue", sent, began, learner=learner)
        actions = self._core.gradient(learner, message.version)
        if actions.staleness is None:
            log.dropped += 1
        else:
            if message.version + actions.staleness < self._warmup:
                log.early += 1
            else:
                log.staleness[actions.staleness] += 1
            gradient = self._coding.decode(message.data, self._number)
            self.shard.apply(gradient, learner, actions.staleness)
        now = time.perf_counter()
        log.gradient_s += now - received
        self._trace.add("gradient", "server", began, now, learner=learner)
        self._act(actions)

    def _act(self, actions: Actions) -> None:
        """Update the weights and send them, as the protocol's ``actions`` require."""
        log, began = self.log, time.perf_counter()
        if actions.update:
            self.shard.update(actions.update)
            now = time.perf_counter()
            log.update_s += now - began
            log.updates.append(now - self._zero)
            self._trace.add("update", "server", began, now, version=self._core.version)
            began = now
        if actions.send:
            version, weights = self._core.version, self.shard.weights
            self._endpoint.post(actions.send, Kind.WEIGHTS, version, weights, self._cause)
            now = time.perf_counter()
            log.answer_s += now - began
            log.answers += len(actions.send)
            log.batches += 1
            self._trace.add("answer", "server", began, now, learners=len(actions.send))
        if actions.update:
            endpoint, founders = self._endpoint, self._core.protocol.learners
            log.bytes_in, log.bytes_out = endpoint.bytes_in, endpoint.bytes_out - self._first_out
            log.messages = log.gradients + log.answers - founders  # the first weights


# A learner that burns its core polls for messages at this interval.
_BURN_S = 500e-6
#: The number of parts into which a series is cut for the interval of its mean.
BLOCKS = 20


def block_means(values: Sequence[float]) -> list[float]:
    """The means of `BLOCKS` equal parts of a series; one mean if parts had less than two values."""
    blocks = np.array_split(values, BLOCKS if len(values) >= 2 * BLOCKS else 1)
    return [float(block.mean()) for block in blocks if len(block)]


@dataclass
class WorkerLog:
    """A learner's measurements. Times are in seconds."""

    number: int = -1
    #: Gradients that were pushed, and computations that were cancelled.
    pushed: int = 0
    cancelled: int = 0
    #: Seconds of all pushes; a learner pushes to the servers one after the other.
    pushing: float = 0.0
    #: Seconds by which computations ended late, because of late timers.
    late: float = 0.0
    #: Seconds from sending to receiving of weights with which the learner could begin, over several
    #: hosts only of receiving; for how much of these seconds at most the learner had not noticed
    #: the weights, known on one host; how many weights.
    travel: float = 0.0
    unnoticed: float = 0.0
    answers: int = 0
    #: For each round, which ends when the next begins: its seconds, the seconds drawn for its
    #: computation, and the seconds of exposed communication.
    rounds: list[float] = field(default_factory=list)
    drawn: list[float] = field(default_factory=list)
    exposed: list[float] = field(default_factory=list)
    #: The error that ended the loop.
    failed: str = ""

    def to_json(self, warmup: int) -> str:
        """The log as the payload of `Kind.BYE`, with block means of rounds after the warm-up."""
        series = {name: getattr(self, name) for name in ("rounds", "drawn", "exposed")}
        blocks = {name: block_means(values[warmup:]) for name, values in series.items()}
        return json.dumps({**vars(self), **blocks})


class WorkerLoop:
    """One learner. ``seconds``: returns the least time of its n-th gradient.

    A gradient that is computed faster is pushed after this time.
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
        """``weights``: memory for all weights. ``places``: the servers' parts of them.

        ``burn``: computing keeps a core busy. ``one_clock``: True if the servers are on this host
        and have its clock. ``sends_trace``: True if this learner's trace is sent to the servers.
        ``warmup``: the number of first rounds whose times are not reported.
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
        # When this round began (0: not yet), when its push began and ended (0: it was cancelled),
        # and the latest `cause` of weights.
        self._began, self._push_began, self._push_ended, self._cause = 0.0, 0.0, 0.0, 0.0
        self._receiving = 0.0  # seconds of receiving weights since the learner last could begin

    def run(self) -> WorkerLog:
        """Learn until the servers end the run. An error of this learner is sent to the servers."""
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
        """True if the learner can begin a round with the weights that it has.

        If a new version of the weights cancels computations, all servers' weights must have the
        same version, and a new one unless the protocol continues without new weights. Otherwise
        every server must have answered the last push.
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
        # The next time is drawn during this computation, so that drawing delays no round.
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
        """Record the round that ends here, and how much of it was exposed communication.

        Communication is exposed from the learner's push on. If a later push of another learner
        caused the update, or cancelled this computation, communication is exposed from the start of
        that push on: before, the learner waited for other learners and not for messages. Time
        before the round does not count.
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
        """Compute for a moment if ``burn`` is set. Returns the seconds to wait for a message."""
        if not self._burn:
            return rest
        spend_until(time.perf_counter() + min(rest, _BURN_S), burn=True)
        return 0.0

    def _handle(self, message: Message | None) -> None:
        """Process a message: weights that were received, or the end of the run on a server."""
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
        now, log = time.perf_counter(), self.log
        self._receiving += now - message.began
        if self._can_begin():  # with several servers, the last one counts
            if self._one_clock:
                log.travel += max(0.0, now - message.sent)
                log.unnoticed += max(0.0, message.began - max(message.sent, message.looked))
            else:
                log.travel += self._receiving
            log.answers += 1
            self._receiving = 0.0
