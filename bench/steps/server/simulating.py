"""A simulation of the protocols with drawn compute times and a server that needs time. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import inf
from typing import NamedTuple

from bench.steps.server.protocol import Core, UpdateProtocol

# Learners that do not wait for the server may outrun it: its queue grows, and every gradient is
# stale when it is served. A simulation ends once so many were dropped for each that it needs.
_MOST_DROPPED = 20


class ServiceTimes(NamedTuple):
    """Seconds of the server, which does one thing after the other, and of a learner's round."""

    gradient: float = 0.0
    update: float = 0.0
    weights: float = 0.0
    #: The overhead of each round of a learner: late wake-up and message time.
    round: float = 0.0


@dataclass
class Played:
    """The outcome: times of updates, staleness of their gradients, the server's busy seconds."""

    updates: list[float] = field(default_factory=list)
    staleness: Counter[int] = field(default_factory=Counter)
    dropped: int = 0
    busy: float = 0.0
    #: The play ended early, since the server's queue grew without end.
    endless: bool = False

    def per_update(self, warmup: int = 0) -> float:
        """The mean time per update after the first ``warmup``; infinite where it is `endless`."""
        if self.endless:
            return inf
        first = self.updates[warmup - 1] if warmup else 0.0
        return (self.updates[-1] - first) / (len(self.updates) - warmup)


def play(
    protocol: UpdateProtocol,
    draw: Callable[[int, int], float],
    updates: int,
    costs: ServiceTimes = ServiceTimes(),  # noqa: B008  (immutable)
) -> Played:
    """Simulate until there have been so many updates, or the server cannot keep up.

    A server serves in the order of arrival.

    ``draw``: the seconds of a learner's n-th computation, from 0; one that is cancelled counts.
    """
    return _Play(protocol, draw, costs).until(updates)


class _Play:
    def __init__(
        self, protocol: UpdateProtocol, draw: Callable[[int, int], float], costs: ServiceTimes
    ) -> None:
        self.draw, self.costs = draw, costs
        self.core = Core(protocol, range(protocol.learners))
        self.free = 0.0
        self.made = Played()
        # Events: when, a running number, the learner, its epoch, the version of new weights.
        self.events: list[tuple[float, int, int, int, int | None]] = []
        self.count = 0
        self.epochs = [0] * protocol.learners
        self.versions = [0] * protocol.learners
        self.computed = [0] * protocol.learners

    def until(self, updates: int) -> Played:
        protocol = self.core.protocol
        most = 1000 + _MOST_DROPPED * (protocol.needed + protocol.learners) * updates
        self._send(self.core.start().send)
        while len(self.made.updates) < updates:
            if self.made.dropped > most:
                self.made.endless = True
                break
            now, _, learner, epoch, version = heappop(self.events)
            if version is not None:
                self.epochs[learner] += 1
                self.versions[learner] = version
                self._begin(learner, now)
            elif epoch == self.epochs[learner]:  # else it was cancelled meanwhile
                self._push(learner, now)
        return self.made

    def _push(self, learner: int, now: float) -> None:
        self.free = max(now, self.free)
        done = self.core.gradient(learner, self.versions[learner])
        self._serve(self.costs.gradient)
        if done.staleness is None:
            self.made.dropped += 1
        else:
            self.made.staleness[done.staleness] += 1
        if done.update:
            self._serve(self.costs.update)
            self.made.updates.append(self.free)
        self._send(done.send)
        if self.core.protocol.goes_on:
            self._begin(learner, now)

    def _send(self, learners: tuple[int, ...]) -> None:
        for learner in learners:
            self._serve(self.costs.weights)
            self._event(self.free, learner, self.core.version)

    def _begin(self, learner: int, now: float) -> None:
        seconds = self.draw(learner, self.computed[learner])
        self.computed[learner] += 1
        self._event(now + self.costs.round + seconds, learner, None)

    def _serve(self, seconds: float) -> None:
        self.free += seconds
        self.made.busy += seconds

    def _event(self, when: float, learner: int, version: int | None) -> None:
        self.count += 1  # what happens at once happens in order
        heappush(self.events, (when, self.count, learner, self.epochs[learner], version))
