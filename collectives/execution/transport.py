"""The interface of the data plane: what a transport offers, and all that plans use of it.

What every transport must do is abstract. What it may do has a default that says no. No caller uses
`getattr` on a transport or an action.
"""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from busbar.errors import Unsupported
from collectives.execution.program import Program
from collectives.execution.roofline import Roofline
from collectives.execution.world import Json, World
from collectives.schedule.layout import Elements
from collectives.schedule.moves import Buffer
from collectives.schedule.ops import Op
from collectives.schedule.spec import Collective

Array = NDArray[Any]
Floats = NDArray[np.float64]
Buffers = Mapping[Buffer, Array]
_NOTHING: Mapping[str, Json] = MappingProxyType({})


def unwatched(iteration: int) -> None:
    """Ignore the number of an iteration: nobody watches the progress."""


class Start(NamedTuple):
    """How iterations begin; `bench.timing` makes one for every batch.

    ``barrier`` returns when every rank has called it. ``at``: the time of ``clock`` at which each
    iteration begins; empty: each begins behind a barrier. ``loop``: the iterations run back to
    back and are timed as one. ``every``: whether iterations that are timed from Python have a
    barrier each, or only the first. ``slower``: lengthen what is timed by this share of itself,
    for checks of comparisons. ``arrived``: called with the number of each iteration that is timed
    from Python, before it waits.
    """

    barrier: Callable[[], None]
    at: Sequence[float] = ()
    loop: bool = False
    every: bool = True
    slower: float = 0.0
    arrived: Callable[[int], object] = unwatched
    clock: Callable[[], float] = time.perf_counter

    @property
    def by_host_clock(self) -> bool:
        """Whether ``clock`` is the one that C++ reads too, and not an emulated one."""
        return self.clock is time.perf_counter


class Spans(NamedTuple):
    """When iterations began and ended, in seconds of `Start.clock`; one of each for a loop.

    ``absolute``: False where only the differences ``ends - begins`` mean anything.
    """

    begins: Floats
    ends: Floats
    absolute: bool = True

    @property
    def seconds(self) -> Floats:
        """How long each iteration took, or all iterations of a loop."""
        return self.ends - self.begins


class TracedMessage(NamedTuple):
    """A message of one rank: ``way`` is to or from a peer, ``step`` of the schedule.

    ``start`` and ``end`` by ``time.perf_counter``: a send ends when its memory may be used again,
    a receive begins when the rank is ready for it.
    """

    way: str
    peer: int
    nbytes: int
    step: int
    start: float
    end: float


Tell = Callable[[TracedMessage], None]


@dataclass(frozen=True)
class LibraryCall:
    """A library's own collective: what, between which buffers, by which operation.

    ``buffers``: arrays of the transport's memory. ``elements`` of each part, as in `Layout`.
    ``in_place``: ``in`` and ``out`` share memory as the specification says. ``nonblocking``: in
    the form that is begun and waited for (`Transport.has_nonblocking`).
    """

    spec: Collective
    buffers: Mapping[Buffer, Any]
    op: Op | None
    elements: Elements
    root: int = 0
    in_place: bool = False
    nonblocking: bool = False


@dataclass(frozen=True)
class OneSidedAccess:
    """One rank reaches into another's memory: ``way`` is put or get, ``times`` in a row."""

    way: str
    times: int = 1


