"""MPI calls that the extension makes and times, so that no interpreter runs between two of them.

The extension is not linked with MPI. It is given the handles, and the addresses of the functions
that mpi4py itself calls (or a profiler's, if one is preloaded). A call is a Python callable without
arguments; `_Describer` makes the extension's table row for it. Python makes the calls if the
extension is not built or has no row for one of them.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from busbar.errors import RankFailure, Unsupported
from collectives.execution.mpi.world import MpiWorld
from collectives.execution.transport import CallList, Spans, Start, Tell, TracedMessage
from collectives.execution.world import lost
from native import OPS, TYPES, load

if TYPE_CHECKING:
    from native._core import Calls, Watch

Call = Callable[[], Any]
T = TypeVar("T")
_SHAPES = {
    "Allreduce": "reduction",
    "Reduce_scatter_block": "reduction",
    "Reduce": "rooted_reduction",
    "Bcast": "broadcast",
    "Allgather": "exchange",
    "Alltoall": "exchange",
    "Gather": "rooted_exchange",
    "Scatter": "rooted_exchange",
    "Alltoallv": "variable",
    "Sendrecv": "sendrecv",
    "Barrier": "barrier",
}
#: The number of buffers among a call's arguments.
_BUFFERS = {"barrier": 0, "broadcast": 1, "sendrecv": 2}
#: Collectives whose counts are of one rank's part: whether the send buffer, and the receive buffer,
#: hold every rank's part.
_OF_ALL = {
    "Allgather": (False, True),
    "Gather": (False, True),
    "Scatter": (True, False),
    "Alltoall": (True, True),
    "Reduce_scatter_block": (True, False),
}
_MOST = 2**31 - 1  # a count is an int


class BoundMessage(NamedTuple):
    """A persistent request, and the message that it sends or receives."""

    request: Any
    way: str
    peer: int
    nbytes: int

    def report(self, tell: Tell, step: int, start: float) -> None:
        """Trace the message, which has just completed."""
        tell(TracedMessage(self.way, self.peer, self.nbytes, step, start, time.perf_counter()))


@dataclass(frozen=True)
class Requests:
    """Start persistent requests together, or wait for all of them (``waits``)."""

    waits: bool
    messages: Sequence[BoundMessage]
    call: Call

    def __call__(self) -> None:
        """Start the requests, or wait for them."""
        self.call()


def requests(mpi: Any, messages: Sequence[BoundMessage], *, waits: bool) -> list[Call]:
    """One call that starts all messages, or waits for them; an empty list without messages."""
    handles = [one.request for one in messages]
    if len(handles) == 1:
        return [Requests(waits, messages, handles[0].Wait if waits else handles[0].Start)]
    call = mpi.Request.Waitall if waits else mpi.Prequest.Startall
    return [Requests(waits, messages, partial(call, handles))] if handles else []


@dataclass(frozen=True)
class Flag:
    """A call that sets a word in shared memory, or waits for another rank's (``waits``).

    The word shows how many steps its rank has done. Number ``value`` of the ``period`` values of
    each iteration is meant. Only the extension can make this call.
    """

    waits: bool
    address: int
    value: int
    period: int
    peer: int = -1

    def __call__(self) -> None:
        """Raise Unsupported: Python cannot order its memory accesses."""
        raise Unsupported("messages in shared memory need the native extension")


def progress() -> None:
    """Stand for the extension's call that lets MPI make progress; does nothing in Python."""


@dataclass(frozen=True)
class Pull:
    """A message from a rank of this host: wait for it, and read it from the sender's memory."""

    calls: Sequence[Call]
    peer: int
    nbytes: int

    def __call__(self) -> None:
        """Make the calls."""
        for call in self.calls:
            call()


FirstEnded = Callable[[Requests, Sequence[int]], int]


