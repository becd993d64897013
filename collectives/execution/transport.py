"""The interface of the data plane: transports, and the actions that they prepare.

Methods that every transport must have are abstract. Optional ones have a default that says no. No
caller uses `getattr` on a transport or an action.
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
from collectives.execution.world import Json, World
from collectives.schedule.layout import Elements
from collectives.schedule.moves import Buffer
from collectives.schedule.ops import Op
from collectives.schedule.spec import Collective

Array = NDArray[Any]
Floats = NDArray[np.float64]
Buffers = Mapping[Buffer, Array]
_NOTHING: Mapping[str, Json] = MappingProxyType({})
_PAGE_BYTES = 4096


def host_memory(nbytes: int, offset: int = 0) -> NDArray[np.uint8]:
    """Memory of this process that begins ``offset`` bytes after the start of a page.

    C benchmarks align their buffers to pages. NumPy aligns to 16 bytes, so that vector loads cross
    cache lines.
    """
    room = np.empty(nbytes + _PAGE_BYTES, np.uint8)
    start = (offset - room.ctypes.data) % _PAGE_BYTES
    return room[start : start + nbytes]


def staging_for(view: Array) -> Array:
    """An array like ``view``, at the same offset within a page.

    A load then never has the offset of a store that is still in flight a few vectors before it; the
    CPU compares the low 12 bits of addresses first, and would delay such a load (4K aliasing).
    """
    return host_memory(view.nbytes, view.ctypes.data).view(view.dtype)


def unwatched(iteration: int) -> None:
    """Ignore an iteration's number; the default of `Start.arrived`."""


class Start(NamedTuple):
    """How iterations begin; `bench.timing` makes one for every batch.

    ``barrier`` returns when every rank has called it. ``at``: the time of ``clock`` at which each
    iteration begins; empty: each begins after a barrier. ``loop``: the iterations run back to back
    and are timed as one. ``every``: iterations that are timed from Python have a barrier each, or
    only the first has one. ``slower``: lengthen measured times by this fraction, to check
    comparisons. ``arrived``: called with the number of each iteration that is timed from Python,
    before it waits.
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
        """True if ``clock`` is the host's clock, which C++ can read, and not an emulated one."""
        return self.clock is time.perf_counter


class Spans(NamedTuple):
    """When iterations began and ended, in seconds of `Start.clock`; one of each for a loop.

    ``absolute``: False if only the differences ``ends - begins`` are meaningful.
    """

    begins: Floats
    ends: Floats
    absolute: bool = True

    @property
    def seconds(self) -> Floats:
        """Seconds that each iteration took, or all iterations of a loop together."""
        return self.ends - self.begins


class TracedMessage(NamedTuple):
    """A message of one rank: ``way`` is "to" or "from" the peer, ``step`` is the schedule's.

    ``start`` and ``end`` by ``time.perf_counter``: a send ends when its memory may be reused, a
    receive begins when the rank is ready for it.
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
    """A library's own collective with its buffers and operation.

    ``buffers``: arrays of the transport's memory. ``elements`` of each part, as in `Layout`.
    ``in_place``: ``in`` and ``out`` share memory as the specification says. ``nonblocking``: use
    the non-blocking form (`Transport.has_nonblocking`).
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
    """A one-sided operation: ``way`` is put or get, ``times`` is how often in a row."""

    way: str
    times: int = 1


