"""A simulated cluster with faults, which turns launches into observations. No input or output."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import exp

import numpy as np
from numpy.typing import NDArray

from bench.qualify.decide import plan
from bench.qualify.model import (
    ALLREDUCE,
    BACKWARD,
    BOTH,
    FORWARD,
    MEMORY,
    Cluster,
    Decision,
    Ending,
    HostReport,
    Launch,
    Limits,
    Observation,
    State,
)
from bench.qualify.together import predicted

#: Draws log(measured rate / true rate), in any shape, from a random generator.
Noise = Callable[[np.random.Generator, tuple[int, ...]], NDArray[np.float64]]
#: Bytes per second of a healthy port, and of a healthy host's memory.
PORT, COPY = 1e10, 1e11
# Launches whose noise is drawn at once, and draws of each.
_BLOCK, _DRAWS = 1024, 5

_ENDINGS = {
    State.UNREACHABLE: Ending.UNREACHABLE,
    State.CRASHES: Ending.CRASHED,
    State.HANGS: Ending.HUNG,
}


def no_noise(random: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """Noise of 0: every rate is measured exactly."""
    del random
    return np.zeros(shape)


@dataclass(frozen=True)
class Fault:
    """A fault: `kind` as in verdicts, the hosts, the state, and the rate relative to a good one.

    `out` and `into`: True if that direction of a host's port is slow. Faults with state hangs,
    crashes or wrong show in all launches with other hosts from batch `since` on. A fault of kind
    "group" slows launches of more than two hosts that include all of its hosts.
    """

    kind: str
    hosts: tuple[str, ...]
    state: State
    ratio: float = 1.0
    out: bool = True
    into: bool = True
    since: int = 0


@dataclass
class SimulatedCluster:
    """Hosts with faults, noise of launches and hosts, and racks with shared uplinks.

    `racks` are the true ones, even if the decisions do not know them. An uplink carries `uplink`
    times the rates of the rack's ports. `spread` is the standard deviation of healthy hosts' rates.
    Noise depends on a launch's number, so that a launch has the same result whenever it runs.
    """

    hosts: Sequence[str]
    faults: Sequence[Fault] = ()
    noise: Noise = no_noise
    seed: int = 0
    spread: float = 0.0
    racks: Mapping[str, str] = field(default_factory=dict)
    uplink: float = 1.0

    def __post_init__(self) -> None:
        ordered = sorted(self.hosts)
        own = np.exp(
            np.random.default_rng([self.seed, 3]).normal(0, self.spread or 1e-300, len(ordered))
        )
        self.port_out = {h: PORT * float(f) for h, f in zip(ordered, own, strict=True)}
        self.port_in = dict(self.port_out)
        self.links: dict[frozenset[str], float] = {}
        self.groups: dict[frozenset[str], float] = {}
        self.failing: dict[str, Fault] = {}
        self.failing_links: dict[frozenset[str], Fault] = {}
        self.capacity: dict[str, float] = {
            rack: PORT * n * self.uplink for rack, n in Counter(self.racks.values()).items()
        }
        self.facts = {"busbar": "1.0", "cpu": "one"}
        self._blocks: dict[int, NDArray[np.float64]] = {}
        for fault in self.faults:
            self._apply(fault)

    def _apply(self, fault: Fault) -> None:
        host = fault.hosts[0]
        if fault.kind == "uplink":
            self.capacity[self.racks[host]] *= fault.ratio
        elif fault.kind == "group":
            self.groups[frozenset(fault.hosts)] = fault.ratio
        elif fault.kind == "link" and fault.state is State.SLOW:
            self.links[frozenset(fault.hosts)] = fault.ratio * PORT
        elif fault.kind == "link":
            self.failing_links[frozenset(fault.hosts)] = fault
        elif fault.state is State.SLOW:
            self.port_out[host] *= fault.ratio if fault.out else 1
            self.port_in[host] *= fault.ratio if fault.into else 1
        else:
            self.failing[host] = fault

    def observe(self, launches: Iterable[Launch]) -> list[Observation]:
        """The observations of these launches, which run at the same time."""
        batch = list(launches)
        sharing: Counter[str] = Counter()
        for launch in batch:
            racks = {self.racks.get(host, "") for host in launch.hosts}
            if len(racks) > 1:
                sharing.update(racks)
        return [self._observe(launch, sharing) for launch in batch]

    def _observe(self, launch: Launch, sharing: Mapping[str, int]) -> Observation:
        reports = self._failure(launch)
        if reports is not None:
            return Observation(launch, reports)
        noise = self._noise(launch.number)
        if len(launch.hosts) == 1:
            return Observation(launch, (self._alone(launch.hosts[0], noise),))
        wrong = self._wrong(launch)
        reports = tuple(HostReport(host, Ending.FINISHED, wrong=wrong) for host in launch.hosts)
        if len(launch.hosts) > 2:
            rate = min(min(self.port_out[h], self.port_in[h]) for h in launch.hosts)
            slowed = [ratio for group, ratio in self.groups.items() if group <= {*launch.hosts}]
            seconds = predicted(rate, len(launch.hosts)) * exp(noise[0]) * min(slowed, default=1.0)
            return Observation(launch, reports, {ALLREDUCE: (seconds,)})
        a, b = launch.hosts
        between = self._between(a, b, sharing)
        there = min(self.port_out[a], self.port_in[b], between)
        back = min(self.port_out[b], self.port_in[a], between)
        rates = {
            FORWARD: (there * exp(noise[0] + noise[1]),),
            BACKWARD: (back * exp(noise[0] + noise[2]),),
            BOTH: (min(there, back) * exp(noise[0] + noise[3]),),
        }
        return Observation(launch, reports, rates)

    def _alone(self, host: str, noise: Sequence[float]) -> HostReport:
        fault, facts = self.failing.get(host), self.facts
        if fault is not None and fault.state is State.DIFFERENT:
            facts = {**facts, "busbar": "0.9"}
        return HostReport(
            host, Ending.FINISHED, facts=facts, rates={MEMORY: COPY * exp(noise[0] + noise[1])}
        )

    def _between(self, a: str, b: str, sharing: Mapping[str, int]) -> float:
        """The rate of the network between two hosts' ports."""
        rate = self.links.get(frozenset((a, b)), np.inf)
        racks = {self.racks.get(a, ""), self.racks.get(b, "")}
        if len(racks) > 1:
            rate = min(rate, *(self.capacity[rack] / sharing[rack] for rack in racks))
        return float(rate)

    def _failure(self, launch: Launch) -> tuple[HostReport, ...] | None:
        """The reports of a launch that fails; None for one that finishes."""
        bad = {
            h: self.failing[h]
            for h in launch.hosts
            if h in self.failing
            and self.failing[h].state in _ENDINGS
            and launch.batch >= self.failing[h].since
            and (len(launch.hosts) > 1 or self.failing[h].state is State.UNREACHABLE)
        }
        pair = self.failing_links.get(frozenset(launch.hosts))
        if not bad and (pair is None or pair.state not in _ENDINGS):
            return None
        if pair is not None and not bad:
            bad = {launch.hosts[0]: pair}
        states = {fault.state for fault in bad.values()}
        if State.HANGS in states and State.UNREACHABLE not in states:
            # A hang of one host is not visible from outside: all hosts of the launch hang.
            return tuple(HostReport(h, Ending.HUNG) for h in launch.hosts)
        return tuple(
            HostReport(h, _ENDINGS[bad[h].state], "Killed", 137)
            if h in bad
            else HostReport(h, Ending.STOPPED)
            for h in launch.hosts
        )

    def _wrong(self, launch: Launch) -> int:
        """The number of wrong elements, which all hosts of the launch report."""
        if not self.failing and not self.failing_links:
            return 0
        faults = [self.failing.get(h) for h in launch.hosts]
        faults.append(self.failing_links.get(frozenset(launch.hosts)))
        return sum(7 for f in faults if f and f.state is State.WRONG and launch.batch >= f.since)

    def _noise(self, number: int) -> list[float]:
        block = number // _BLOCK
        if block not in self._blocks:
            random = np.random.default_rng([self.seed, 4, block])
            self._blocks[block] = self.noise(random, (_BLOCK, _DRAWS))
        drawn: list[float] = self._blocks[block][number % _BLOCK].tolist()
        return drawn


@dataclass(frozen=True)
class Campaign:
    """A whole campaign: all observations and the last decision."""

    observations: tuple[Observation, ...]
    decision: Decision

    def batches(self) -> int:
        """The number of batches."""
        return 1 + max((o.launch.batch for o in self.observations), default=-1)


def run_campaign(
    cluster: Cluster,
    limits: Limits,
    simulated: SimulatedCluster,
    observations: Sequence[Observation] = (),
) -> Campaign:
    """Run a simulated campaign to its end, from the observations of complete batches on."""
    known = list(observations)
    while True:
        decision = plan(cluster, limits, known)
        if not decision.launches:
            return Campaign(tuple(known), decision)
        known += simulated.observe(decision.launches)
