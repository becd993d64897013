"""One rank's program bound to all ranks' GPU memory: the executor, its plan, its launches.

The CUDA executor comes from ``native/cuda``. `table` writes one rank's plan as the flat words that
the executor reads (``native/cuda/plan.cuh``), from a dependence graph
(`collectives.execution.shm.dependences`) and addresses. `PeerBinding` is made on all ranks
together, since they exchange addresses. `PeerWatch` and `WatchedLane` end a wait on the GPU when
another rank's process ends.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from busbar.errors import RankFailure, Unsupported
from collectives.execution.gpu import kernels
from collectives.execution.gpu.device import (
    SHARED_BLOCKS,
    DeviceArray,
    GpuDevice,
    Kernel,
    cuda_source,
)
from collectives.execution.gpu.lane import Lane
from collectives.execution.ipc.memory import PeerMemory
from collectives.execution.program import Program
from collectives.execution.shm.dependences import ENTRY, DependenceGraph, dependence_graph
from collectives.execution.shm.passes import STAGE, Work
from collectives.execution.shm.tasks import (
    EMPTY,
    Place,
    ordered,
    placed_program_json,
    places_of,
    read_placed_program,
)
from collectives.execution.shm.worksharing import ends, shared_out
from collectives.execution.transport import Buffers, LibraryCall
from collectives.execution.world import DIED, LATE, LEFT, Json, World, lost
from collectives.schedule.moves import Buffer
from collectives.schedule.ops import Op

#: Threads of a block, and the number of blocks that a multiprocessor must hold at once. The
#: compiler limits registers for them.
THREADS, BLOCKS = 512, SHARED_BLOCKS
_FEWEST_THREADS = 128
# The names of plan.cuh's enumerations, in order.
HEADER = (
    "Records", "Ranks", "Stride", "Iterations", "Words", "Gone", "Claim", "Status", "Deadline",
    "Tell", "Index",
)  # fmt: skip
STATUS = ("Reason", "Peer", "Stop")

WORD = 8
PACK = 16
# Bytes for which an additional team is worth its signals.
TEAM_BYTES = 8192
# Seconds between two checks of the other ranks' processes.
PATIENCE = 0.02
_REASON, _PEER, _STOP = (STATUS.index(name) for name in ("Reason", "Peer", "Stop"))
_FAILED = 4  # plan.cuh's Reason
Call = Callable[[], object]
Wait = tuple[int, int]


@dataclass(frozen=True)
class PassKernels:
    """The compiled kernel for one element type and operation, and the threads of its blocks."""

    program: Kernel
    threads: int


def source() -> str:
    """The executor's CUDA C++, with all includes in one text."""
    return cuda_source("busbar.cu")


def options(
    dtype: np.dtype[np.generic], op: Op | None, threads: int = THREADS, *, average: bool = False
) -> tuple[str, ...]:
    """The compiler's options for an element type and an operation.

    ``average``: every sum is divided by the number of its addends. Raises Unsupported for a type
    without kernels.
    """
    return (
        *kernels.options(dtype, op, average),
        f"-DBUSBAR_THREADS={threads}",
        f"-DBUSBAR_BLOCKS={BLOCKS}",
    )


def compile_kernels(
    device: GpuDevice, dtype: np.dtype[np.generic], op: Op | None, *, average: bool = False
) -> PassKernels:
    """Compile the kernel with the largest blocks of which `BLOCKS` are resident at once.

    All blocks of all ranks wait for each other, so they must be resident at once. Raises
    Unsupported for a type without kernels, and if even small blocks do not fit.
    """
    kernels.require(device, dtype)
    threads, name = THREADS, "busbar_program"
    while threads >= _FEWEST_THREADS:
        given = options(dtype, op, threads, average=average)
        kernel = device.compile(source(), [name], given)[name]
        if device.resident(kernel, threads) >= BLOCKS:
            return PassKernels(kernel, threads)
        threads //= 2
    raise Unsupported(
        f"{device.name} does not hold {BLOCKS} blocks of {2 * threads} threads of our kernel"
        " on a multiprocessor at once"
    )


