"""A server's loop: takes pushes in the order of arrival and does what the protocol says."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any, NamedTuple

from bench.steps.server.ends import Arrival, MessageKind, ServerEnd
from bench.steps.server.hooks import Training
from bench.steps.server.protocol import Actions, Core, UpdateProtocol
from bench.steps.trace import Trace
from busbar.errors import RankFailure
from busbar.units import format_seconds

# A server that hears nothing checks so often whether its time is up.
_TICK_S = 0.25
# Learners that a report of progress names.
_NAMED = 8


@dataclass
class Served:
    """A server's measurements. Times are seconds since it first sent weights."""

    updates: list[float] = field(default_factory=list)
    staleness: Counter[int] = field(default_factory=Counter)
    #: Seconds from a learner's push to when the server turned to it; none over several hosts.
    waits: list[float] = field(default_factory=list)
    dropped: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    wall: float = 0.0
    idle: float = 0.0
    #: Seconds that gradients, updates and answers took, each together.
    gradient_s: float = 0.0
    update_s: float = 0.0
    answer_s: float = 0.0
    answers: int = 0
    #: How often answers went out, to one learner or to several at once.
    batches: int = 0
    #: Who was lost when, and who joined.
    lost: list[tuple[float, int, str]] = field(default_factory=list)
    joined: list[tuple[float, int]] = field(default_factory=list)
    #: What learners measured (`bench.steps.server.learning.Learned`).
    learned: list[dict[str, Any]] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """As a JSON value."""
        return {**vars(self), "staleness": list(self.staleness.items())}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Served:
        """Rebuild what `as_json` gave."""
        return cls(**{**value, "staleness": Counter(dict(value["staleness"]))})

    @property
    def gradients(self) -> int:
        """The gradients that came, dropped ones among them."""
        return sum(self.staleness.values()) + self.dropped

    @property
    def utilisation(self) -> float:
        """The part of the time in which the server had something to do."""
        return 1 - self.idle / self.wall if self.wall else 0.0


class ServerProgress(NamedTuple):
    """A server's progress: updates, seconds until the last, and each learner's last push.

    ``heard``: of every learner, by its rank, the version of its last gradient and how many seconds
    ago it came; None of who pushed nothing yet.
    """

    updates: int
    seconds: float
    heard: dict[int, tuple[int, float] | None]

    def as_json(self) -> dict[str, Any]:
        """As JSON values."""
        heard = {
            str(rank): last and {"version": last[0], "seconds_ago": round(last[1], 3)}
            for rank, last in self.heard.items()
        }
        return {"updates": self.updates, "seconds": self.seconds, "last_push": heard}

    def told(self) -> str:
        """In words, those first who were heard of longest ago."""
        each = f" ({format_seconds(self.seconds / self.updates)} each)" if self.updates else ""
        longest = sorted(self.heard.items(), key=lambda one: -(one[1] or (0, inf))[1])
        said = [_said(rank, last) for rank, last in longest[:_NAMED]]
        if len(longest) > _NAMED:
            said.append(f"{len(longest) - _NAMED} others since")
        return f"server 0 has made {self.updates} updates{each}; " + ", ".join(said)


def _said(rank: int, last: tuple[int, float] | None) -> str:
    if last is None:
        return f"rank {rank} has pushed nothing"
    return f"rank {rank} pushed last {last[1]:.1f} s ago, of version {last[0]}"


