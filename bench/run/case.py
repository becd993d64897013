"""What a row runs: the collective, its schedule, type, operation and elements."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from collectives.execution.transport import OneSidedAccess
from collectives.schedule.layout import Elements, Layout
from collectives.schedule.ops import Op
from collectives.schedule.schedule import Schedule
from collectives.schedule.spec import Collective


@dataclass(frozen=True)
class Case:
    """A case: ``schedule`` is None for the library's own collective and for work sharing.

    ``reach``: see `bench.run.contenders.Contender`. ``nonblocking``: the library's in that form.
    """

    spec: Collective
    schedule: Schedule | None
    dtype: np.dtype[Any]
    op: Op | None
    elements: Elements
    root: int
    worksharing: bool = False
    reach: OneSidedAccess | None = None
    nonblocking: bool = False

    def layout(self, nranks: int) -> Layout:
        """Where parts lie on so many ranks."""
        if self.schedule is not None:
            return Layout.of(self.schedule, self.spec, self.root)
        return Layout(self.spec, nranks, self.spec.parts(nranks), self.root)

    def fitting(self, nranks: int, need: int, free: int) -> int:
        """The largest power of two of bytes that would fit, by proportion."""
        size = self.spec.total(nranks) * int(np.max(self.elements)) * self.dtype.itemsize
        bound = max(1, size * free // need)
        return 1 << (int(bound).bit_length() - 1)