class Action(ABC):
    """A prepared operation that is run many times, and counts the bytes that it moves."""

    divides: bool = False
    """Whether the transport divides an average itself, on a GPU say."""

    one_by_one: bool = False
    """Whether `between` does something, for which a window of time has no room."""

    @abstractmethod
    def __call__(self) -> None:
        """Carry the operation out once; returns when this rank's part is complete."""

    def between(self) -> None:
        """Do what follows an iteration, outside the clock: nothing by default."""
        return

    @property
    @abstractmethod
    def sent(self) -> int:
        """Bytes that this rank has sent to other ranks so far, as the transport bound them."""

    @property
    @abstractmethod
    def received(self) -> int:
        """Bytes that this rank has received so far."""

    def spans(self, n: int, start: Start) -> Spans:
        """Run n iterations and time them. All ranks call this together.

        Transports that time their own iterations override this: the extension's plans run without
        the interpreter, and GPUs are timed by events. An override calls this method where it
        cannot begin iterations as ``start`` says.
        """
        return spans_from_python(self, n, start)

    def traced(self, tell: Tell) -> None:
        """Run once and call ``tell`` with each message, where messages can be seen."""
        self()

    def over(self, work: Callable[[], None]) -> None:
        """Begin the operation, do the work, and wait for its end: one iteration.

        Raises Unsupported where it cannot be begun without being ended.
        """
        raise Unsupported("this operation has no non-blocking form")

    def begun(self) -> int:
        """The iterations that have begun so far, also those inside `spans`.

        The watchdog's thread reads it while they run. 0 where the transport does not count them.
        """
        return 0

    def waiting(self) -> int | None:
        """The rank whose message this rank waits for; None: for none, or it cannot be told.

        Another thread, the watchdog's, asks.
        """
        return None

    @abstractmethod
    def close(self) -> None:
        """Free the memory and the handles; the action is not run again."""


def spans_from_python(action: Action, n: int, start: Start) -> Spans:
    """Run an action n times and time it here; see `Action.spans`.

    Nothing but the action runs between two readings of the clock.
    """
    read = start.clock
    count = 1 if start.loop else n
    begins, ends = np.empty(count), np.empty(count)
    for i in range(count):
        start.arrived(i)
        if start.at:
            while read() < start.at[i]:
                os.sched_yield()  # to whoever shares the core
        elif start.every or not i:
            start.barrier()
        if start.loop:
            begin = read()
            for _ in range(n):
                action()
            end = read()
        else:
            begin = read()
            action()
            end = read()
        if start.slower:
            later = end + start.slower * (end - begin)
            while end < later:
                end = read()
        begins[i], ends[i] = begin, end
        if not start.loop:
            action.between()
    return Spans(begins, ends)


class Wrapper(Action):
    """An action around another one, which counts the bytes and iterations and is closed with it."""

    action: Action

    @property
    def sent(self) -> int:
        """See `Action.sent`."""
        return self.action.sent

    @property
    def received(self) -> int:
        """See `Action.received`."""
        return self.action.received

    def begun(self) -> int:
        """See `Action.begun`."""
        return self.action.begun()

    def waiting(self) -> int | None:
        """See `Action.waiting`."""
        return self.action.waiting()

    def close(self) -> None:
        """See `Action.close`."""
        self.action.close()


class Counted(Action):
    """An action that sends and receives the same bytes in every iteration.

    A subclass adds its iterations to ``_runs``.
    """

    def __init__(self, sent: int, received: int) -> None:
        self._runs, self._per_iteration = 0, (sent, received)

    @property
    def sent(self) -> int:
        """See `Action.sent`."""
        return self._runs * self._per_iteration[0]

    @property
    def received(self) -> int:
        """See `Action.received`."""
        return self._runs * self._per_iteration[1]

    def begun(self) -> int:
        """See `Action.begun`."""
        return self._runs


class CallList(Counted):
    """Calls without arguments, carried out in turn; ``held`` is kept alive until `close`."""

    def __init__(
        self, calls: Sequence[Callable[[], Any]], sent: int, received: int, held: object = None
    ) -> None:
        super().__init__(sent, received)
        self._calls, self._held = list(calls), held

    def __call__(self) -> None:
        """See `Action.__call__`."""
        self._runs += 1
        for call in self._calls:
            call()

    def close(self) -> None:
        """See `Action.close`."""
        self._calls, self._held = [], None