class Serving:
    """One server. ``enough``: whether so many updates in so many seconds end the run."""

    def __init__(
        self,
        end: ServerEnd,
        protocol: UpdateProtocol,
        training: Training,
        places: Sequence[slice],
        number: int,
        enough: Callable[[int, float], bool],
        *,
        trace: Trace | None = None,
        note: Callable[[str], None] = lambda _: None,
        one_clock: bool = True,
    ) -> None:
        """``places``: of all servers' parts. ``number``: of the server, and its rank.

        Learners have the ranks after the servers'. ``note`` is told of those that come and go.
        ``one_clock``: all learners are on this host, so that their moments mean something here.
        """
        # The version of each learner's last gradient, and when it came.
        self._heard: dict[int, tuple[int, float]] = {}
        self._end, self._core = end, Core(protocol, range(protocol.learners))
        self.server, self._coding = training.server(places[number]), training.coding(places)
        self._number, self._first, self._enough = number, len(places), enough
        self._trace = trace or Trace(on=False)
        self._note, self._one_clock = note, one_clock
        self._zero, self._cause = 0.0, 0.0
        self._left = set[int]()
        self.served = Served()

    def run(self) -> Served:
        """Until it is enough and every learner has said that it leaves.

        Raises RankFailure where the protocol cannot go on; all learners are told to end first.
        """
        failure: RankFailure | None = None
        idle, self._zero = self._end.idle, time.perf_counter()
        try:
            self._serve()
        except RankFailure as error:
            failure = error
        except BaseException:
            self._end.stop(tuple(self._core.learners))
            raise
        served, end = self.served, self._end
        served.wall, served.idle = self._now(), end.idle - idle
        served.bytes_in, served.bytes_out = end.bytes_in, end.bytes_out
        self._end_all()
        if failure is not None:
            raise failure
        return self.served

    def far(self) -> ServerProgress:
        """The progress now. Any thread may ask."""
        now, made = time.perf_counter(), list(self.served.updates)
        heard = {
            self._first + learner: None if found is None else (found[0], now - found[1])
            for learner in list(self._core.learners)
            for found in (self._heard.get(learner),)
        }
        return ServerProgress(len(made), made[-1] if made else 0.0, heard)

    def _serve(self) -> None:
        self._do(self._core.start())
        # Another server may have had enough: then all leave, with nothing left on its way to here.
        while len(self._left) < len(self._core.learners) and not self._enough(
            self._core.version, self._now()
        ):
            arrival = self._end.receive(_TICK_S)
            if arrival is not None:
                self._handle(arrival)

    def _end_all(self) -> None:
        """Tell the learners, and receive what is on its way from each until it has left."""
        learners, end = set(self._core.learners), self._end
        end.stop(tuple(learners))
        while learners - self._left:
            arrival = end.receive(_TICK_S)
            if arrival is not None and arrival.kind == MessageKind.BYE:
                self._leaves(arrival)
            elif arrival is not None and arrival.kind == MessageKind.SPANS:
                self._told_spans(arrival)
            elif arrival is not None and arrival.kind == MessageKind.FAILED:
                learners.discard(arrival.learner)
            elif arrival is not None and arrival.kind == MessageKind.JOIN:
                end.stop((arrival.learner,))
        end.close()

    def _now(self) -> float:
        return time.perf_counter() - self._zero

    def _handle(self, arrival: Arrival) -> None:
        served, core = self.served, self._core
        if arrival.kind == MessageKind.GRADIENT:
            self._gradient(arrival)
        elif arrival.kind == MessageKind.JOIN:
            self._joins(arrival.learner)
        elif arrival.kind == MessageKind.BYE:
            self._leaves(arrival)
        elif arrival.kind == MessageKind.SPANS:
            self._told_spans(arrival)
        elif arrival.learner in core.learners and arrival.learner not in self._left:
            why = bytes(arrival.data).decode(errors="replace") or "was lost"
            served.lost.append((self._now(), arrival.learner, why))
            self._end.stop((arrival.learner,))
            self._do(core.leave(arrival.learner, why))
            left, name = len(core.learners), core.protocol.name
            if core.protocol.may_deadlock(left, self._first):
                raise RankFailure(
                    f"{left} learners are too few for {name} over {self._first} servers, which may"
                    " deadlock"
                )
            self._note(f"learner {arrival.learner} {why}; {left} go on")

    def _leaves(self, arrival: Arrival) -> None:
        self._left.add(arrival.learner)
        self.served.learned.append(json.loads(bytes(arrival.data)))

    def _told_spans(self, arrival: Arrival) -> None:
        self._trace.other(self._first + arrival.learner, bytes(arrival.data).decode())

    def _joins(self, learner: int) -> None:
        if self._core.protocol.cancels:  # which counts on the learners that it began with
            self._end.stop((learner,))
            return
        self.served.joined.append((self._now(), learner))
        self._do(self._core.join(learner))
        self._note(f"learner {learner} joins at version {self._core.version}")

    def _gradient(self, arrival: Arrival) -> None:
        served, began = self.served, arrival.began
        self._heard[arrival.learner] = arrival.version, began
        self._cause = arrival.sent
        if self._one_clock:
            served.waits.append(max(0.0, began - arrival.sent))
            self._trace.add("queue", "queue", arrival.sent, began, learner=arrival.learner)
        actions = self._core.gradient(arrival.learner, arrival.version)
        if actions.staleness is None:
            served.dropped += 1
        else:
            served.staleness[actions.staleness] += 1
            gradient = self._coding.decode(arrival.data, self._number)
            self.server.apply(gradient, arrival.learner, actions.staleness)
        now = time.perf_counter()
        served.gradient_s += now - began
        self._trace.add("gradient", "server", began, now, learner=arrival.learner)
        self._do(actions)

    def _do(self, actions: Actions) -> None:
        served, began = self.served, time.perf_counter()
        if actions.update:
            self.server.update(actions.update)
            now = time.perf_counter()
            served.update_s += now - began
            served.updates.append(now - self._zero)
            self._trace.add("update", "server", began, now, version=self._core.version)
            began = now
        if actions.send:
            self._end.send(actions.send, self._core.version, self.server.weights, self._cause)
            now = time.perf_counter()
            served.answer_s += now - began
            served.answers += len(actions.send)
            served.batches += 1
            self._trace.add("answer", "server", began, now, learners=len(actions.send))
