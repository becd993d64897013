"""The data plane's narrow waist: what a transport offers, and all that plans ask of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from busbar.errors import Unsupported
from collectives.execution.program import Program
from collectives.schedule.layout import Elements
from collectives.schedule.moves import Buffer
from collectives.schedule.ops import Op
from collectives.schedule.spec import Collective

__all__ = ["Action", "Array", "Buffers", "Counted", "LibraryCall", "Transport"]

Array = NDArray[Any]
Buffers = Mapping[Buffer, Array]


@dataclass(frozen=True)
class LibraryCall:
    """A library's own collective: what, between which buffers, by which operation.

    ``buffers``: arrays of the transport's memory. ``elements`` of each part, as in `Layout`.
    ``in_place``: ``in`` and ``out`` share memory as the specification says.
    """

    spec: Collective
    buffers: Mapping[Buffer, Any]
    op: Op | None
    elements: Elements
    root: int = 0
    in_place: bool = False


class Action(Protocol):
    """Something prepared that fires again and again, and counts what it moves."""

    def __call__(self) -> None:
        """Carry the operation out once; returns when this rank's part is complete."""
        ...

    @property
    def sent(self) -> int:
        """Bytes that this rank has sent to other ranks so far, as the transport bound them."""
        ...

    @property
    def received(self) -> int:
        """Bytes that this rank has received so far."""
        ...

    def close(self) -> None:
        """Free what was taken; firing is over."""
        ...


class Counted:
    """For an action that sends and receives the same with every firing: so many bytes, times firings.

    Whoever fires adds to ``_fired``; see `Action.sent` and `Action.received`.
    """

    def __init__(self, sent: int, received: int) -> None:
        self._fired, self._per_firing = 0, (sent, received)

    @property
    def sent(self) -> int:
        """See `Action.sent`."""
        return self._fired * self._per_firing[0]

    @property
    def received(self) -> int:
        """See `Action.received`."""
        return self._fired * self._per_firing[1]


class Transport(Protocol):
    """How bytes travel between ranks.

    A transport may offer more, which callers look for by name: an action's ``times`` (see
    `collectives.execution.plan.Plan.times`) and ``divides`` (it carries an average's division out itself);
    ``split(world)``, a transport for a group of its ranks; ``room()``, the name and the free bytes
    of the memory that it allocates from, where that is not the host's; ``trim()``, called by all ranks together to give
    back memory that nothing uses any more, where it does not go by itself; ``rotation(nbytes)``, bytes
    of further sets of buffers; ``give_up()``, called when a rank fails, so that none hangs;
    ``said``, what its library said of the last action; ``remarks``, lines for the table;
    ``average_ulps``, by how much its library's averages of floats may be off; and what
    `bench.run.environment.OnGpu` lists.
    """

    shares_memory: bool = False
    """Whether every rank maps the memory of all, so that there is `worksharing`."""

    @property
    def name(self) -> str:
        """The name that ``--transport`` knows."""
        ...

    def allocate(self, nbytes: int) -> NDArray[np.uint8]:
        """Memory that this transport is fastest on."""
        ...

    def staging(self, program: Program, itemsize: int) -> int:
        """Bytes that preparing the program would take beside its buffers."""
        ...

    def prepare(self, program: Program, buffers: Buffers, op: Op | None) -> Action:
        """One rank's program bound to its buffers; built once, fired often."""
        ...

    def library(self, call: LibraryCall) -> Action:
        """The library's own collective, the baseline. Raises Unsupported where there is none."""
        ...

    def worksharing(self, call: LibraryCall) -> Action:
        """The collective with its work shared among all ranks' processes, whatever rank it belongs to.

        No schedule is carried out: this is the best that the ranks' common memory allows. Raises
        Unsupported where ranks have no memory in common.
        """
        raise Unsupported(
            f"worksharing needs memory that all ranks share, and --transport {self.name} has none;"
            " use --transport shm"
        )

    def clock(self) -> Callable[[], float]:
        """A function that gives seconds."""
        ...

    def close(self) -> None:
        """Free what the transport holds."""
        ...