class Transport(ABC):
    """How bytes travel between ranks. All ranks make one together."""

    name: str
    """The name that ``--transport`` knows."""
    shares_memory: bool = False
    """Whether every rank maps the memory of all, so that there is `worksharing`."""
    has_library: bool = False
    """Whether `library` is implemented."""
    library_executor: str | None = None
    """What calls the library: ``native``, the extension, or ``python``."""
    has_nonblocking: bool = False
    """Whether `library` also has the non-blocking forms."""
    average_ulps: int = 0
    """By how many units in the last place the library's averages of floats may be off."""
    device_uuid: str | None = None
    """This rank's GPU as NVML writes it (``GPU-…``), where the transport moves a GPU's memory."""
    device_busid: str | None = None
    """Its PCI address (``0000:1b:00.0``)."""
    device_index: int | None = None
    """Its number in this process."""
    device_name: str | None = None
    """The GPU's product name."""
    facts: Mapping[str, Json] = _NOTHING
    """Facts of the transport for records: library versions, choices."""
    action_facts: Mapping[str, Json] = _NOTHING
    """Facts of the last action for its records, such as the algorithm that a library chose."""
    remarks: Sequence[str] = ()
    """Lines for the table."""

    @property
    def on_gpu(self) -> bool:
        """Whether it moves the memory of GPUs."""
        return (self.device_uuid or self.device_busid) is not None

    @property
    def library_version(self) -> str:
        """The library whose collectives `library` gives; empty where that is the world's MPI."""
        return ""

    @abstractmethod
    def allocate(self, nbytes: int) -> NDArray[np.uint8]:
        """Allocate memory that this transport is fastest on."""

    def staging(self, program: Program, itemsize: int) -> int:
        """Bytes that preparing the program takes beside its buffers.

        Late messages are put aside: at most those of the step that has most of them.
        """
        return program.late() * itemsize

    @abstractmethod
    def prepare(self, program: Program, buffers: Buffers, op: Op | None) -> Action:
        """Bind one rank's program to its buffers; it is bound once and run often."""

    def library(self, call: LibraryCall) -> Action:
        """Bind the library's own collective, the baseline. Raises Unsupported without one."""
        raise Unsupported(
            f"the {self.name} transport has no library collective to compare with; MPI's is had"
            " through the mpi transport, NCCL's through the nccl transport"
        )

    def worksharing(self, call: LibraryCall) -> Action:
        """Bind the collective with its work shared among all processes, whichever rank's it is.

        No schedule is carried out: this is the best that the ranks' common memory allows. Raises
        Unsupported where ranks have no memory in common.
        """
        raise Unsupported(
            f"worksharing needs memory that all ranks share, and --transport {self.name} has none;"
            " use --transport shm"
        )

    def one_sided(self, program: Program, buffers: Buffers, how: OneSidedAccess) -> Action:
        """Bind a program of one step of plain messages, carried out by one end of each.

        The sender writes into the receiver's memory (put), or the receiver reads the sender's
        (get), ``how.times`` times an iteration; the other end takes no part. All ranks call this
        together. Raises Unsupported where no rank reaches another's memory.
        """
        raise Unsupported(
            f"--transport {self.name} has no {how.way}: no rank reaches another's memory; use"
            " --transport mpi or shm"
        )

    def roofline(self, source: Array, target: Array, n: int = 5) -> Roofline | None:
        """The rates of this memory, from n sweeps of each kind; None where they are not known.

        ``target`` loses its content. Raises Unsupported with the reason where it is missing here.
        """
        return None

    def copy_rate(self, nbytes: int, n: int) -> float | None:
        """Bytes per second of the best of n copies inside this rank's device; None without one.

        All ranks call this together, and copy at once.
        """
        return None

    def room(self) -> tuple[str, int] | None:
        """The name and the free bytes of the memory it allocates from; None for the host's."""
        return None

    def rotation(self, nbytes: int) -> int:
        """Bytes of the further sets of buffers that take turns with buffers of so many bytes."""
        return 0

    def trim(self) -> None:
        """Free memory that nothing uses any more. All ranks call this together."""
        return

    def split(self, group: World) -> Transport | None:
        """A transport for the ranks of a group, whose world is given; None: make one anew."""
        return None

    def give_up(self) -> None:
        """End the waits of this rank, which has failed, and let the others know."""
        return

    def close(self) -> None:
        """Free what the transport holds.

        All ranks call this, and none uses another's memory then.
        """
        return
