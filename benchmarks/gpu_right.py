"""The sections of gpu_one.py that check results, and helpers of its other sections.

A section writes to a page and needs a GPU only through ``cupy``. Ranks are threads of this process,
all on GPU 0, so that their kernels run at once.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from gpu_page import Page

from busbar.errors import Unsupported
from collectives.execution.gpu.action import StreamAction
from collectives.execution.gpu.device import DeviceArray, GpuDevice
from collectives.execution.gpu.take import nccl_variables
from collectives.execution.inproc.world import run
from collectives.execution.ipc.transport import IpcTransport
from collectives.execution.lower import lower
from collectives.execution.transport import LibraryCall
from collectives.execution.world import World
from collectives.schedule.catalogue import algorithms, build, spec
from collectives.schedule.dtypes import dtype
from collectives.schedule.layout import Layout
from collectives.schedule.moves import Buffer
from collectives.schedule.ops import op

SPEC, SUM = spec("allreduce"), op("sum")
KINDS = ("float", "half", "bfloat16", "double")
KB, MB, GB = 1 << 10, 1 << 20, 1 << 30
PERIOD = 4099  # elements after which inputs repeat: a prime, so that chunks differ
DEADLINE_S = 60.0
POISON = 0xEE
# Vectors that a rank may need at once: in, out, scratch, staging.
VECTORS = 5
COLUMNS = ("ranks", "type", "bytes", "algorithms right", "wrong")


@dataclass(frozen=True)
class Sizes:
    """Bytes of a run's cases: ``right`` for the full check of results, ``some`` for a first one.

    ``large`` and ``small``: sizes that are timed. ``ranks``: rank counts of most sections.
    ``repeats``: repetitions of a measurement.
    """

    right: tuple[int, ...]
    some: tuple[int, ...]
    large: tuple[int, ...]
    ranks: tuple[int, ...] = (2, 4, 8)
    small: int = 4 * KB
    repeats: int = 5


SIZES = Sizes(
    right=(4, KB, 64 * KB, MB, 16 * MB, 256 * MB, GB),
    some=(4, 64 * KB, 16 * MB),
    large=(64 * MB, 256 * MB, GB),
)


@dataclass
class Bound:
    """An all-reduce bound to a transport, and the steps of this rank's program."""

    action: StreamAction
    steps: int


def bound(
    transport: Any, name: str, source: DeviceArray, target: DeviceArray, in_place: bool = False
) -> Bound:
    """Bind an algorithm to all elements of two arrays. Raises Unsupported for this many ranks.

    ``worksharing`` is not a schedule, and counts as one step.
    """
    if name == "worksharing":
        both = {Buffer.IN: source, Buffer.OUT: target}
        call = LibraryCall(SPEC, both, SUM, len(source), in_place=in_place)
        return Bound(transport.worksharing(call), 1)
    schedule = build("allreduce", name, transport.world.size)
    layout = Layout.of(schedule, SPEC)
    program = lower(schedule, layout, transport.world.rank, len(source), in_place=in_place)
    scratch = transport.allocate(program.elements[Buffer.SCRATCH] * source.itemsize)
    buffers = {Buffer.IN: source, Buffer.OUT: target, Buffer.SCRATCH: scratch.view(source.dtype)}
    return Bound(transport.prepare(program, buffers, SUM), len(program.steps))


# -- right results


def inputs(rank: int, kind: str) -> np.ndarray[Any, Any]:
    """The repeated part of a rank's input: whole numbers whose sums every type holds exactly."""
    return ((np.arange(PERIOD) + 7 * rank) % 5 + 1).astype(dtype(kind))


def fill(device: GpuDevice, stream: Any, array: DeviceArray, tile: np.ndarray[Any, Any]) -> None:
    """Fill an array with repetitions of a tile."""
    raw, bytes_ = array.view(np.uint8), tile.view(np.uint8)
    filled = min(len(bytes_), len(raw))
    raw[:filled] = bytes_[:filled]
    while filled < len(raw):
        more = min(filled, len(raw) - filled)
        device.copy(raw.address + filled, raw.address, more, stream)
        stream.synchronize()
        filled += more


class Judge:
    """Compares every byte of an array with a repeated tile, on the GPU.

    Create it only while no other rank launches kernels.
    """

    def __init__(self, transport: Any, array: DeviceArray, tile: np.ndarray[Any, Any]) -> None:
        device, self._lane = transport.device, transport.lane
        there = device.allocate(tile.nbytes).view(tile.dtype)
        there[:] = tile
        self._count = device.allocate(8)
        self._call = self._lane.kernels.differ(array, there, self._count.view(np.uint64))
        self._held = there
        self.wrong()  # a first launch is slower, and is over before ranks wait for each other

    def wrong(self) -> int:
        """The number of elements that differ."""
        self._count[:] = 0
        self._lane.enqueue([self._call])
        self._lane.wait()
        return int(self._count.view(np.uint64).host()[0])


Found = dict[str, list[str]]