@dataclass(frozen=True)
class Addresses:
    """Addresses in a rank's plan that are not in buffers; see the header in plan.cuh.

    ``words[r]``: the words that receive signals to rank r. ``tell[r]``: the word of rank r that
    says that this rank has left; 0 for itself. ``gone``, ``claim``, ``status``: this rank's words
    for all its plans. ``place(p)``: the address of a place in a rank's segment.
    """

    words: Sequence[int]
    tell: Sequence[int]
    gone: int
    claim: int
    status: int
    place: Callable[[Place], int]


@dataclass(frozen=True)
class StagingArea:
    """A rank's staging: slot starts, bytes per team (0: slots are not divided), and total bytes."""

    begins: tuple[int, ...]
    strides: tuple[int, ...]
    nbytes: int

    @classmethod
    def of(cls, works: Sequence[Work], slots: int, nteams: int, itemsize: int) -> StagingArea:
        """Lay out the staging of a rank's works. Each team has a fixed part of every slot.

        Teams do not wait for each other, so the part does not depend on a pass's size: otherwise a
        later pass could overwrite what a slower team has still in staging.
        """
        most = [0] * slots
        for work in works:
            for place in (*work.targets, *work.sources):
                if place.segment == STAGE:
                    most[place.start] = max(most[place.start], work.size)
        strides = [part(size, nteams, itemsize) * itemsize for size in most]
        begins, at = [], 0
        for stride in strides:
            begins.append(at)
            at += stride * nteams
        return cls(tuple(begins), tuple(strides if nteams > 1 else [0] * slots), at)


