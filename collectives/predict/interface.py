"""The interface of all predictors, and the operations that they predict.

A predictor is made for one `Machine`. It says why it does not cover an operation, or predicts its
seconds at many sizes at once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np

from busbar.errors import BusbarError, Unsupported
from collectives.formats.load import draft, is_file
from collectives.predict.machine import Amounts, LinkCosts, Machine
from collectives.schedule.bounds import bound
from collectives.schedule.catalogue import parse, spec
from collectives.schedule.schedule import Schedule
from collectives.schedule.spec import Collective

#: The label of a library's own algorithm, for which there is no schedule.
LIBRARY = "library"
#: Bytes of an element if nothing else is said, as of a 32-bit float.
ITEM_BYTES = 4


@dataclass(frozen=True)
class Operation:
    """An algorithm of a collective on a number of ranks.

    ``algorithm`` is a row's label, perhaps with parameters as in ``chain:segments=4``.
    ``itemsize``: bytes of an element, as chunks are whole elements. ``built``: the schedule, where
    the caller has built it already.
    """

    collective: str
    algorithm: str
    ranks: int
    itemsize: int = ITEM_BYTES
    root: int = 0
    in_place: bool = False
    built: Schedule | None = None

    @classmethod
    def of(
        cls,
        schedule: Schedule,
        collective: str,
        *,
        itemsize: int = ITEM_BYTES,
        root: int = 0,
        in_place: bool = False,
    ) -> Operation:
        """The operation that a schedule implements."""
        return cls(collective, "", schedule.nranks, itemsize, root, in_place, schedule)

    @property
    def spec(self) -> Collective:
        """The specification of the collective."""
        return spec(self.collective)

    @cached_property
    def schedule(self) -> Schedule:
        """The schedule, built once. Raises Unsupported if the label names none.

        A label that is a file (``x.xml``) is refused, too.
        """
        if self.built is not None:
            return self.built
        if self.algorithm in ("", LIBRARY) or is_file(self.algorithm):
            raise Unsupported(f"{self.algorithm or 'no algorithm'} has no schedule of ours")
        name, parameters = parse(self.algorithm)
        parameters.pop("root", None)
        return draft(self.collective, name, self.ranks, root=self.root, **parameters)


class CollectivePredictor(ABC):
    """A predictor of collectives on one machine."""

    name: ClassVar[str]

    def __init__(self, machine: Machine) -> None:
        self.machine = machine

    @abstractmethod
    def refusal(self, operation: Operation) -> str:
        """Return why the operation is not covered, or "" if it is."""

    @abstractmethod
    def _seconds(self, operation: Operation, sizes: Sequence[int]) -> Amounts:
        """Predicted seconds of an operation that is covered, shape (sizes,)."""

    def seconds(self, operation: Operation, sizes: Sequence[int]) -> Amounts:
        """Predicted seconds at each size of the collective, shape (sizes,).

        ``sizes`` are those of the size column, in bytes. Parts of all-to-all-v count as equal.
        Raises Unsupported with `refusal` for an operation that is not covered.
        """
        reason = self.refusal(operation)
        if reason:
            raise Unsupported(reason)
        return self._seconds(operation, sizes)

    def one_port_bound(
        self, collective: str, ranks: int, sizes: Sequence[int], itemsize: int = ITEM_BYTES
    ) -> Amounts | None:
        """Least seconds with one port each way for each rank; None if no bound is known.

        The greater of ⌈lg P⌉ least latencies and the least volume through a port at the greatest
        rate (Chan et al. 2007), on the machine's best links and in their best case, without
        additions; 0 at sizes without a whole element of ``itemsize`` bytes to move. With a fit the
        best links are those of the best class, which has one curve for all of its pairs. Where a
        rank has several links that it uses at once, an algorithm may be faster (docs/model.md).
        """
        machine, bounds, what = self.machine, bound(collective, ranks), spec(collective)
        if bounds is None or machine.classes is None:
            return None
        used = [machine.costs[i] for i in machine.classes.between(ranks)]
        if not used:
            return np.full(len(sizes), machine.start)
        total = what.total(ranks)
        counts = [what.size(ranks, size, itemsize).elements for size in sizes]
        n = np.asarray([count * total * itemsize for count in counts], float)
        volume = max(bounds.out or 0.0, bounds.into or 0.0) * n
        # However the volume is cut into messages, no byte takes less time than in the best message.
        spread = np.geomspace(1.0, max(2.0, float(volume.max())), 400)
        grid = np.unique(np.concatenate([spread, np.maximum(1.0, volume)]))
        best = np.min([_best(link, grid) for link in used], axis=0)
        rate = np.minimum.accumulate(best / grid)[np.searchsorted(grid, volume, side="right") - 1]
        seconds = np.maximum(bounds.rounds * float(best[0]), volume * rate)
        return np.where(n > 0, seconds, 0.0)


def schedule_refusal(operation: Operation) -> str:
    """Return why an operation has no schedule to follow, or "" if it has one."""
    try:
        _ = operation.schedule
    except BusbarError as error:
        return str(error)
    return ""


def _best(link: LinkCosts, grid: Amounts) -> Amounts:
    """Seconds of a message of each size in the best case of pairs, other messages and caches."""
    flags = [np.full(len(grid), flag) for flag in (False, True)]
    kinds = [link.further(grid, both, fresh) for both in flags for fresh in flags]
    if link.least is not None:
        kinds.append(link.least(grid))
    return np.asarray(np.min(kinds, axis=0))
