"""The chosen algorithms, built for this run's ranks and proven once."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from bench.options.options import BESIDE, NONBLOCKING, Choice, Options, RunOptions, parse_choice
from bench.run.tuning_file import load, lookup
from bench.run.work import check, roots
from busbar.errors import ScheduleError, Unsupported
from collectives.execution.registry import auto_order
from collectives.execution.transport import OneSidedAccess
from collectives.execution.world import World
from collectives.formats.load import build, parameters
from collectives.schedule.catalogue import spec
from collectives.schedule.cost import traffic
from collectives.schedule.digest import digest
from collectives.schedule.layout import Elements
from collectives.schedule.schedule import Schedule
from collectives.schedule.spec import Collective
from collectives.schedule.verify import verify


class RankSetup(NamedTuple):
    """The ranks that algorithms are chosen for, and the transport between them.

    ``missing``: which of `BESIDE` there is not here, and why. ``oversubscribed``: whether the ranks
    share cores, None where that is not known or of no matter.
    """

    nranks: int
    transport: str
    missing: Mapping[str, str] = MappingProxyType({})
    oversubscribed: bool | None = None


class Contender:
    """An algorithm for so many ranks, with a schedule a root; `prove` says whether it may run.

    ``holds``: how many of what a row times one iteration carries out. ``reach``: how ranks reach
    into each other's memory, where no messages are sent.

    Raises Unsupported where the algorithm cannot serve the ranks.
    """

    holds: int = 1
    reach: OneSidedAccess | None = None

    def __init__(self, spec: Collective, options: RunOptions, choice: Choice, nranks: int) -> None:
        self.label, self._name = choice.label, choice.name
        self._spec, self._nranks = spec, nranks
        self._schedules: dict[int, Schedule] = {}
        self._digests: dict[int, str] = {}
        self._traffic: dict[tuple[bytes, int, int], tuple[int, int]] = {}
        self.parameters: dict[str, Any] = dict(choice.parameters)
        if not self.scheduled:
            return
        if options.grid is not None and "grid" in parameters(spec.name, choice.name):
            self.parameters.setdefault("grid", options.grid)
        for root in roots(spec, options, nranks):
            self.schedule(root)

    @property
    def library(self) -> bool:
        """Whether it is the library's own collective, which has no schedule."""
        return self._name in ("library", NONBLOCKING)

    @property
    def nonblocking(self) -> bool:
        """Whether that is in its non-blocking form."""
        return self._name == NONBLOCKING

    @property
    def scheduled(self) -> bool:
        """Whether it is a schedule that ranks carry out."""
        return self._name not in (*BESIDE, NONBLOCKING)

    def at(self, nbytes: int) -> Contender:
        """The algorithm for a size: itself."""
        return self

    def schedule(self, root: int) -> Schedule | None:
        """The placed schedule for a root, or None where there is none."""
        if not self.scheduled:
            return None
        if root not in self._schedules:
            schedule = build(
                self._spec.name, self._name, self._nranks, root=root, **self.parameters
            )
            self._schedules[root] = schedule
        return self._schedules[root]

    def prove(self) -> None:
        """Prove every schedule in and out of place. Raises ScheduleError."""
        for root, schedule in self._schedules.items():
            for in_place in (False, True)[: 1 + self._spec.in_place]:
                verify(schedule, self._spec, root=root, in_place=in_place)

    def digests(self) -> list[str]:
        """The hashes of all schedules, root by root."""
        return [self.digest(root) for root in self._schedules]

    def digest(self, root: int) -> str:
        """The hash of the schedule for a root; empty where there is none."""
        schedule = self.schedule(root)
        if schedule is None:
            return ""
        if root not in self._digests:
            self._digests[root] = digest(schedule)
        return self._digests[root]

    def traffic(self, elements: Elements, itemsize: int, root: int) -> tuple[int, int]:
        """Bytes out and in of the busiest rank, by the schedule's own count."""
        schedule = self.schedule(root)
        assert schedule is not None, f"{self.label} has no schedule to count"
        key = np.asarray(elements).tobytes(), itemsize, root
        if key not in self._traffic:
            sent, received = traffic(schedule, self._spec, elements, itemsize, root)
            self._traffic[key] = int(sent.max()), int(received.max())
        return self._traffic[key]


