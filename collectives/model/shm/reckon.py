"""Predicted time of a collective in shared memory, as eager messages or in passes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

from collectives.execution.shm.fast import EAGER_BYTES
from collectives.model.machine import PlacedRanks
from collectives.model.shm.draft import Drafts
from collectives.model.shm.eager import eager_seconds
from collectives.model.shm.passes import Passes
from collectives.model.shm.rates import Between, Rates
from collectives.schedule.schedule import Schedule
from collectives.schedule.spec import Collective

Key = tuple[int, int, bool]


class Host:
    """Ranks that share one memory: ``rates`` of each of the machine's classes of links.

    ``cores``: of each measured rank; further ranks go round them again, and without any every rank
    has a core of its own. Schedules are lowered once.
    """

    def __init__(self, machine: PlacedRanks, rates: Sequence[Rates], cores: Sequence[int]) -> None:
        self._machine, self._rates, self._cores = machine, rates, cores
        self._known: dict[Key, _Planned] = {}

    def seconds(
        self,
        schedule: Schedule,
        spec: Collective,
        sizes: Sequence[int],
        *,
        itemsize: int,
        root: int = 0,
        in_place: bool = False,
    ) -> NDArray[np.float64]:
        """Predicted seconds at each size of the collective, without the start; parts are equal."""
        key = id(schedule), root, in_place
        if key not in self._known:
            self._known[key] = _Planned(schedule, spec, root, in_place, self)
        planned, n = self._known[key], schedule.nranks
        each = [spec.size(n, size, itemsize).elements for size in sizes]
        return np.array([planned.seconds(elements, itemsize) for elements in each])

    def core(self, rank: int) -> int:
        """The core of a rank."""
        return self._cores[rank % len(self._cores)] if self._cores else rank

    def between(self, cores: Sequence[int]) -> Between:
        """The rates between the cores of ranks; within a core those of the nearest class."""
        first: dict[int, int] = {}
        for rank, core in enumerate(cores):
            first.setdefault(core, rank)
        ranks = np.array(list(first.values()))
        table = self._machine.links(ranks[:, None], ranks[None, :])
        apart = table[~np.eye(len(ranks), dtype=bool)]
        near = int(apart.min()) if apart.size else 0
        return {
            a: {b: self._rates[near if a == b else int(table[i, j])] for j, b in enumerate(first)}
            for i, a in enumerate(first)
        }


class _Planned:
    """One schedule on a host; a reference to it keeps its identity unique."""

    def __init__(
        self, schedule: Schedule, spec: Collective, root: int, in_place: bool, host: Host
    ) -> None:
        self.schedule = schedule
        self._drafts = Drafts(schedule, spec, root, in_place)
        self._cores = [host.core(rank) for rank in range(schedule.nranks)]
        self._between = host.between(self._cores)
        self._passes = cache(lambda draft: Passes(draft, self._cores, self._between))

    def seconds(self, elements: int, itemsize: int) -> float:
        """Seconds where a part has so many elements."""
        draft, each = self._drafts.of(elements)
        scale = each * itemsize
        if draft.most_sent * scale <= EAGER_BYTES:
            return eager_seconds(draft, scale, self._cores, self._between)
        return self._passes(draft).seconds(scale)