class Action(ABC):
    """A prepared operation that runs many times and counts the bytes that it moves."""

    divides: bool = False
    """Whether the transport itself divides an average, for example on a GPU."""

    one_by_one: bool = False
    """Whether `between` does something, so that iterations cannot share a time window."""

    @abstractmethod
    def __call__(self) -> None:
        """Run the operation once. Returns when this rank's part is complete."""

    def between(self) -> None:
        """Run work that follows an iteration and is not timed; by default nothing."""
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
        the interpreter, and GPUs are timed by events. An override calls this method if it cannot
        begin iterations as ``start`` says.
        """
        return spans_from_python(self, n, start)

    def traced(self, tell: Tell) -> None:
        """Run once, and call ``tell`` with each message of this rank.

        A transport that cannot trace messages runs the operation only.
        """
        self()

    def over(self, work: Callable[[], None]) -> None:
        """Start the operation, do the work, and wait for the operation: one iteration.

        Raises Unsupported if the operation has no non-blocking form.
        """
        raise Unsupported("this operation has no non-blocking form")

    def begun(self) -> int:
        """The number of iterations begun so far, including those inside `spans`.

        The watchdog's thread reads it meanwhile. 0 if the transport does not count iterations.
        """
        return 0

    def waiting(self) -> int | None:
        """The rank whose message this rank waits for; None if there is none or it is unknown.

        The watchdog's thread calls this.
        """
        return None

    @abstractmethod
    def close(self) -> None:
        """Free memory and handles. The action cannot run again."""


def spans_from_python(action: Action, n: int, start: Start) -> Spans:
    """Run an action n times and time it from Python; see `Action.spans`.

    Between two readings of the clock only the action runs.
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
    """An action around another action, whose counts it passes on and which it closes."""

    action: Action

    @property
    def sent(self) -> int:
        """Bytes that this rank has sent to other ranks so far."""
        return self.action.sent

    @property
    def received(self) -> int:
        """Bytes that this rank has received so far."""
        return self.action.received

    def begun(self) -> int:
        """The number of iterations begun so far, see `Action.begun`."""
        return self.action.begun()

    def waiting(self) -> int | None:
        """The rank whose message this rank waits for, or None; see `Action.waiting`."""
        return self.action.waiting()

    def close(self) -> None:
        """See `Action.close`."""
        self.action.close()


class Counted(Action):
    """An action that sends and receives the same number of bytes in every iteration.

    A subclass adds its iterations to ``_runs``.
    """

    def __init__(self, sent: int, received: int) -> None:
        self._runs, self._per_iteration = 0, (sent, received)

    @property
    def sent(self) -> int:
        """Bytes that this rank has sent to other ranks so far."""
        return self._runs * self._per_iteration[0]

    @property
    def received(self) -> int:
        """Bytes that this rank has received so far."""
        return self._runs * self._per_iteration[1]

    def begun(self) -> int:
        """The number of iterations begun so far, see `Action.begun`."""
        return self._runs


class CallList(Counted):
    """Calls without arguments, made in order; ``held`` is kept alive until `close`."""

    def __init__(
        self, calls: Sequence[Callable[[], Any]], sent: int, received: int, held: object = None
    ) -> None:
        super().__init__(sent, received)
        self._calls, self._held = list(calls), held

    def __call__(self) -> None:
        """Run the operation once, see `Action.__call__`."""
        self._runs += 1
        for call in self._calls:
            call()

    def close(self) -> None:
        """See `Action.close`."""
        self._calls, self._held = [], None