class BoundStep(NamedTuple):
    """The calls of a step, in order."""

    mpi: Any
    number: int
    calls: list[Call]

    def traced(self, tell: Tell, run: Callable[[Call], object], first: FirstEnded) -> None:
        """Run the step once and trace each message when it completes.

        A message in shared memory is traced by its receiver. ``run`` makes a call. ``first(call,
        left)`` waits for the next of a call's messages to complete, among those numbered ``left``;
        returns its number.
        """
        starts: dict[int, float] = {}  # by the message's identity
        for call in self.calls:
            begin = time.perf_counter()
            if isinstance(call, Requests) and call.waits:
                left = list(range(len(call.messages)))
                while left:
                    number = first(call, left)
                    left.remove(number)
                    ended = call.messages[number]
                    ended.report(tell, self.number, starts[id(ended)])
                continue
            run(call)
            if isinstance(call, Requests):
                starts |= dict.fromkeys(map(id, call.messages), begin)
            elif isinstance(call, Pull):
                end = time.perf_counter()
                tell(TracedMessage("from", call.peer, call.nbytes, self.number, begin, end))


class PersistentCalls(CallList):
    """Calls over persistent requests, made from Python; see `Action` for the methods.

    ``steps``: the same calls by step, for `traced`; empty for a library's collective.
    """

    def __init__(
        self,
        calls: Sequence[Call],
        requests: Sequence[Any],
        sent: int,
        received: int,
        *,
        steps: Sequence[BoundStep] = (),
        held: object = None,
    ) -> None:
        direct = [call.call if isinstance(call, Requests) else call for call in calls]
        super().__init__(direct, sent, received, held)
        self._requests, self._steps = requests, steps

    def traced(self, tell: Tell) -> None:
        """Run once, and call ``tell`` with each message, see `Action.traced`."""
        if not self._steps:
            self()
            return
        self._runs += 1
        self._trace(tell)

    def _trace(self, tell: Tell) -> None:
        for step in self._steps:
            step.traced(tell, lambda call: call(), partial(_first_ended, step.mpi.Request.Waitany))

    def close(self) -> None:
        """Free the persistent requests."""
        for request in self._requests:
            request.Free()
        self._requests, self._steps = [], ()
        super().close()


def _first_ended(wait_any: Callable[[list[Any]], int], call: Requests, left: Sequence[int]) -> int:
    return left[wait_any([call.messages[number].request for number in left])]


class Neighbourhood(NamedTuple):
    """The ranks of a host, which wait for each other's words in shared memory.

    ``watch``: watches their processes, and numbers them as ``ranks`` does; ``deadline``: seconds
    that a rank waits for another.
    """

    watch: Watch
    ranks: Sequence[int]
    deadline: float


