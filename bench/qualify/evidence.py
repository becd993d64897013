"""The observations of a campaign as columns over hosts and pairs. No input or output."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log
from statistics import median

import numpy as np
from numpy.typing import NDArray

from bench.qualify.model import (
    BACKWARD,
    BOTH,
    FORWARD,
    Cluster,
    Ending,
    Limits,
    Observation,
    Stage,
    State,
)

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

# A host is late if its launches take this many times as long as the median host's.
_LATE = 1.3

#: The channels of a host: sending, receiving, and both at once.
OUT, IN, DUPLEX = 0, 1, 2
CHANNELS = ("out", "in", "both ways at once")

#: The state of a host whose own process ended so.
STATES = {
    Ending.UNREACHABLE: State.UNREACHABLE,
    Ending.CRASHED: State.CRASHES,
    Ending.HUNG: State.HANGS,
}


@dataclass(frozen=True)
class Flows:
    """Rates between two hosts: a row for each direction of a launch; columns of equal length.

    `source` sends on `channel` (`OUT` or `DUPLEX`), and `target` receives on `IN` or `DUPLEX`.
    `rate` is the natural logarithm of the median of the repeats in bytes per second. A launch has
    two rows of channel `OUT`, and one of channel `DUPLEX`, whose source is the launch's first host.
    `in_round` marks launches of stage `pairs`, which run while nearly all hosts are busy.
    """

    source: Ints
    target: Ints
    channel: Ints
    rate: Floats
    launch: Ints
    batch: Ints
    in_round: Bools


@dataclass(frozen=True)
class Outcome:
    """How a launch of one or two hosts ended; `failure`: the kind of failure, None if it finished.

    `own` has the hosts whose own process failed. The engine stopped the other hosts.
    """

    observation: Observation
    hosts: tuple[int, ...]
    failure: State | None
    own: frozenset[int] = frozenset()


class Evidence:
    """All observations of a campaign, sorted by launch number.

    Hosts are numbered in the order of their names, so that results do not depend on the order in
    which they were given.
    """

    def __init__(self, cluster: Cluster, limits: Limits, observations: Sequence[Observation]):
        self.limits = limits
        self.hosts = tuple(sorted(set(cluster.hosts)))
        self.index = {host: n for n, host in enumerate(self.hosts)}
        self.racks = _racks(cluster.racks, self.hosts)
        self.observations = observations
        small = [o for o in observations if o.launch.stage != Stage.TOGETHER]
        self.outcomes = [self._outcome(o) for o in small]
        #: The launches of single hosts, of two hosts, and of more.
        self.alone = [o for o in self.outcomes if len(o.hosts) == 1]
        self.pairs = [o for o in self.outcomes if len(o.hosts) == 2]
        self.together = [o for o in observations if o.launch.stage is Stage.TOGETHER]
        self.flows = self._flows(self.pairs)
        self.batches = observations[-1].launch.batch + 1 if observations else 0
        self.used = observations[-1].launch.number + 1 if observations else 0

    def late(self) -> frozenset[int]:
        """Hosts whose quickest launch took notably longer than that of the median host."""
        quickest: dict[int, float] = {}
        for one in self.pairs:
            for host in one.hosts:
                seconds = one.observation.seconds
                quickest[host] = min(seconds, quickest.get(host, seconds))
        usual = _LATE * median(quickest.values()) if quickest else 0.0
        return frozenset(host for host, seconds in quickest.items() if seconds > usual)

    def _outcome(self, one: Observation) -> Outcome:
        hosts = tuple([self.index[name] for name in one.launch.hosts])
        if all(r.ending is Ending.FINISHED and not r.wrong for r in one.reports):
            return Outcome(one, hosts, None if len(one.reports) == len(hosts) else State.HANGS)
        own = {self.index[r.host]: r.ending for r in one.reports if r.ending in STATES}
        if own:
            endings = set(own.values())
            first = next(e for e in STATES if e in endings)
            return Outcome(one, hosts, STATES[first], frozenset(own))
        if any(report.wrong for report in one.reports):
            wrong = frozenset(self.index[r.host] for r in one.reports if r.wrong)
            return Outcome(one, hosts, State.WRONG, wrong)
        return Outcome(one, hosts, State.HANGS)

    def _flows(self, pairs: Sequence[Outcome]) -> Flows:
        rows: list[tuple[int, int, int, float, int, int, bool]] = []
        for one in pairs:
            rates, launch = one.observation.rates, one.observation.launch
            a, b = one.hosts
            in_round = launch.stage is Stage.PAIRS
            for measure, source, target, channel in (
                (FORWARD, a, b, OUT),
                (BACKWARD, b, a, OUT),
                (BOTH, a, b, DUPLEX),
            ):
                if values := rates.get(measure):
                    rate = log(max(median(values), 1e-300))
                    row = (source, target, channel, rate, launch.number, launch.batch, in_round)
                    rows.append(row)
        table = np.array(rows, dtype=float).reshape(-1, 7)
        source, target, channel, _, number, batch, rounds = table.T.astype(np.int64)
        return Flows(source, target, channel, table[:, 3], number, batch, rounds == 1)


def _racks(racks: Mapping[str, str], hosts: Sequence[str]) -> Ints | None:
    """The number of each host's rack; None unless the racks of all hosts are known."""
    if not racks or any(host not in racks for host in hosts):
        return None
    names = {name: n for n, name in enumerate(sorted({racks[host] for host in hosts}))}
    return np.array([names[racks[host]] for host in hosts], dtype=np.int64)