class Transport(ABC):
    """Moves bytes between ranks. All ranks create theirs together."""

    name: str
    """The name that ``--transport`` accepts."""
    shares_memory: bool = False
    """Whether every rank maps the memory of all ranks, so that `worksharing` is possible."""
    has_library: bool = False
    """Whether `library` is implemented."""
    library_executor: str | None = None
    """What calls the library: ``native`` (the extension) or ``python``."""
    has_nonblocking: bool = False
    """Whether `library` also has non-blocking forms."""
    average_ulps: int = 0
    """Permitted error of the library's averages of floats, in units in the last place."""
    device_uuid: str | None = None
    """UUID of this rank's GPU as NVML writes it (``GPU-…``), if the transport moves GPU memory."""
    device_busid: str | None = None
    """PCI address of this rank's GPU (``0000:1b:00.0``)."""
    device_index: int | None = None
    """Number of this rank's GPU in this process."""
    device_name: str | None = None
    """Product name of this rank's GPU."""
    facts: Mapping[str, Json] = _NOTHING
    """Facts for records: versions of libraries, and choices."""
    action_facts: Mapping[str, Json] = _NOTHING
    """Facts of the last action for its records, such as the algorithm that a library chose."""
    remarks: Sequence[str] = ()
    """Remarks below the table."""

    @property
    def on_gpu(self) -> bool:
        """True if the transport moves GPU memory."""
        return (self.device_uuid or self.device_busid) is not None

    @property
    def library_version(self) -> str:
        """The version of the library whose collectives `library` calls, such as NCCL.

        Empty if that library is the MPI that connects the ranks (`World`).
        """
        return ""

    @abstractmethod
    def allocate(self, nbytes: int) -> NDArray[np.uint8]:
        """Allocate memory on which this transport is fastest."""

    def staging(self, program: Program, itemsize: int) -> int:
        """Bytes that preparing the program needs in addition to its buffers.

        By default these are for messages whose target the same step's sends still read (``late`` in
        `Receive`), in the step that has most of them.
        """
        return program.late() * itemsize

    @abstractmethod
    def prepare(self, program: Program, buffers: Buffers, op: Op | None) -> Action:
        """Bind one rank's program to its buffers, to run it many times.

        ``op``: the reduction; None for a collective that only copies.
        """

    def library(self, call: LibraryCall) -> Action:
        """Bind the library's own collective, the baseline. Raises Unsupported without one."""
        raise Unsupported(
            f"the {self.name} transport has no library collective to compare with; MPI's is had"
            " through the mpi transport, NCCL's through the nccl transport"
        )

    def worksharing(self, call: LibraryCall) -> Action:
        """Bind a collective whose work is shared among all processes, independent of ranks.

        No schedule is used: this is the fastest that the ranks' shared memory allows. Raises
        Unsupported if ranks share no memory.
        """
        raise Unsupported(
            f"worksharing needs memory that all ranks share, and --transport {self.name} has none;"
            " use --transport shm"
        )

    def one_sided(self, program: Program, buffers: Buffers, how: OneSidedAccess) -> Action:
        """Bind a program of one step of plain messages as puts or gets.

        The sender writes into the receiver's memory (put), or the receiver reads the sender's
        memory (get), ``how.times`` times per iteration; the other rank takes no part. All ranks
        call this together. Raises Unsupported if ranks cannot access each other's memory.
        """
        raise Unsupported(
            f"--transport {self.name} has no {how.way}: no rank reaches another's memory; use"
            " --transport mpi or shm"
        )

    def limit(self, call: LibraryCall, n: int = 5) -> float | None:
        """Measure the shortest time that memory allows for a collective; None if it is not known.

        ``n``: sweeps of each kind. The call's buffers are overwritten. All ranks call this
        together. Raises Unsupported, with the reason, if it cannot be measured here.
        """
        return None

    def copy_rate(self, nbytes: int, n: int) -> float | None:
        """Bytes per second of the fastest of n copies inside this rank's device, or None.

        All ranks call this together, and copy at once.
        """
        return None

    def room(self) -> tuple[str, int] | None:
        """The name and the free bytes of the memory it allocates from; None for the host's."""
        return None

    def rotation(self, nbytes: int) -> int:
        """Bytes of the additional sets of buffers that are used in rotation with the first set."""
        return 0

    def trim(self) -> None:
        """Free memory that is no longer used. All ranks call this together."""
        return

    def split(self, group: World) -> Transport | None:
        """A transport for the ranks of ``group``; None if the caller must open a new one."""
        return None

    def give_up(self) -> None:
        """End this rank's waits after it has failed, and notify the other ranks."""
        return

    def close(self) -> None:
        """Free all resources.

        All ranks call this, when no rank uses another's memory any more.
        """
        return