def part(size: int, nteams: int, itemsize: int) -> int:
    """Elements of a team's part of a pass; `pass_part` in pass.cuh computes the same."""
    per, each = PACK // itemsize, -(-size // nteams)
    return -(-each // per) * per


def teams(graph: DependenceGraph, itemsize: int, most: int) -> int:
    """Number of teams (blocks) of a rank: enough for its largest pass, and at most ``most``.

    If passes do not cover equal pieces, a team's part of one pass may depend on another team's part
    of the pass before. Then one team does everything.
    """
    if not graph.aligned:
        return 1
    largest = max((w.size for works in graph.works for w in works), default=0)
    return max(1, min(most, -(-largest * itemsize // TEAM_BYTES)))


def control_bytes(nranks: int, nteams: int) -> int:
    """Bytes of a plan's words on a rank: signals to it, and iteration numbers of its teams."""
    return WORD * (nranks * nteams + nteams)


def table(
    graph: DependenceGraph,
    rank: int,
    nteams: int,
    slots: StagingArea,
    to: Addresses,
    stage: int,
    deadline: float,
    *,
    rotated: bool = True,
) -> NDArray[np.uint64]:
    """The words of ``rank``'s plan, whose staging begins at ``stage``; ``deadline`` in seconds.

    ``rotated``: a pass reads the next rank's data first, so that ranks read from different GPUs.
    Otherwise it reads rank 0's data first, so that sums of floats have equal bits on all ranks.
    """
    nranks, works = len(graph.works), graph.works[rank]
    strides = [2 + len(works) for works in graph.works]
    listeners = _listeners(graph, rank)
    first = rank + 1 if rotated else 0

    def turn(place: Place) -> int:
        return (place.rank - first) % nranks

    def signals(task: int) -> list[int]:
        return [to.words[peer] + WORD * rank for peer in listeners.get(task, ())]

    def waits(of: Sequence[Wait]) -> list[int]:
        return [n for peer, task in of for n in (peer, strides[peer], _mark(task))]

    def places(of: Sequence[Place]) -> Iterator[int]:
        for p in of:
            if p.segment == STAGE:
                yield from (stage + slots.begins[p.start], slots.strides[p.start])
            else:
                yield from (to.place(p), 0)

    def record(task: int, of: Sequence[Wait], work: Work | None) -> list[int]:
        tell = signals(task)
        head = [work.size if work else 0, _mark(task), len(of), len(tell)]
        head += [len(work.targets), len(work.sources)] if work else [0, 0]
        sources = sorted(work.sources, key=turn) if work else []
        body = [*places(work.targets if work else ()), *places(sources)]
        return [*head, *waits(of), *tell, *body]

    records = [record(ENTRY, (), None)]
    records += [record(task, work.waits, work) for task, work in enumerate(works)]
    records.append(record(len(works), graph.exits[rank], None))
    return _laid_out(records, nranks, strides[rank], nteams, rank, to, deadline)


def _mark(task: int) -> int:
    """The value of a rank's word after it has done a task in an iteration; 1 after entering."""
    return 2 + task


def _listeners(graph: DependenceGraph, rank: int) -> dict[int, list[int]]:
    """The ranks that wait for each task of ``rank``."""
    listeners: dict[int, list[int]] = {}
    for other, works in enumerate(graph.works):
        for waits in (*(work.waits for work in works), graph.exits[other]):
            for peer, task in waits:
                if peer == rank and other not in listeners.setdefault(task, []):
                    listeners[task].append(other)
    return listeners


def _laid_out(
    records: list[list[int]],
    nranks: int,
    stride: int,
    nteams: int,
    rank: int,
    to: Addresses,
    deadline: float,
) -> NDArray[np.uint64]:
    tell = len(HEADER)
    index = tell + nranks
    first = index + len(records)
    starts = np.cumsum([first, *(len(record) for record in records)])[:-1].tolist()
    mine = to.words[rank]
    iterations = mine + WORD * nranks * nteams
    header = [len(records), nranks, stride, iterations, mine, to.gone, to.claim, to.status]
    header += [int(deadline * 1e9), tell, index]
    flat = [*header, *to.tell, *starts, *(word for record in records for word in record)]
    return np.array(flat, np.uint64)


def program(kernels: PassKernels, plan: DeviceArray, nteams: int) -> list[Call]:
    """One kernel launch that runs the whole plan and waits on the GPU.

    ``plan``: the table in device memory.
    """
    args = np.uint64(plan.address), np.uint64(plan.nbytes // WORD)
    return [lambda: kernels.program((nteams,), (kernels.threads,), args)]


class _Process:
    """Another process of this host, watched through a pidfd if Python and the kernel support it."""

    def __init__(self, pid: int) -> None:
        self._pid, self._fd = pid, -1
        with suppress(AttributeError, OSError):
            self._fd = os.pidfd_open(pid)

    def ended(self) -> bool:
        """True if it has ended. Without a pidfd a new process with its number hides this."""
        if self._fd >= 0:
            return bool(select.select([self._fd], [], [], 0)[0])
        try:
            os.kill(self._pid, 0)
        except ProcessLookupError:
            return True
        except OSError:  # the process runs under another user
            return False
        return False

    def close(self) -> None:
        """Stop watching."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class PeerWatch:
    """Watches the other ranks' processes, and reads why the executor stopped.

    ``status``: the pinned words of plan.cuh's Status, all 0. Ranks that are threads of this process
    are not watched.
    """

    def __init__(
        self, rank: int, pids: Sequence[int], status: NDArray[np.uint64], deadline: float
    ) -> None:
        self._rank, self.status, self._deadline = rank, status, deadline
        self._processes = {r: _Process(pid) for r, pid in enumerate(pids) if pid != os.getpid()}
        self._dead: list[int] = []
        self._looked = 0.0

    def look(self) -> None:
        """Stop the executor if another rank's process has ended. Cheap, for use in loops."""
        now = time.monotonic()
        if now - self._looked < PATIENCE:
            return
        self._looked = now
        if not self._dead:
            self._dead = [rank for rank, one in self._processes.items() if one.ended()]
        if self._dead:
            # Also if it exited normally: ranks that need nothing more from it go on.
            self.stop()

    def stop(self) -> None:
        """End every wait on the GPU with an error."""
        self.status[_STOP] = 1

    def settle(self) -> None:
        """Raise RankFailure if the executor gave up, with the rank it waited for and the reason."""
        reason, peer, me = int(self.status[_REASON]), int(self.status[_PEER]), self._rank
        if not reason:
            return
        if reason == _FAILED:
            raise RankFailure(f"rank {me} stopped because rank {peer} failed in a collective")
        if reason not in (LEFT, LATE):
            peer, reason = self._dead[0] if self._dead else peer, DIED
        raise lost(me, peer, reason, self._deadline)

    def close(self) -> None:
        """Stop watching."""
        for process in self._processes.values():
            process.close()
        self._processes = {}


class WatchedLane(Lane):
    """A lane whose work may end early because another rank was lost."""

    def __init__(self, device: GpuDevice, world: World, watch: PeerWatch, deadline: float) -> None:
        self._watched = watch
        # The executor's deadline comes first: its error names the rank that it waited for.
        super().__init__(device, world, check=watch.look, give_up=watch.stop, deadline=2 * deadline)

    def wait(self, expected: float = 0.0) -> None:
        """See `Lane.wait`; also raises if a plan gave up."""
        super().wait(expected)
        self._watched.settle()


class Peers(Protocol):
    """The parts of the transport that binding uses: GPU, memory, and world."""

    world: World
    device: GpuDevice
    memory: PeerMemory
    lane: Lane
    deadline: float
    #: Whether a pass reads the next rank's data first; otherwise rank 0's.
    rotated: bool
    #: Whether ranks are separate processes, and how many teams fit on this rank's GPU.
    shared: bool
    most_teams: int

    def allocate(self, nbytes: int) -> Any:
        """Allocate memory on this rank's GPU."""

    def gather(self, value: Json, keys: Iterable[int], kept: list[object]) -> list[Json]:
        """Every rank's value; ``kept`` gains the objects that keep the named allocations mapped."""

    def addresses(self, words: list[int], place: Callable[[Place], int]) -> Addresses:
        """The addresses of a plan's words and places in this rank's address space."""

    def kernels(self, dtype: np.dtype[Any], op: Op | None, average: bool = False) -> PassKernels:
        """The executor for a type and an operation, compiled once.

        ``average``: every sum is divided by the number of its addends.
        """


def adds_all_at_once(graph: DependenceGraph) -> bool:
    """True if every pass that adds has all ranks' contributions, so that its sum is final.

    Such a pass has as many sources as there are ranks.
    """
    nranks = len(graph.works)
    sources = {len(work.sources) for works in graph.works for work in works}
    return nranks > 1 and sources <= {1, nranks}


class PeerBinding:
    """One rank's program bound to GPU memory.

    ``calls`` enqueue an iteration on the current stream. ``kept``: objects to be kept alive.
    """

    def __init__(self, transport: Peers, dtype: np.dtype[Any]) -> None:
        self._transport, self._dtype = transport, dtype
        self._at: list[dict[int, int]] = []
        self.kept: list[object] = []
        self.calls: list[Call] = []

    @classmethod
    def plan(
        cls, transport: Peers, program: Program, buffers: Buffers, op: Op | None
    ) -> PeerBinding:
        """Bind a rank's program. A last call divides an average unless the passes already do."""

        def graph_of(everyone: list[Json]) -> DependenceGraph:
            programs = [read_placed_program(one) for one in everyone]
            return dependence_graph(ordered(programs), transport.world.size)

        return cls._bound(transport, buffers, op, partial(placed_program_json, program), graph_of)

    @classmethod
    def worksharing(
        cls, transport: Peers, call: LibraryCall
    ) -> tuple[PeerBinding, DependenceGraph]:
        """Bind a work-sharing collective. Also returns which rank does which part."""
        buffers, dealt = call.buffers, list[DependenceGraph]()

        def graph_of(everyone: list[Json]) -> DependenceGraph:
            itemsize = buffers[Buffer.OUT].dtype.itemsize
            dealt.append(shared_out(call, everyone, itemsize))
            return dealt[0]

        bound = cls._bound(transport, buffers, call.op, ends, graph_of)
        return bound, dealt[0]

    @classmethod
    def _bound(
        cls,
        transport: Peers,
        buffers: Mapping[Buffer, Any],
        op: Op | None,
        tell: Callable[[Mapping[Buffer, tuple[int, int]]], Json],
        graph_of: Callable[[list[Json]], DependenceGraph],
    ) -> PeerBinding:
        """Bind the graph that follows from all ranks' messages.

        ``tell``: makes this rank's message from where its buffers lie; ``graph_of``: the graph.
        """
        transport.device.use()
        bound, world = cls(transport, buffers[Buffer.OUT].dtype), transport.world
        bound.kept.append(dict(buffers))
        transport.memory.unmap()
        everyone = transport.gather(*bound._describe(tell, buffers), bound.kept)
        # All ranks have arrived, so they have unmapped their older memory.
        transport.memory.forget()
        bound._at = [bound._map(rank, one["segments"]) for rank, one in enumerate(everyone)]
        graph = graph_of([one["message"] for one in everyone])
        mean = op is not None and op.mean
        folds = mean and adds_all_at_once(graph)
        bound.calls = bound._build(graph, op, average=folds)
        if mean and not folds and buffers[Buffer.OUT].size:
            out: Any = buffers[Buffer.OUT]
            bound.calls.append(transport.lane.kernels.divide(out, world.size))
        # Allocating and loading may wait for the device, so no rank may run a plan until all are
        # done.
        world.barrier()
        return bound

    @classmethod
    def meeting(cls, transport: Peers, dtype: np.dtype[Any], op: Op | None) -> PeerBinding:
        """Bind a meeting of all ranks' streams: no stream goes on before all have arrived.

        It is one launch of one block without passes, by the kernel of a type.
        """
        bound, world = cls(transport, dtype), transport.world
        ranks = range(world.size)
        exits = tuple(tuple((peer, ENTRY) for peer in ranks if peer != rank) for rank in ranks)
        none = DependenceGraph(((),) * world.size, exits, (0,) * world.size, True, ())
        bound.calls = bound._build(none, op) if world.size > 1 else []
        world.barrier()
        return bound

    def _describe(
        self,
        tell: Callable[[Mapping[Buffer, tuple[int, int]]], Json],
        buffers: Mapping[Buffer, Any],
    ) -> tuple[Json, set[int]]:
        """This rank's description of its buffers, and the keys of the allocations in it."""
        memory = self._transport.memory
        places = places_of(memory.locate, buffers, self._dtype.itemsize)
        shared = self._transport.shared
        keys = {key for key, _ in places.values()} - {EMPTY}
        segments = {key: memory.describe(key, shared) for key in keys}
        return {"message": tell(places), "segments": segments}, keys

    def _map(self, rank: int, segments: Mapping[str, Json]) -> dict[int, int]:
        """Addresses of a rank's allocations in this process, by their keys."""
        memory, addresses = self._transport.memory, {}
        for key, where in segments.items():
            if rank == self._transport.world.rank:
                addresses[int(key)] = memory.own(int(key))
            else:
                addresses[int(key)], held = memory.attach(rank, int(key), where)
                self.kept.append(held)
        return addresses

    def _build(self, graph: DependenceGraph, op: Op | None, average: bool = False) -> list[Call]:
        """The calls that enqueue one iteration; ``average``: its passes divide their sums."""
        transport, size = self._transport, self._dtype.itemsize
        world, rank = transport.world, transport.world.rank
        nteams = teams(graph, size, transport.most_teams)
        control = self._zeroed(control_bytes(world.size, nteams))
        stage = StagingArea.of(graph.works[rank], graph.slots[rank], nteams, size)
        staged = transport.allocate(stage.nbytes)
        to = transport.addresses(self._exchange(control), self._address)
        words = table(
            graph,
            rank,
            nteams,
            stage,
            to,
            staged.address,
            transport.deadline,
            rotated=transport.rotated,
        )
        plan = self._written(words)
        self.kept += [control, staged, plan]
        return program(transport.kernels(self._dtype, op, average), plan, nteams)

    def _zeroed(self, nbytes: int) -> DeviceArray:
        array: DeviceArray = self._transport.memory.allocate(nbytes)
        array[:] = 0
        return array

    def _exchange(self, control: DeviceArray) -> list[int]:
        """Exchange descriptions of ``control``. Returns the address of each rank's words."""
        transport = self._transport
        key, _ = transport.memory.locate(control)
        mine = {key: transport.memory.describe(key, transport.shared)}
        everyone = transport.gather(mine, {key}, self.kept)
        return [next(iter(self._map(rank, one).values())) for rank, one in enumerate(everyone)]

    def _written(self, words: NDArray[np.uint64]) -> DeviceArray:
        array: DeviceArray = self._transport.memory.allocate(words.nbytes)
        array.view(np.uint64)[:] = words
        return array

    def _address(self, place: Place) -> int:
        return self._at[place.rank][place.segment] + place.start * self._dtype.itemsize