class NativeCalls(PersistentCalls):
    """Calls over persistent requests, made and timed by the extension; methods: see `Action`.

    ``rows``: the range of the extension's rows of each call, by the call's ``id``.
    """

    def __init__(
        self,
        calls: Sequence[Call],
        requests: Sequence[Any],
        moved: tuple[int, int],
        steps: Sequence[BoundStep],
        world: MpiWorld,
        timed: Calls,
        handles: NDArray[Any],
        rows: Mapping[int, range],
        held: object,
        neighbours: Neighbourhood | None = None,
    ) -> None:
        super().__init__(calls, requests, *moved, steps=steps, held=held)
        self._neighbours = neighbours
        self._world, self._timed, self._handles, self._rows = world, timed, handles, rows

    def __call__(self) -> None:
        """Run the operation once. Raises RankFailure if MPI reports an error."""
        self._runs += 1
        self._guarded(self._timed.run)

    def spans(self, n: int, start: Start) -> Spans:
        """Run n iterations; returns when each began and ended, see `Action.spans`."""
        if not start.by_host_clock:
            return super().spans(n, start)
        self._runs += n
        how = start.at, start.loop, start.slower
        return Spans(*self._guarded(lambda: self._timed.spans(n, *how)))

    def begun(self) -> int:
        """The number of iterations begun so far, see `Action.begun`."""
        return self._timed.begun()

    def waiting(self) -> int | None:
        """The rank whose message this rank waits for, or None; see `Action.waiting`."""
        peer = self._timed.waiting()
        return None if peer < 0 else peer

    def _trace(self, tell: Tell) -> None:
        for step in self._steps:
            self._guarded(partial(step.traced, tell, self._run_call, self._first_ended))
        self._timed.end()

    def _run_call(self, call: Call) -> None:
        rows = self._rows[id(call)]
        self._timed.part(rows.start, rows.stop)

    def _first_ended(self, call: Requests, left: Sequence[int]) -> int:
        rows = self._rows[id(call)]
        while True:
            for number in left:
                if self._timed.test(rows[number]):
                    return number
            os.sched_yield()

    def close(self) -> None:
        """See `PersistentCalls.close`."""
        self._return_handles()
        super().close()
        del self._timed

    def _return_handles(self) -> None:
        """Write the handles back to Python's requests: MPI may change a handle at a start."""
        kind = ctypes.c_uint32 if self._handles.itemsize == 4 else ctypes.c_uint64
        for index, request in enumerate(self._requests):
            field = kind.from_address(self._world.mpi._addressof(request))
            field.value = int(self._handles[index])

    def _guarded(self, run: Callable[[], T]) -> T:
        from native._core import CallFailed, PeerFailure

        try:
            return run()
        except PeerFailure as error:
            index, reason = error.args
            assert self._neighbours is not None  # only waits for their words end so
            _, ranks, deadline = self._neighbours
            raise lost(self._world.rank, ranks[index], reason, deadline) from None
        except CallFailed as error:
            code, peer = error.args
            text = self._world.mpi.Get_error_string(code)
            what = "MPI's collective" if peer < 0 else f"a message from or to rank {peer}"
            raise RankFailure(f"rank {self._world.rank}: {what} failed: {text}") from None


def _started(calls: Sequence[Call]) -> list[BoundMessage]:
    """The messages, in the order in which their requests are started."""
    starts = [call for call in calls if isinstance(call, Requests) and not call.waits]
    return [message for call in starts for message in call.messages]


def bind_calls(
    world: MpiWorld,
    calls: Sequence[Call],
    moved: tuple[int, int] = (0, 0),
    steps: Sequence[BoundStep] = (),
    times: int = 1,
    neighbours: Neighbourhood | None = None,
    held: object = None,
) -> PersistentCalls:
    """Bind calls, repeated ``times`` times, as an action: made by the extension if possible.

    ``moved``: bytes that an iteration sends and receives. ``neighbours``: the ranks of this
    host, needed if a call is a `Flag`. ``held`` is kept alive until `close`. Python makes the calls
    if the extension is not built, has no row for one (an average's division, an element type
    without kernels), a count is too large for MPI's plain functions, or a function's address is not
    found. Ranks may differ in this, because the MPI calls of an iteration are the same.
    """
    core, started = load(), _started(calls)
    handles = [one.request for one in started]
    if core is not None:
        describe = _Describer(world, core.SHAPES, started, neighbours.ranks if neighbours else ())
        rows: list[tuple[int, ...] | None] = []
        ranges = {}
        for call in calls:
            begin = len(rows)
            rows += describe.rows(call)
            ranges[id(call)] = range(begin, len(rows))
        barrier = _address(world.mpi, "MPI_Barrier")
        if barrier is not None and None not in rows:
            table, comm = np.array(rows * times, core.CALL), world.mpi._handleof(world.comm)
            timed = core.calls(
                table, describe.parts, barrier, comm, describe.wide, neighbours and neighbours.watch
            )
            return NativeCalls(
                calls,
                handles,
                moved,
                steps,
                world,
                timed,
                describe.handles,
                ranges,
                held,
                neighbours,
            )
    return PersistentCalls(list(calls) * times, handles, *moved, steps=steps, held=held)


