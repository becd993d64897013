"""Expected times of the protocols: by formula, by simulation, and split by cause. Pure; seconds.

Formulas are those of Dutta, Joshi, Ghosh, Dube, Nagpurkar: Slow and Stale Gradients Can Win the
Race (2018), lemmas 1 to 5; Gupta, Zhang, Wang: Model Accuracy and Runtime Tradeoff (2016).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import ceil, inf
from typing import NamedTuple

from bench.steps.compute import Compute
from bench.steps.server.protocol import Core, UpdateProtocol
from bench.steps.server.server_loop import ServerLog

# Learners that do not wait for the server may outrun it: its queue grows, and every gradient is too
# late when it is served. A simulation ends once so many were dropped for each that it needs.
_MOST_DROPPED = 20


class ExpectedPace(NamedTuple):
    """Expected seconds per update. ``bound``: it takes at most so long, for laws that age.

    A law ages if a computation that has run for a while is expected to end sooner than a new one.
    """

    seconds: float
    bound: bool = False


def per_update(protocol: UpdateProtocol, law: Compute) -> ExpectedPace | None:
    """The expected time per update; None if there is no formula, so that it must be simulated."""
    p, k = protocol.learners, protocol.needed
    if protocol.cancels and protocol.repeats:
        if law.memoryless:
            return ExpectedPace(k * law.mean / p)
        if law.constant:
            return ExpectedPace(ceil(k / p) * law.mean)
        return ExpectedPace(law.smallest(1, p)) if k == 1 else None
    if protocol.cancels or (k == p and not protocol.repeats):
        return ExpectedPace(law.smallest(k, p))
    if protocol.repeats or k == 1:  # every learner is always at work: P renewals at a time
        return ExpectedPace(k * law.mean / p)
    return ExpectedPace(law.smallest(k, p), bound=not law.memoryless)


def mean_staleness(protocol: UpdateProtocol) -> float:
    """The mean number of updates between the weights a gradient is computed from and its own.

    Every update takes K gradients. In k-async a learner is always between two updates that it is
    part of, so that the K gradients of an update cover P updates together; in k-batch-async P − 1
    other gradients come, on average, between a learner's own.
    """
    p, k = protocol.learners, protocol.needed
    if protocol.cancels:
        return 0.0
    return (p - 1) / k if protocol.repeats else p / k - 1


def sync_over_async(learners: int, law: Compute) -> float:
    """E[T_sync]/E[T_async] = P·E[X_{P:P}]/E[X]; P·H_P for the exponential."""
    return learners * law.smallest(learners, learners) / law.mean


class ServiceTimes(NamedTuple):
    """Seconds of a server, which does one thing after the other, and of a learner's round.

    ``gradient``, ``update``, ``weights``: to apply a gradient, to make an update, to send weights
    to a learner. ``round``: overhead of each round of a learner, by late timers and messages.
    """

    gradient: float = 0.0
    update: float = 0.0
    weights: float = 0.0
    round: float = 0.0


@dataclass
class ProtocolRun:
    """A simulated run: times of updates, staleness of gradients, seconds the server was busy.

    ``endless``: the simulation was stopped, because the server's queue grows without bound.
    """

    updates: list[float] = field(default_factory=list)
    staleness: Counter[int] = field(default_factory=Counter)
    dropped: int = 0
    busy: float = 0.0
    endless: bool = False

    def per_update(self, warmup: int = 0) -> float:
        """The mean time per update after the first ``warmup``; infinite if `endless`."""
        if self.endless:
            return inf
        first = self.updates[warmup - 1] if warmup else 0.0
        return (self.updates[-1] - first) / (len(self.updates) - warmup)


def simulate_protocol(
    protocol: UpdateProtocol,
    draw: Callable[[int, int], float],
    updates: int,
    costs: ServiceTimes = ServiceTimes(),  # noqa: B008  (immutable)
) -> ProtocolRun:
    """Simulate so many updates, or fewer if the server cannot keep up.

    A server serves in the order of arrival. ``draw``: seconds of a learner's n-th computation, from
    0; cancelled ones count.
    """
    return _Simulation(protocol, draw, costs).run(updates)


class _Simulation:
    """One server and its learners, event by event."""

    def __init__(
        self, protocol: UpdateProtocol, draw: Callable[[int, int], float], costs: ServiceTimes
    ) -> None:
        self.draw, self.costs = draw, costs
        self.core = Core(protocol, range(protocol.learners))
        self.free = 0.0  # when the server has done all that has come
        self.result = ProtocolRun()
        # Events: when, a running number, the learner, its epoch, the version of new weights (None:
        # its computation has ended). A learner that is cancelled begins a new epoch.
        self.events: list[tuple[float, int, int, int, int | None]] = []
        self.count = 0
        self.epochs = [0] * protocol.learners
        self.versions = [0] * protocol.learners
        self.computed = [0] * protocol.learners

    def run(self, updates: int) -> ProtocolRun:
        """See `simulate_protocol`."""
        protocol, result = self.core.protocol, self.result
        most = 1000 + _MOST_DROPPED * (protocol.needed + protocol.learners) * updates
        self._send(self.core.start().send)
        while len(result.updates) < updates:
            if result.dropped > most:
                result.endless = True
                break
            now, _, learner, epoch, version = heappop(self.events)
            if version is not None:
                self.epochs[learner] += 1
                self.versions[learner] = version
                self._begin(learner, now)
            elif epoch == self.epochs[learner]:  # else it was cancelled meanwhile
                self._push(learner, now)
        return result

    def _push(self, learner: int, now: float) -> None:
        self.free = max(now, self.free)
        actions = self.core.gradient(learner, self.versions[learner])
        self._serve(self.costs.gradient)
        if actions.staleness is None:
            self.result.dropped += 1
        else:
            self.result.staleness[actions.staleness] += 1
        if actions.update:
            self._serve(self.costs.update)
            self.result.updates.append(self.free)
        self._send(actions.send)
        if self.core.protocol.goes_on:
            self._begin(learner, now)

    def _send(self, learners: tuple[int, ...]) -> None:
        for learner in learners:
            self._serve(self.costs.weights)
            self._add_event(self.free, learner, self.core.version)

    def _begin(self, learner: int, now: float) -> None:
        seconds = self.draw(learner, self.computed[learner])
        self.computed[learner] += 1
        self._add_event(now + self.costs.round + seconds, learner, None)

    def _serve(self, seconds: float) -> None:
        self.free += seconds
        self.result.busy += seconds

    def _add_event(self, when: float, learner: int, version: int | None) -> None:
        self.count += 1  # simultaneous events happen in the order in which they were added
        heappush(self.events, (when, self.count, learner, self.epochs[learner], version))


class RoundCosts(NamedTuple):
    """Mean seconds of a learner's round beside computing and the server's work.

    ``noticing``: from the sending of weights until the learner has begun anew. ``waking``: delay of
    the ends of computations, by late timers. ``pushing``: to servers other than this one.
    """

    noticing: float
    waking: float
    pushing: float


def measured_costs(log: ServerLog, servers: int) -> tuple[ServiceTimes, RoundCosts]:
    """Mean times of a server's work and of a learner's round, without computing.

    ``log``: of one of so many servers; pushing to the others is part of a learner's round.
    """
    pushed = max(1, sum(worker["pushed"] for worker in log.workers))
    answered = max(1, sum(worker["answers"] for worker in log.workers))
    travel = sum(worker["travel"] for worker in log.workers) / answered
    weights = log.answer_s / max(1, log.answers)
    # Work that is not timed by itself, such as sending the rest of a message.
    timed = log.gradient_s + log.update_s + log.answer_s
    rest = max(0.0, log.wall - log.idle - timed) / max(1, log.gradients)
    together = log.answers / max(1, log.batches)
    round_costs = RoundCosts(
        # `weights` includes the server's part of it, once for each learner served before.
        max(0.0, travel - weights * (together + 1) / 2),
        sum(worker["late"] for worker in log.workers) / pushed,
        sum(worker["pushing"] for worker in log.workers) / pushed * (servers - 1) / servers,
    )
    service_times = ServiceTimes(
        gradient=log.gradient_s / max(1, log.gradients) + rest,
        update=log.update_s / max(1, len(log.updates)),
        weights=weights,
        round=sum(round_costs),
    )
    return service_times, round_costs


def attribute_time(
    simulated: Callable[[ServiceTimes], float],
    service_times: ServiceTimes,
    round_costs: RoundCosts,
    predicted: float,
    mean: float,
) -> dict[str, float]:
    """Split a measured time per update by cause, in seconds; the sum is ``mean``.

    The protocol is simulated with one more cost at a time: each is what it adds to those before it.
    ``simulated``: the time per update with some costs, infinite if the server cannot keep up; that
    cost and those after it are then left together. ``predicted``: the formula's time.
    """
    none = ServiceTimes()
    taking = none._replace(gradient=service_times.gradient, update=service_times.update)
    answering = taking._replace(weights=service_times.weights)
    costs_so_far = {
        "chance in the times drawn": none,
        "gradients taken in by the server": taking,
        "weights sent to one after the other": answering,
        "learners that notice them late": answering._replace(round=round_costs.noticing),
        "gradients that end late": service_times,
    }
    parts, before = {"computing": predicted}, predicted
    for name, costs in costs_so_far.items():
        after = simulated(costs)
        if after == inf:
            break
        parts[name], before = after - before, after
    return parts | {"unexplained": mean - before}
