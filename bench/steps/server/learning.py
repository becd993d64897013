"""A learner's loop: wait for weights, compute, push; start again when it is cancelled."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from bench.steps.compute import spend_until
from bench.steps.server.ends import Answer, LearnerEnd, MessageKind
from bench.steps.server.hooks import Training, Vector
from bench.steps.server.protocol import UpdateProtocol
from bench.steps.trace import MESSAGES, Trace
from busbar.errors import BusbarError

# A learner that burns looks for answers at this interval.
_BURN_S = 500e-6
#: Parts into which a series is cut for the interval of its mean.
BLOCKS = 20


def in_blocks(values: Sequence[float]) -> list[float]:
    """The means of `BLOCKS` equal parts of a series; of one part below two values for each."""
    parts = np.array_split(values, BLOCKS if len(values) >= 2 * BLOCKS else 1)
    return [float(part.mean()) for part in parts if len(part)]


@dataclass
class Learned:
    """A learner's log; times in seconds."""

    number: int = -1
    pushed: int = 0
    cancelled: int = 0
    #: Seconds of pushes, to all servers one after the other.
    pushing: float = 0.0
    #: Seconds by which computations ended late (late timers), and that answers travelled after
    #: which it could begin; `answers` counts these.
    late: float = 0.0
    travel: float = 0.0
    answers: int = 0
    #: Of each round, from one beginning to the next: its seconds, the seconds that were drawn for
    #: its computation, and those of exposed communication.
    rounds: list[float] = field(default_factory=list)
    drawn: list[float] = field(default_factory=list)
    exposed: list[float] = field(default_factory=list)
    failed: str = ""

    def said(self, warmup: int) -> str:
        """The last word to the servers: rounds after the first ``warmup`` as means of blocks."""
        series = {name: getattr(self, name) for name in ("rounds", "drawn", "exposed")}
        blocks = {name: in_blocks(values[warmup:]) for name, values in series.items()}
        return json.dumps({**vars(self), **blocks})


