"""A server's loop: receives gradients in the order of their arrival and follows the protocol."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any

from bench.steps.server.endpoint import Channel, Endpoint, Kind, Message
from bench.steps.server.protocol import Actions, Core, UpdateProtocol
from bench.steps.server.trainer_hooks import Trainer
from bench.steps.trace import Trace
from busbar.errors import RankFailure
from busbar.units import format_seconds

# Learners that `describe_progress` names, and what stands for the push of one that has not pushed.
_NAMED, _NEVER = 8, {"seconds_ago": inf}


@dataclass
class ServerLog:
    """A server's measurements. Times are in seconds; moments count from the first weights sent."""

    #: When each update was made.
    updates: list[float] = field(default_factory=list)
    #: Gradients by their staleness, and those that came too late for their update.
    staleness: Counter[int] = field(default_factory=Counter)
    dropped: int = 0
    #: From the sending of each gradient until the server began to receive it; empty over hosts.
    waits: list[float] = field(default_factory=list)
    bytes_in: int = 0
    bytes_out: int = 0
    #: The whole run, and what of it the server waited for messages.
    wall: float = 0.0
    idle: float = 0.0
    #: What all gradients, all updates and all answers took.
    gradient_s: float = 0.0
    update_s: float = 0.0
    answer_s: float = 0.0
    #: Answers to learners, and how often one or several were sent at once.
    answers: int = 0
    batches: int = 0
    #: When a learner was lost, which, and why; when a learner joined, and which.
    lost: list[tuple[float, int, str]] = field(default_factory=list)
    joined: list[tuple[float, int]] = field(default_factory=list)
    #: What learners measured (`bench.steps.server.worker_loop.WorkerLog`).
    workers: list[dict[str, Any]] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """The log as a JSON value."""
        return {**vars(self), "staleness": list(self.staleness.items())}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> ServerLog:
        """The log of which `to_json` made a JSON value."""
        return cls(**{**value, "staleness": Counter(dict(value["staleness"]))})

    @property
    def gradients(self) -> int:
        """The gradients that were received, with those that came too late."""
        return sum(self.staleness.values()) + self.dropped

    @property
    def utilisation(self) -> float:
        """The share of the time in which the server did not wait for messages."""
        return 1 - self.idle / self.wall if self.wall else 0.0


def describe_progress(progress: Mapping[str, Any]) -> str:
    """`ServerLoop.progress` in words, with the learners first that pushed longest ago."""
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
    """One server. ``enough``: whether so many updates in so many seconds end the run."""

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
    ) -> None:
        """``places``: of all servers' parts of the weights. ``number``: the server's, and its rank.

        Learners have the ranks after the servers'. ``note``: prints a line about a learner that
        joins or is lost. ``one_clock``: all learners are on this host, so that their clock is this
        one.
        """
        # The version of each learner's last gradient, and when it was received.
        self._last_pushes: dict[int, tuple[int, float]] = {}
        self._endpoint, self._core = Endpoint(channel), Core(protocol, range(protocol.learners))
        self.shard, self._coding = trainer.shard(places[number]), trainer.coding(places)
        self._number, self._servers, self._enough = number, len(places), enough
        self._trace = trace or Trace(on=False)
        self._note, self._one_clock = note, one_clock
        self._zero, self._cause = 0.0, 0.0
        self._left = set[int]()
        self.log = ServerLog()

    def run(self) -> ServerLog:
        """Serve until it is enough and every learner has sent its last message.

        Raises RankFailure if the protocol cannot go on; then all learners are stopped first.
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
        log.bytes_in, log.bytes_out = endpoint.bytes_in, endpoint.bytes_out
        self._stop_learners()
        if failure is not None:
            raise failure
        return log

    def progress(self) -> dict[str, Any]:
        """The progress now, as a JSON value. May be called by any thread.

        ``seconds``: until the last update. ``last_push``: for each learner's rank the version of
        its last gradient, and how long ago it was received; None if it has pushed none.
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
        # If another server ends the run all learners leave, and nothing is on its way to this one.
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
        if self._core.protocol.cancels:  # it needs the learners that it began with
            self._endpoint.post((learner,), Kind.STOP)
            return
        self.log.joined.append((self._now(), learner))
        self._act(self._core.join(learner))
        self._note(f"learner {learner} joins at version {self._core.version}")

    def _apply(self, message: Message) -> None:
        """Receive a gradient, and act as the protocol says."""
        log, learner, sent, began = self.log, message.peer, message.sent, message.began
        self._last_pushes[learner] = message.version, began
        self._cause = sent
        if self._one_clock:
            log.waits.append(max(0.0, began - sent))
            self._trace.add("queue", "queue", sent, began, learner=learner)
        actions = self._core.gradient(learner, message.version)
        if actions.staleness is None:
            log.dropped += 1
        else:
            log.staleness[actions.staleness] += 1
            gradient = self._coding.decode(message.data, self._number)
            self.shard.apply(gradient, learner, actions.staleness)
        now = time.perf_counter()
        log.gradient_s += now - began
        self._trace.add("gradient", "server", began, now, learner=learner)
        self._act(actions)

    def _act(self, actions: Actions) -> None:
        """Update the weights and send them, as the protocol says."""
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