def _address(mpi: Any, name: str) -> int | None:
    """The address of an MPI function, in a preloaded library if it has one; None if not found."""
    for library in (None, mpi.__file__):
        function = getattr(ctypes.CDLL(library), name, None)
        if function is not None:
            return ctypes.cast(function, ctypes.c_void_p).value
    return None


class _Describer:
    """Makes rows of the extension's table of calls.

    ``started``: the messages in the order in which their requests start. ``handles``: their
    requests, in memory that the extension reads and writes. ``wide``: handles are pointers.
    ``parts``: the counts of an MPI_Alltoallv.
    """

    def __init__(
        self,
        world: MpiWorld,
        shapes: Sequence[str],
        started: Sequence[BoundMessage],
        neighbours: Sequence[int],
    ) -> None:
        self._world, self._mpi, self._shapes = world, world.mpi, list(shapes)
        self._neighbours = {rank: index for index, rank in enumerate(neighbours)}
        self.parts: list[int] = []
        self.wide = self._mpi._sizeof(self._mpi.Comm) == ctypes.sizeof(ctypes.c_void_p)
        handles = [self._mpi._handleof(one.request) % 2**64 for one in started]
        self.handles = np.array(handles, np.uint64).astype(np.uint64 if self.wide else np.uint32)
        places = range(self.handles.ctypes.data, 2**64, self.handles.itemsize)
        self._places = dict(zip(map(id, started), places, strict=False))

    def rows(self, call: Call) -> list[tuple[int, ...] | None]:
        """The rows of a call; None in place of a row that the extension cannot have."""
        if isinstance(call, Requests):
            return self._requests(call)
        if isinstance(call, Pull):
            return [row for one in call.calls for row in self.rows(one)]
        if isinstance(call, Flag) or call is progress:
            return [self._flag(call)]
        bound: Any = call.func if isinstance(call, partial) else call
        given = call.args if isinstance(call, partial) else ()
        if bound is np.copyto or isinstance(bound, np.ufunc):
            return [self._local(bound, given)]
        name = getattr(bound, "__name__", "")
        owner = getattr(bound, "__self__", None)
        function = _address(self._mpi, f"MPI_{'Win_flush' if name == 'Flush' else name}")
        if function is None:
            return [None]
        if isinstance(owner, self._mpi.Win):
            return [self._one_sided(name, function, self._mpi._handleof(owner), given)]
        if name not in _SHAPES or bound != getattr(self._world.comm, name):
            return [None]
        return [self._collective(name, function, given)]

    def _row(
        self, shape: str, function: int = 0, source: int = 0, other: int = 0, target: int = 0,
        sends: int = 0, receives: int = 0, to: int = 0, origin: int = 0, kind: int = 0, op: int = 0,
    ) -> tuple[int, ...] | None:  # fmt: skip
        """A row's columns, in the table's order; None if a count is too large."""
        if (
            shape not in ("copy", "reduce")
            and max(sends, receives * (shape != "one_sided")) > _MOST
        ):
            return None
        at, handles = self._shapes.index(shape), (kind % 2**64, op % 2**64)
        return at, function, source, other, target, sends, receives, to, origin, *handles

    def _requests(self, call: Requests) -> list[tuple[int, ...] | None]:
        places = [self._places[id(one)] for one in call.messages]
        if not call.waits:
            start = _address(self._mpi, "MPI_Startall")
            row = self._row("start", start or 0, places[0], sends=len(places))
            return [row if start else None]
        test = _address(self._mpi, "MPI_Test")
        return [
            self._row("wait", test, place, to=one.peer) if test else None
            for place, one in zip(places, call.messages, strict=True)
        ]

    def _flag(self, call: Any) -> tuple[int, ...] | None:
        probe, anyone = _address(self._mpi, "MPI_Iprobe"), self._mpi.ANY_SOURCE
        if call is progress:
            return self._row("progress", probe, to=-1, origin=anyone) if probe else None
        numbers = {"source": call.address, "sends": call.value, "receives": call.period}
        if not call.waits:
            return self._row("publish", **numbers)
        if not probe:
            return None
        index = self._neighbours[call.peer]
        return self._row("await", probe, to=call.peer, origin=anyone, kind=index, **numbers)

    def _local(self, function: Any, given: tuple[Any, ...]) -> tuple[int, ...] | None:
        """A copy (target, source), or a reduction (one, other, target), inside this rank."""
        if not all(array.flags.c_contiguous for array in given):
            return None
        addresses = [int(array.ctypes.data) for array in given]
        if function is np.copyto:
            return self._row(
                "copy", source=addresses[1], target=addresses[0], sends=given[1].nbytes
            )
        kind, op = given[-1].dtype.name, function.__name__
        if kind not in TYPES or op not in OPS:
            return None
        source, other, target = addresses
        numbers = {"kind": TYPES.index(kind), "op": OPS.index(op)}
        return self._row("reduce", 0, source, other, target, sends=given[-1].size, **numbers)

    def _one_sided(
        self, name: str, function: int, window: int, given: tuple[Any, ...]
    ) -> tuple[int, ...] | None:
        if name == "Flush":
            return self._row("flush", function, to=given[0], op=window)
        (near, kind), peer, (displacement, count, _) = given
        handle = self._mpi._handleof(kind)
        source = int(near.ctypes.data)
        return self._row(
            "one_sided", function, source, 0, 0, count, displacement, peer, 0, handle, window
        )

    def _collective(
        self, name: str, function: int, given: tuple[Any, ...]
    ) -> tuple[int, ...] | None:
        shape, mpi = _SHAPES[name], self._mpi
        to = origin = 0
        op = next((mpi._handleof(x) for x in given if isinstance(x, mpi.Op)), 0)
        if shape == "sendrecv":
            sent, to, _, got, origin, _ = given
            buffers = [sent, got]
        else:
            buffers = list(given[: _BUFFERS.get(shape, 2)])
            to = given[-1] if shape in ("broadcast", "rooted_reduction", "rooted_exchange") else 0
        if shape == "broadcast":
            buffers = [None, *buffers]
        kinds = [b[-1] for b in buffers if isinstance(b, list)]
        kind = kinds[0] if kinds else mpi.BYTE
        many = _OF_ALL.get(name, (False, False))
        counts = [self._count(b, kind, each) for b, each in zip(buffers, many, strict=False)]
        counts += [0] * (2 - len(counts))
        if name == "Reduce_scatter_block":
            # A rank's part; in place the only buffer holds every rank's part.
            counts[1] = self._count(buffers[1], kind, buffers[0] is mpi.IN_PLACE)
        elif shape == "reduction":
            counts[1] = max(counts)
        elif shape == "rooted_reduction":
            counts[0] = max(counts)
        if shape == "variable":
            self.parts = [n for b in buffers for part in b[1] for n in part]
        if max(self.parts, default=0) > _MOST:
            return None
        source, target = [*(self._at(b) for b in buffers), 0, 0][:2]
        handle = mpi._handleof(kind)
        sends, receives = counts
        return self._row(
            shape, function, source, 0, target, sends, receives, to, origin, handle, op
        )

    def _at(self, buffer: Any) -> int:
        """The address of a buffer as mpi4py takes it."""
        if buffer is None:
            return 0
        if buffer is self._mpi.IN_PLACE:
            return int(buffer) % 2**64
        return int(buffer[0].ctypes.data)

    def _count(self, buffer: Any, kind: Any, of_all: bool) -> int:
        """A buffer's elements; ``of_all``: only those of one rank's part."""
        if not isinstance(buffer, list):
            return 0
        count = int(buffer[0].nbytes) // int(kind.Get_size())
        return count // self._world.size if of_all else count
