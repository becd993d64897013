"""Predictions for a measured row, by its collective, algorithm, ranks, size, type and root."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np

from busbar.errors import BusbarError
from collectives.formats.load import draft, from_file
from collectives.predict.compare import least
from collectives.predict.fit import Fit
from collectives.predict.maps import priced_by_fit
from collectives.predict.ports import seconds
from collectives.schedule.catalogue import collectives, parse, spec
from collectives.schedule.dtypes import dtype
from collectives.schedule.schedule import Schedule

_NONE = ("", "library")


class Predictor:
    """The predictions of one fit; schedules and machines are made once."""

    def __init__(self, fit: Fit) -> None:
        self.fit = fit
        #: The machine with costs for so many ranks, and lines that say where those are from.
        self.machine = cache(lambda nranks: priced_by_fit(fit.for_ranks(nranks), nranks))
        self._schedule = cache(_draft)

    def seconds(
        self,
        collective: str,
        algorithm: str,
        nranks: int,
        sizes: Sequence[int],
        *,
        dtype: str = "float",
        root: int = 0,
        in_place: bool = False,
    ) -> list[float | None]:
        """Seconds at each size; None where there is no schedule of that name for these ranks.

        ``algorithm`` is a row's label, perhaps with parameters as in ``chain:segments=4``. A file's
        schedule (``x.xml``) is not looked for.
        """
        schedule = self._schedule(collective, algorithm, nranks, root)
        if schedule is None:
            return [None] * len(sizes)
        priced = self.machine(nranks)[0]
        found = seconds(
            schedule,
            spec(collective),
            priced,
            sizes,
            itemsize=_itemsize(dtype),
            root=root,
            in_place=in_place,
        )
        return [float(one) for one in found]

    def bound(self, collective: str, nranks: int | None, size: int | None) -> float | None:
        """Seconds that no algorithm can beat on these links; None where no bound is known."""
        if collective not in collectives() or not nranks or nranks < 2 or not size:
            return None
        found = least(collective, nranks, self.machine(nranks)[0], [size])
        return None if found is None else float(found[0])


def _draft(collective: str, label: str, nranks: int, root: int) -> Schedule | None:
    if label in _NONE or from_file(label):
        return None
    try:
        name, given = parse(label)
        given.pop("root", None)
        return draft(collective, name, nranks, root=root, **given)
    except BusbarError:
        return None


def _itemsize(name: str) -> int:
    try:
        return int(np.dtype(dtype(name)).itemsize)
    except BusbarError:
        return 4
