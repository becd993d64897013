"""The sections of gpu_one.py on right results, and what its others share with them.

A section returns lines of Markdown and needs a GPU only through ``cupy``. Ranks are threads of this
process, all on GPU 0, so that their kernels run at once.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from collectives.catalogue import algorithms, build, spec
from collectives.dtypes import dtype
from collectives.errors import Unsupported
from collectives.gpu import pick
from collectives.gpu.action import StreamAction
from collectives.gpu.array import DeviceArray
from collectives.gpu.device import Device
from collectives.layout import Layout
from collectives.lower import lower
from collectives.moves import Buffer
from collectives.ops import op
from collectives.transports.ipc import IpcTransport
from collectives.world import World
from collectives.worlds.inproc import run

SPEC, SUM = spec("allreduce"), op("sum")
KINDS = ("float", "half", "bfloat16", "double")
KB, MB, GB = 1 << 10, 1 << 20, 1 << 30
SIZES = (4, KB, 64 * KB, MB, 16 * MB, 256 * MB, GB)
PERIOD = 4099  # elements after which the inputs repeat: a prime, so that no chunk is like another
DEADLINE_S = 60.0
POISON = 0xEE
# Bytes from which a result is compared on the GPU.
LARGE = MB
# Vectors that a rank may need at once: in, out, scratch, staging, and the comparison's.
VECTORS = 6


@dataclass
class Bound:
    """An all-reduce bound to a transport, and the steps of this rank's program."""

    action: StreamAction
    steps: int


def bound(
    transport: Any, name: str, source: DeviceArray, target: DeviceArray, in_place: bool = False
) -> Bound:
    """An algorithm on every element of two arrays. Raises Unsupported for this many ranks."""
    schedule = build("allreduce", name, transport.world.size)
    layout = Layout.of(schedule, SPEC)
    program = lower(schedule, layout, transport.world.rank, len(source), in_place=in_place)
    scratch = transport.allocate(program.elements[Buffer.SCRATCH] * source.itemsize)
    buffers = {Buffer.IN: source, Buffer.OUT: target, Buffer.SCRATCH: scratch.view(source.dtype)}
    return Bound(transport.prepare(program, buffers, SUM), len(program.steps))


# -- right results


def inputs(rank: int, kind: str) -> np.ndarray[Any, Any]:
    """What repeats in a rank's input: whole numbers whose sums every type holds exactly."""
    return ((np.arange(PERIOD) + 7 * rank) % 5 + 1).astype(dtype(kind))


def fill(device: Device, stream: Any, array: DeviceArray, tile: np.ndarray[Any, Any]) -> None:
    """Repeat a tile over an array."""
    raw, bytes_ = array.view(np.uint8), tile.view(np.uint8)
    filled = min(len(bytes_), len(raw))
    raw[:filled] = bytes_[:filled]
    while filled < len(raw):
        more = min(filled, len(raw) - filled)
        device.copy(raw.address + filled, raw.address, more, stream)
        stream.synchronize()
        filled += more


def differ(device: Device, array: DeviceArray, tile: np.ndarray[Any, Any]) -> bool:
    """Whether an array is anything but a repeated tile, every byte compared."""
    raw, bytes_ = array.view(np.uint8), tile.view(np.uint8)
    if len(raw) < LARGE or not hasattr(device.xp, "asarray"):
        return not np.array_equal(raw.host(), np.resize(bytes_, len(raw)))
    xp = device.xp
    there, wanted = xp.asarray(raw), xp.asarray(bytes_)
    whole = len(raw) // len(bytes_) * len(bytes_)
    wrong = bool((there[:whole].reshape(-1, len(bytes_)) != wanted).any())
    wrong |= bool((there[whole:] != wanted[: len(raw) - whole]).any())
    del there, wanted
    xp.get_default_memory_pool().free_all_blocks()
    return wrong