def judge(
    transport: Any, sizes: Sequence[int], kinds: Sequence[str], page: Page | None = None
) -> Found:
    """Check every algorithm at every size and type, eager and from a graph.

    Returns the wrong cases by algorithm. Algorithms that do not support this many ranks have no
    entry. All ranks get the same; rank 0 writes a row for each type and size to the page.
    """
    world: World = transport.world
    found: Found = {}
    for kind in kinds:
        for size in sizes:
            world.barrier()
            transport.trim()
            room = int(world.broadcast(transport.device.memory()[0]))
            if world.size * size * VECTORS > room:
                if page is not None and world.rank == 0:
                    page.row(world.size, kind, size, "skipped: too little memory", "")
                continue
            these = _each(transport, size, kind)
            for name, ranks in these.items():
                found.setdefault(name, [])
                if ranks:
                    found[name].append(f"{size} B {kind} on ranks {ranks}")
            if page is not None and world.rank == 0:
                wrong = [name for name, ranks in these.items() if ranks]
                right = f"{len(these) - len(wrong)} of {len(these)}"
                page.row(world.size, kind, size, right, ", ".join(wrong), algorithms=list(these))
                for name in wrong:
                    page.fail(f"{name}: wrong bytes at {size} B {kind} on ranks {these[name]}")
    return found


def _each(transport: Any, size: int, kind: str) -> dict[str, list[int]]:
    """For each algorithm the ranks with wrong results."""
    world, device, of = transport.world, transport.device, dtype(kind)
    elements = max(1, size // of.itemsize)
    source, target = (transport.allocate(elements * of.itemsize).view(of) for _ in range(2))
    fill(device, transport.lane.stream, source, inputs(world.rank, kind))
    wanted = sum(inputs(rank, kind).astype(np.float64) for rank in range(world.size))
    judge = Judge(transport, target, np.asarray(wanted).astype(of))
    found = {}
    for name in algorithms("allreduce"):
        try:
            one = bound(transport, name, source, target)
        except Unsupported:
            continue
        wrong = 0
        for _ in range(3):  # eager, and twice from a graph
            target.view(np.uint8)[:] = POISON
            world.barrier()
            one.action()
            wrong += judge.wrong()
            world.barrier()
        one.action.close()
        found[name] = [r for r, bad in enumerate(world.gather(wrong)) if bad]
    return found


def right(
    page: Page, cupy: Any, sizes: Sequence[int], ranks: Sequence[int], what: str = ""
) -> None:
    """Check every all-reduce over ipc, with threads as ranks."""
    page.table(f"Right over `ipc`, ranks as threads{what}", TOLD, COLUMNS)
    for n in ranks:
        on_threads(cupy, n, lambda transport: judge(transport, sizes, KINDS, page))


def right_over_nccl(
    page: Page, cupy: Any, nccl: Any, sizes: Sequence[int], ranks: Sequence[int]
) -> None:
    """Check every all-reduce over nccl, with threads on one GPU as ranks, if NCCL allows it."""
    from collectives.execution.nccl.transport import NcclTransport

    page.table("Right over `nccl`, ranks as threads on one GPU", TOLD, COLUMNS)
    version = int(nccl.get_version())
    try:
        uuids = ["one GPU"] * max(ranks)
        given = nccl_variables(uuids, version, 0, threads=True, env=os.environ)
    except Unsupported as error:
        page.row("-", "-", "-", f"not tried: {error}", "")
        return
    os.environ.update(given)

    def make(world: World, device: GpuDevice) -> NcclTransport:
        return NcclTransport(world, device, nccl, cold=False, deadline=DEADLINE_S)

    for n in ranks:
        on_threads(cupy, n, lambda t: judge(t, sizes, KINDS, page), make)


TOLD = (
    "All-reduce, sum; every algorithm that serves so many ranks, launched three times, twice from a"
    " graph; every byte compared, over poisoned memory."
)


def on_threads(
    cupy: Any,
    nranks: int,
    body: Callable[[Any], Any],
    make: Callable[[World, GpuDevice], Any] | None = None,
    **options: Any,
) -> Any:
    """Run ``body(transport)`` on ``nranks`` threads on GPU 0. Returns rank 0's result."""

    def rank(world: Any) -> Any:
        device = GpuDevice(cupy, 0)
        given = {"deadline": DEADLINE_S, **options}
        transport = make(world, device) if make else IpcTransport(world, device, **given)
        return ended(transport, body)

    return run(nranks, rank, deadline=5 * DEADLINE_S)[0]


def ended(transport: Any, body: Callable[[Any], Any]) -> Any:
    """The result of ``body(transport)``; then the transport is closed.

    If ``body`` fails, the transport gives up, so that no other rank hangs.
    """
    try:
        result = body(transport)
        transport.world.barrier()
    except BaseException:
        transport.give_up()
        raise
    transport.close()
    transport.world.barrier()  # in closing, ranks may write into each other's memory
    return result
