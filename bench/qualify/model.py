"""The data types of a qualification: a cluster, launches, observations, and verdicts.

Pure data without input or output. `decide` turns observations into the next launches and verdicts;
an engine runs the launches, on a real cluster or in a simulation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

#: One direction of a pair: from its first host to its second, the other way, and both at once.
FORWARD, BACKWARD, BOTH = "forward", "backward", "both"
#: Directions at once of a pair's measures. Observations have the rate of each direction; for people
#: and in records a rate of both is the sum.
WAYS = {FORWARD: 1, BACKWARD: 1, BOTH: 2}
#: The measure of a launch over more than two hosts: algorithm bandwidth of an all-reduce.
ALLREDUCE = "allreduce"
#: The measure of a host alone: the rate at which its ranks copy memory.
MEMORY = "memory"
#: All measures that may have a threshold.
MEASURES = (MEMORY, ALLREDUCE, FORWARD, BACKWARD, BOTH)

#: Facts of a host's hardware. Hosts that have them in common are of one kind, and a host is
#: compared with its kind. All other facts are software, which all hosts should have in common.
HARDWARE = frozenset({"cpu", "cores", "topology", "gpus"})


class Stage(str, Enum):
    """The purpose of a launch, in the order in which the stages run."""

    ALONE = "alone"
    PAIRS = "pairs"
    CONFIRM = "confirm"
    TOGETHER = "together"


class Ending(str, Enum):
    """How a launch ended on one of its hosts."""

    FINISHED = "finished"
    UNREACHABLE = "unreachable"
    CRASHED = "crashed"
    HUNG = "hung"
    #: Ended by the engine because another host of the launch crashed, hung or was unreachable.
    STOPPED = "stopped"


class State(str, Enum):
    """The judgement in a verdict."""

    GOOD = "good"
    SLOW = "slow"
    UNREACHABLE = "unreachable"
    HANGS = "hangs"
    CRASHES = "crashes"
    WRONG = "wrong"
    DIFFERENT = "different"
    CANNOT_TELL = "cannot tell"


@dataclass(frozen=True)
class Cluster:
    """The hosts to qualify, and their racks if known.

    `racks` maps a host to the name of its rack; it is empty if the racks are not given.
    """

    hosts: tuple[str, ...]
    racks: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Limits:
    """Thresholds and budgets of a qualification.

    A subject is slow if its rate is below `slow` times the median of comparable subjects.
    `false_alarm` is the probability, for a whole campaign, that a healthy host is called bad.
    `minimum` maps a measure (`memory`, `forward`, `allreduce`, ...) to the minimum rate in bytes
    per second, of `both` that of each direction, as in an observation. With up to `all_pairs` hosts
    every pair is measured, so that a single slow link is found.
    """

    slow: float = 0.95
    false_alarm: float = 0.001
    launches: int = 100_000
    seed: int = 1
    all_pairs: int = 32
    minimum: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Launch:
    """One launch: its hosts, in rank order, and its purpose.

    Launches of one batch have no host in common and may run at the same time. `number` counts
    launches over the whole campaign, `batch` the batches; both begin with 0.
    """

    number: int
    batch: int
    stage: Stage
    hosts: tuple[str, ...]


@dataclass(frozen=True)
class HostReport:
    """How a launch ended on one host, and what it measured on that host alone.

    `detail` is the last line of the standard error, or a text on what is missing; `status` the exit
    status as a shell has it, of a signal 128 more than its number; `wrong` the number of wrong
    elements in its results. `facts` are versions, clocks and links as text, and `rates` bytes per
    second by measure (`memory`, `allreduce`); both are filled in stage `alone` only, whose launches
    have one host each.
    """

    host: str
    ending: Ending
    detail: str = ""
    status: int | None = None
    wrong: int = 0
    facts: Mapping[str, str] = field(default_factory=dict)
    rates: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Observation:
    """The result of one launch.

    `rates` maps a measure to repeated rates in bytes per second: `forward`, `backward` and `both`
    (of each direction) for a pair, `allreduce` for more hosts; it is empty if the launch did not
    finish. `seconds` is the launch's duration.
    """

    launch: Launch
    reports: tuple[HostReport, ...]
    rates: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    seconds: float = 0.0


@dataclass(frozen=True)
class Verdict:
    """The judgement of one subject: a host, a link of two hosts, a rack's uplink, or a group.

    `kind` is "host", "link", "uplink" or "group". `subject` has one host, the two hosts of a link,
    or all hosts of the rack or group. Every host has one verdict. Links, uplinks and groups have
    one only if they are not good. `ratio` is the rate over the median of comparable subjects, with
    an interval from `low` to `high`; or, if `of_minimum`, the best rate over the minimum rate that
    was asked for, without interval. `launches` are the numbers of the launches that show it.
    `reason` is a clause such as "seen in 5 pairs" or "in stage pairs, in 2 of 2 launches".
    `failed`: launches in which a host failed that is good by all others, and which no other
    verdict explains.
    """

    kind: str
    subject: tuple[str, ...]
    state: State
    reason: str = ""
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    launches: tuple[int, ...] = ()
    of_minimum: bool = False
    failed: tuple[int, ...] = ()


@dataclass(frozen=True)
class Decision:
    """The next batch of launches, empty at the end, and the verdicts so far.

    `purpose` is a clause for people on the purpose of the batch.
    """

    launches: tuple[Launch, ...]
    verdicts: tuple[Verdict, ...]
    purpose: str = ""