def judge(transport: Any, sizes: Sequence[int], kinds: Sequence[str]) -> dict[str, list[str]]:
    """Every algorithm at every size and type, eager and from a graph; what was wrong, by name.

    A name without an entry is refused for this many ranks. All ranks get the same.
    """
    world: World = transport.world
    device, stream = transport.device, transport.lane.stream
    found: dict[str, list[str]] = {}
    for kind in kinds:
        wanted = sum(inputs(rank, kind).astype(np.float64) for rank in range(world.size))
        tile = np.asarray(wanted).astype(dtype(kind))
        for size in sizes:
            elements = max(1, size // dtype(kind).itemsize)
            room = int(world.broadcast(device.memory()[0]))
            if world.size * size * VECTORS > room:
                found.setdefault(f"({size} bytes: GPU memory is too small)", [])
                continue
            source, target = (
                transport.allocate(elements * dtype(kind).itemsize).view(dtype(kind))
                for _ in range(2)
            )
            fill(device, stream, source, inputs(world.rank, kind))
            for name in algorithms("allreduce"):
                try:
                    one = bound(transport, name, source, target)
                except Unsupported:
                    continue
                wrong = False
                for _ in range(2):
                    target.view(np.uint8)[:] = POISON
                    world.barrier()
                    one.action()
                    wrong |= differ(device, target, tile)
                    world.barrier()
                one.action.close()
                ranks = [r for r, bad in enumerate(world.gather(wrong)) if bad]
                found.setdefault(name, [])
                if ranks:
                    found[name].append(f"{size} B {kind} on ranks {ranks}")
    return found


def verdicts(title: str, found: dict[int, dict[str, list[str]]], what: str) -> list[str]:
    """A table of algorithms by ranks."""
    names = sorted({name for one in found.values() for name in one})
    lines = [title, "", what, ""]
    lines += [f"| algorithm | {' | '.join(f'{n} ranks' for n in found)} |"]
    lines += ["|---" * (1 + len(found)) + "|"]
    for name in names:
        cells = []
        for one in found.values():
            wrong = one.get(name)
            if name.startswith("("):
                cells.append("skipped" if name in one else "done")
            else:
                cells.append("refused" if wrong is None else "right" if not wrong else wrong[0])
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def right(cupy: Any, sizes: Sequence[int] = SIZES, ranks: Sequence[int] = (2, 4, 8)) -> list[str]:
    """Every all-reduce over ipc, ranks as threads."""
    found: dict[int, dict[str, list[str]]] = {}
    for n in ranks:
        found[n] = on_threads(cupy, n, lambda transport: judge(transport, sizes, KINDS))
    return verdicts("### Right over `ipc`, ranks as threads", found, _told(sizes, KINDS))


def right_over_nccl(
    cupy: Any, nccl: Any, sizes: Sequence[int] = SIZES, ranks: Sequence[int] = (2, 4)
) -> list[str]:
    """Every all-reduce over nccl, ranks as threads that share the GPU."""
    from collectives.transports.nccl import NcclTransport

    os.environ.update(
        pick.oversubscribed(
            ["one GPU"] * max(ranks), int(nccl.get_version()), 0, threads=True, env=os.environ
        )
    )

    def make(world: World, device: Device) -> NcclTransport:
        return NcclTransport(world, device, nccl, cold=False, deadline=DEADLINE_S)

    found: dict[int, dict[str, list[str]]] = {}
    for n in ranks:
        found[n] = on_threads(cupy, n, lambda t: judge(t, sizes, KINDS), make)
    title = "### Right over `nccl`, ranks as threads on one GPU"
    return verdicts(title, found, _told(sizes, KINDS))


def _told(sizes: Sequence[int], kinds: Sequence[str]) -> str:
    return (
        f"Sizes {', '.join(map(str, sizes))} bytes; {', '.join(kinds)}; sum; fired twice, the second"
        " time from a graph; every byte compared, over poisoned memory."
    )


def on_threads(
    cupy: Any,
    nranks: int,
    body: Callable[[Any], Any],
    make: Callable[[World, Device], Any] | None = None,
    **options: Any,
) -> Any:
    """What rank 0's ``body(transport)`` gives, with so many ranks on GPU 0."""

    def rank(world: Any) -> Any:
        device = Device(cupy, 0)
        given = {"deadline": DEADLINE_S, **options}
        transport = make(world, device) if make else IpcTransport(world, device, **given)
        result = body(transport)
        world.barrier()
        transport.close()
        return result

    return run(nranks, rank, deadline=20 * DEADLINE_S)[0]