class Rounds:
    """One learner's work. ``seconds``: of its n-th gradient, at least; the rest is waited for."""

    def __init__(
        self,
        end: LearnerEnd,
        protocol: UpdateProtocol,
        training: Training,
        number: int,
        seconds: Callable[[int], float],
        *,
        burn: bool = False,
        one_clock: bool = True,
        trace: Trace | None = None,
        spans: Callable[[], Iterable[str]] = tuple,
        warmup: int = 0,
    ) -> None:
        """``number``: of the learner. ``burn``: computing takes a core.

        ``one_clock``: the servers are on this host, so that their moments mean something here.
        ``spans``: what the servers are told of the trace at the end, where they have none of it.
        ``warmup``: the first rounds, of which no times are told.
        """
        self._spans, self._warmup = spans, warmup
        self._end, self._protocol, self._seconds = end, protocol, seconds
        self._gradient, self._coding = training.learner(number), training.coding(end.places)
        self._trace = trace or Trace(on=False)
        self._versions = [-1] * len(end.places)
        self._pushed = -1  # the version of the last gradient, where answers come to all at once
        self._due = set(range(len(end.places)))
        self._over = set[int]()
        self.learned = Learned(number)
        self._burn, self._one_clock, self._next = burn, one_clock, seconds(0)
        # The round that goes on: its beginning (0: there is none), and its push's (an end of 0:
        # there was none). When the push began that the last answer followed.
        self._began, self._push_began, self._push_ended, self._cause = 0.0, 0.0, 0.0, 0.0

    def run(self) -> Learned:
        """Until the servers say that it is over. What fails here the servers are told."""
        try:
            while self._ready():
                self._round()
            for text in self._spans():
                self._end.say(MessageKind.SPANS, text)
            self._end.say(MessageKind.BYE, self.learned.said(self._warmup))
        except BusbarError as error:
            self.learned.failed = str(error)
            self._end.say(MessageKind.FAILED, str(error))
        while len(self._over) < len(self._versions):  # what is on its way must be taken
            self._take(self._end.wait(None))
        return self.learned

    def _ready(self) -> bool:
        """Wait for weights to begin with; False where all is over."""
        while not self._over:
            if self._complete():
                return True
            self._take(self._end.wait(None))
        return False

    def _complete(self) -> bool:
        """Whether the weights can be begun with.

        Where an update cancels, they are to be of one version of all servers, and of a new one
        unless the learner goes on by itself. Else every server has answered the last push.
        """
        if not self._protocol.cancels:
            return not self._due
        oldest = min(self._versions)
        new = oldest > self._pushed or (self._protocol.goes_on and oldest >= 0)
        return new and oldest == max(self._versions)

    def _round(self) -> None:
        began, learned = time.perf_counter(), self.learned
        self._end_round(began)
        ends = began + self._next
        learned.drawn.append(self._next)
        gradient = self._gradient(self._end.weights, min(self._versions))
        # Drawn while this one is computed, so that it delays no computation.
        self._next = self._seconds(learned.pushed + learned.cancelled + 1)
        while (rest := ends - time.perf_counter()) > 0:
            answer = self._end.wait(self._spend(rest))
            if answer is not None:
                self._take(answer)
                if self._over or self._protocol.cancels:
                    break
        now = time.perf_counter()
        self._push_began, self._push_ended = now, 0.0
        if rest > 0:
            learned.cancelled += not self._over  # else the end of the run came
            self._trace.add("cancelled", "compute", began, now)
            return
        learned.late += now - ends
        self._trace.add("gradient", "compute", began, now)
        self._pushed, self._due = min(self._versions), set(range(len(self._versions)))
        for server, place in enumerate(self._end.places):
            data = self._coding.encode(gradient[place], server)
            self._push(server, data)
        learned.pushed += 1
        self._push_ended = time.perf_counter()
        learned.pushing += self._push_ended - now
        while self._protocol.goes_on and (answer := self._end.wait(0)) is not None:
            self._take(answer)

    def _end_round(self, now: float) -> None:
        """Note the round that ends here, and how much of it was exposed communication.

        Communication is exposed from the learner's push on. Where a later push of another learner
        made the update, or cancelled this computation, it is exposed from the beginning of that
        push: until then the learner waited for learners, not for messages. Time before the round
        does not count.
        """
        learned, one_clock = self.learned, self._one_clock
        if self._began:
            learned.rounds.append(now - self._began)
            if one_clock or not self._protocol.waits:
                others = one_clock and self._cause > self._push_ended
                begun = self._cause if others else self._push_began
                learned.exposed.append(max(0.0, now - max(begun, self._began)))
        self._began = now

    def _push(self, server: int, data: Vector) -> None:
        version = self._versions[server]
        if not self._trace.on:
            self._end.push(server, version, data)
            return
        start = time.perf_counter()
        self._end.push(server, version, data)
        named = {"bytes": data.nbytes, "version": version}
        self._trace.add(f"gradient to {server}", MESSAGES, start, time.perf_counter(), **named)

    def _spend(self, rest: float) -> float:
        """Seconds to wait for an answer: none where the rank's own core computes."""
        if self._burn:
            spend_until(time.perf_counter() + min(rest, _BURN_S), burn=True)
        return 0.0 if self._burn else rest

    def _take(self, answer: Answer | None) -> None:
        if answer is None:
            return
        if answer.version is None:
            self._over.add(answer.server)
            return
        self._due.discard(answer.server)
        self._versions[answer.server] = answer.version
        self._cause = max(self._cause, answer.cause)
        if self._trace.on and self._one_clock:
            named = {"bytes": self._end.part(answer.server).nbytes, "version": answer.version}
            now, name = time.perf_counter(), f"weights from {answer.server}"
            self._trace.add(name, MESSAGES, answer.sent, now, **named)
        if self._one_clock and self._complete():  # of several servers' the last is waited for
            self.learned.travel += max(0.0, time.perf_counter() - answer.sent)
            self.learned.answers += 1