class SizeDependentContender:
    """One contender that is another algorithm from some sizes on; see `Contender` for its methods.

    ``ranges``: the least size of each in rising order. Sizes below all belong to the first.
    ``every``: the algorithms, each once.
    """

    library = False

    def __init__(self, label: str, ranges: Sequence[tuple[int, Contender]]) -> None:
        self.label, self._lows = label, [low for low, _ in ranges]
        self._made = [chosen for _, chosen in ranges]
        self.every = list(dict.fromkeys(self._made))

    def at(self, nbytes: int) -> Contender:
        """The algorithm for a size."""
        return self._made[max(0, bisect_right(self._lows, nbytes) - 1)]

    def prove(self) -> None:
        """Prove every schedule of every size."""
        for one in self.every:
            one.prove()

    def digests(self) -> list[str]:
        """The hashes of all schedules, size by size."""
        return [text for one in self._made for text in one.digests()]


def auto(spec: Collective, options: RunOptions, ranks: RankSetup) -> SizeDependentContender:
    """``-A auto``: at each size what a tuning file says for these ranks and this transport.

    Raises Unsupported where the file cannot be read, or has no rules for them.
    """
    path, nranks = options.tuning, ranks.nranks
    # A dry run does not know yet which of these ``auto`` will take.
    transports = [ranks.transport]
    if ranks.transport == "auto":
        transports = [one.name for one in auto_order("mpi", on_gpu=False)]
    rules = lookup(load(path), path, spec.name, nranks, transports, ranks.oversubscribed)
    contenders = {
        choice: Contender(spec, options, parse_choice(choice.algorithm), nranks)
        for choice in {one.choice for one in rules.ranges}
    }
    return SizeDependentContender(
        "auto", [(one.low, contenders[one.choice]) for one in rules.ranges]
    )


class Job(NamedTuple):
    """One collective's sweep: what, how, with which algorithms, and what was left out."""

    spec: Collective
    options: Options
    chosen: Sequence[Contender | SizeDependentContender]
    notes: list[str]


def jobs(wanted: Sequence[Options], ranks: RankSetup) -> list[Job]:
    """The sweeps to run on these ranks, with a note for each that cannot be.

    An algorithm asked for by name that cannot serve the ranks raises Unsupported; with ``-A all``,
    or one of several collectives, it is left out with a note.
    """
    sweeps: list[Job] = []
    refused: list[str] = []
    for options in wanted:
        one = spec(options.collective)
        try:
            notes = check(one, options, ranks.nranks)
            chosen, left_out = _choose(one, options, ranks)
        except Unsupported as error:
            if len(wanted) == 1:
                raise
            refused.append(f"left out: {options.collective}: {error}")
            continue
        sweeps.append(Job(one, options, chosen, [*notes, *left_out]))
    if not sweeps:
        raise Unsupported(refused[0])
    sweeps[0].notes.extend(refused)
    return sweeps


def prove(todo: Sequence[Job], world: World) -> None:
    """Prove every schedule once: rank 0 does, the others' are the same by their hashes.

    All ranks call this together. Raises Unsupported on all of them for a schedule that is wrong,
    and where ranks have different ones, as of a file that differs from host to host.
    """
    chosen = [one for job in todo for one in job.chosen]
    fault = ""
    if world.rank == 0:
        try:
            for one in chosen:
                one.prove()
        except ScheduleError as error:
            fault = str(error)
    mine = [text for one in chosen for text in one.digests()]
    fault, wanted = world.broadcast([fault, mine])
    if fault:
        raise Unsupported(f"a schedule is wrong: {fault}")
    same = world.gather(mine == wanted)
    if not all(same):
        raise Unsupported(
            f"rank {same.index(False)} has another schedule than rank 0, which was proven; give all"
            " hosts the same Busbar and the same files"
        )


def _choose(
    spec: Collective, options: Options, ranks: RankSetup
) -> tuple[list[Contender | SizeDependentContender], list[str]]:
    """What runs, and a note for each that cannot."""
    contenders: list[Contender | SizeDependentContender] = []
    reasons: list[str] = []
    for choice in options.algorithms:
        if choice.name in ranks.missing:
            reasons.append(f"{choice.name}, {ranks.missing[choice.name]}")
            continue
        if choice.name == "auto":
            contenders.append(auto(spec, options, ranks))
            continue
        try:
            contenders.append(Contender(spec, options, choice, ranks.nranks))
        except Unsupported as error:
            if not options.every_algorithm:
                raise
            reasons.append(str(error))
    if not contenders:
        raise Unsupported(reasons[0])
    return contenders, [f"left out: {reason}" for reason in reasons]
