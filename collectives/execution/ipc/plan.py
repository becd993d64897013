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
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from busbar.errors import RankFailure, Unsupported
from collectives.execution.gpu import kernels
from collectives.execution.gpu.device import (
    SHARED_BLOCKS,
    Call,
    DeviceArray,
    GpuDevice,
    Kernel,
    cuda_source,
)
from collectives.execution.gpu.lane import Lane
from collectives.execution.shm.dependences import ENTRY, DependenceGraph
from collectives.execution.shm.tasks import STAGE, Place, Work
from collectives.execution.world import DIED, LATE, LEFT, World, lost
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
        arguments = options(dtype, op, threads, average=average)
        kernel = device.compile(source(), [name], arguments)[name]
        if device.resident(kernel, threads) >= BLOCKS:
            return PassKernels(kernel, threads)
        threads //= 2
    raise Unsupported(
        f"{device.name} does not hold {BLOCKS} blocks of {2 * threads} threads of our kernel"
        " on a multiprocessor at once"
    )


@dataclass(frozen=True)
class Addresses:
    """Addresses that a rank's plan needs beside the buffers; see plan.cuh's header.

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
        """Lay out the staging memory of a rank's passes. Each team has a fixed part of every slot.

        A team is a block of threads. Teams do not wait for each other, so the part does not depend
        on a pass's size: otherwise a later pass could overwrite what a slower team has still in
        staging.
        """
        most = [0] * slots
        for work in works:
            for place in work.places:
                if place.segment == STAGE:
                    most[place.start] = max(most[place.start], work.size)
        strides = [part(size, nteams, itemsize) * itemsize for size in most]
        begins, at = [], 0
        for stride in strides:
            begins.append(at)
            at += stride * nteams
        return cls(tuple(begins), tuple(strides if nteams > 1 else [0] * slots), at)


def part(size: int, nteams: int, itemsize: int) -> int:
    """Elements of a pass (a copy or reduction) that each of ``nteams`` blocks does.

    `pass_part` in pass.cuh computes the same.
    """
    per, each = PACK // itemsize, -(-size // nteams)
    return -(-each // per) * per


def teams(graph: DependenceGraph, itemsize: int, most: int) -> int:
    """Number of blocks of a rank: enough for its largest copy or reduction, at most ``most``.

    If the passes do not cover equal pieces, a block's part of one pass may depend on another
    block's part of the pass before. Then one block does everything.
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
    tell = len(HEADER)
    index = tell + nranks
    first_record = index + len(records)
    starts = np.cumsum([first_record, *(len(record) for record in records)])[:-1].tolist()
    words = to.words[rank]
    iterations = words + WORD * nranks * nteams
    header = [len(records), nranks, strides[rank], iterations, words]
    header += [to.gone, to.claim, to.status, int(deadline * 1e9), tell, index]
    flat = [*header, *to.tell, *starts, *(word for record in records for word in record)]
    return np.array(flat, np.uint64)


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
        """Whether it has ended. Without a pidfd, a later process of the same number hides that."""
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
        """Stop the executor if a rank's process has ended. Cheap, as it is called repeatedly."""
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
        """End every wait on the GPU; the executor reports it as failed."""
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
        """Wait for the stream, see `Lane.wait`; also raises if a plan gave up."""
        super().wait(expected)
        self._watched.settle()
