"""The sections of gpu_one.py on speed: two-shot, small sizes, overhead of plans, NCCL alone."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing
from itertools import product
from statistics import median
from typing import Any

import numpy as np
from gpu_page import Page
from gpu_right import DEADLINE_S, KB, MB, SPEC, SUM, Bound, bound, fill, inputs, on_threads

from collectives.execution.gpu.device import GpuDevice
from collectives.execution.gpu.lane import Lane
from collectives.execution.inproc.world import run
from collectives.execution.nccl.transport import library_calls
from collectives.execution.roofline import least
from collectives.execution.transport import LibraryCall, Start
from collectives.execution.world import World
from collectives.schedule.catalogue import build
from collectives.schedule.layout import Layout
from collectives.schedule.moves import Buffer


def source_of(transport: Any, size: int) -> Any:
    """A rank's input of ``size`` bytes: floats that differ, since zeros may run faster."""
    source = transport.allocate(size).view(np.float32)
    fill(transport.device, transport.lane.stream, source, inputs(transport.world.rank, "float"))
    return source


def copy_rate(cupy: Any, nbytes: int, turns: int = 10) -> float:
    """Median bytes per second of a copy inside the GPU, counting bytes read and bytes written."""

    def body(world: Any) -> float:
        device = GpuDevice(cupy, 0)
        lane = Lane(device, world)
        a, b = device.allocate(nbytes), device.allocate(nbytes)
        times = []
        for _ in range(turns + 1):
            start = lane.event()
            device.copy(b.address, a.address, nbytes, lane.stream)
            end = lane.event()
            lane.wait()
            times.append(device.elapsed(start, end))
        return 2 * nbytes / median(times[1:])

    return float(run(1, body)[0])


def timed(transport: Any, one: Bound, iterations: int, repeats: int) -> list[float]:
    """Seconds per iteration on the slowest rank, for each of ``repeats`` back-to-back runs."""
    start = Start(transport.world.barrier, loop=True)
    one.action.spans(iterations, start)
    own = [one.action.spans(iterations, start).seconds[0] / iterations for _ in range(repeats)]
    return [float(x) for x in transport.world.combine(np.array(own), "max")]


def moved(n: int, size: int, in_place: bool) -> int:
    """Bytes that an all-reduce of n ranks on one GPU must read and write."""
    # Elements of a part: the vector is one part.
    layout = Layout.of(build("allreduce", "sharded_ps", n), SPEC)
    found = least(layout, size // 4, 4, in_place)
    return found.reads + found.writes


def two_shot(
    page: Page, cupy: Any, sizes: Sequence[int], ranks: Sequence[int], repeats: int
) -> None:
    """Measure two-shot all-reduces: bytes that must be moved per second, over the copy rate."""
    rates = {size: copy_rate(cupy, size) for size in sizes}
    page.table(
        "Two-shot over peer memory, ranks as threads",
        "`sharded_ps`, each rank doing its own moves, and `worksharing`, which moves no more than"
        " must move. n ranks must read and write 2nS bytes; two-shot writes and reads a sum once"
        " more, (2n + 1)S, so its share is at most 2n/(2n + 1) where no cache holds it. Float sum,"
        " 20 iterations back to back as graphs, the slowest rank, median of"
        f" {repeats} (and range), against a copy of as many bytes inside the GPU, read and written"
        " both counted (median of 10).",
        (
            "ranks", "bytes", "placement", "contender", "time (us)", "needed (GB/s)", "copy (GB/s)",
            "share (%)", "at most (%)",
        ),
    )  # fmt: skip
    for n, size, in_place in product(ranks, sizes, (False, True)):
        for name in ("sharded_ps", "worksharing"):

            def body(
                transport: Any, size: int = size, in_place: bool = in_place, name: str = name
            ) -> Any:
                source = source_of(transport, size)
                target = source if in_place else source_of(transport, size)
                one = bound(transport, name, source, target, in_place)
                return timed(transport, one, 20, repeats)

            times = on_threads(cupy, n, body)
            speed = moved(n, size, in_place) / median(times)
            share, where = 100 * speed / rates[size], "in" if in_place else "out"
            gbs = speed / 1e9, rates[size] / 1e9
            most = 100.0 if name == "worksharing" else 100 * 2 * n / (2 * n + 1)
            page.row(n, size, where, name, _us(times), *gbs, share, most, seconds=times)


def blocks(page: Page, cupy: Any, size: int, ranks: Sequence[int]) -> None:
    """Measure `worksharing` and `sharded_ps` by the number of blocks that a rank may use."""
    page.table(
        f"{size} bytes by blocks of a rank",
        "Out of place, float sum, 20 iterations back to back as graphs, the slowest rank, median of"
        " 3 (range). 0: as many as are resident.",
        ("ranks", "contender", "blocks", "time (us)"),
    )
    for n, name, most in product(ranks, ("sharded_ps", "worksharing"), (16, 32, 64, 128, 0)):

        def body(transport: Any, name: str = name) -> Any:
            source, target = (source_of(transport, size) for _ in range(2))
            return timed(transport, bound(transport, name, source, target), 20, 3)

        times = on_threads(cupy, n, body, blocks=most)
        page.row(n, name, most, _us(times), seconds=times)


def small(page: Page, cupy: Any, size: int, ranks: Sequence[int], repeats: int) -> None:
    """Measure small all-reduces as graphs, timed by events."""
    page.table(
        f"{size} bytes, ranks as threads",
        f"Float sum, 200 iterations back to back as graphs, the slowest rank, median of {repeats}"
        " (range).",
        ("ranks", "algorithm", "time (us)"),
    )
    for n in ranks:
        for name in ("one_shot", "sharded_ps", "ring"):

            def body(transport: Any, name: str = name) -> Any:
                source, target = (source_of(transport, size) for _ in range(2))
                return timed(transport, bound(transport, name, source, target), 200, repeats)

            times = on_threads(cupy, n, body)
            page.row(n, name, _us(times), seconds=times)


def overhead(page: Page, cupy: Any, ranks: Sequence[int] = (1, 2, 4), size: int = KB) -> None:
    """Measure the time that plans add to moving bytes: eager and from a graph."""
    page.table(
        "Plan overhead",
        f"Ring all-reduce of {size} bytes, no gate, so that enqueueing is inside: microseconds an"
        " iteration. Ranks are threads and share one interpreter, so eager iterations of n ranks"
        " are enqueued one after the other; 1 rank has it alone.",
        ("ranks", "steps", "eager (us), one interpreter", "graph (us)"),
    )
    for n in ranks:

        def body(transport: Any) -> Any:
            source, target = (source_of(transport, size) for _ in range(2))
            one = bound(transport, "ring", source, target)
            return one.steps, one.action.overhead(50)

        steps, took = on_threads(cupy, n, body)
        cells = [took[way] * 1e6 if way in took else "-" for way in ("eager", "graph")]
        page.row(n, steps, *cells)


JUDGED = 256 * MB  # bytes from which two clocks are held against each other, within 2 %


def baseline(page: Page, cupy: Any, nccl: Any, sizes: Sequence[int]) -> None:
    """Measure NCCL's own all-reduce on 1 rank, by Busbar's clock and by nccl-tests' method."""
    from collectives.execution.nccl.transport import NcclTransport

    page.table(
        "NCCL alone, 1 rank",
        "Out of place a copy inside the GPU; in place NCCL enqueues nothing on one rank. Each:"
        " events round each of 20 iterations as graphs, the median. Loop: 20 back to back, launched"
        " eagerly (`--timing loop --graph off --cache warm`), median of 5. nccl-tests' protocol: 20"
        " calls after 5, one stream, the host's clock from the first call to the end of the stream;"
        f" median of 5. From {JUDGED // MB} MB on each is held against the protocol; below,"
        " launches take part of the protocol's time, and loop is what compares.",
        ("bytes", "each (us)", "loop (us)", "protocol (us)", "held against it", "differs (%)",
         "algbw (GB/s)"),
    )  # fmt: skip

    def make(world: World, device: GpuDevice) -> NcclTransport:
        return NcclTransport(world, device, nccl, cold=False, deadline=DEADLINE_S)

    def eager(world: World, device: GpuDevice) -> NcclTransport:
        return NcclTransport(world, device, nccl, graph=False, cold=False, deadline=DEADLINE_S)

    for size in sizes:

        def call(transport: Any, size: int = size) -> LibraryCall:
            source, target = (source_of(transport, size) for _ in range(2))
            buffers = {Buffer.IN: source, Buffer.OUT: target}
            return LibraryCall(SPEC, buffers, SUM, size // 4, in_place=False)

        def each(transport: Any, call: Any = call) -> float:
            with closing(transport.library(call(transport))) as action:
                return float(np.median(action.spans(20, Start(transport.world.barrier)).seconds))

        def loop(transport: Any, call: Any = call) -> tuple[float, float]:
            one = call(transport)
            with closing(transport.library(one)) as action:
                back_to_back = Start(transport.world.barrier, loop=True)
                took = median(action.spans(20, back_to_back).seconds[0] / 20 for _ in range(5))
            return took, _protocol(transport.lane, library_calls(transport, one))

        ours = on_threads(cupy, 1, each, make)
        back_to_back, theirs = on_threads(cupy, 1, loop, eager)
        name, held = ("each", ours) if size >= JUDGED else ("loop", back_to_back)
        differs = 100 * (held - theirs) / theirs
        times = (took * 1e6 for took in (ours, back_to_back, theirs))
        page.row(size, *times, name, differs, size / max(ours, 1e-9) / 1e9)


def _protocol(lane: Lane, calls: list[Any], n: int = 20) -> float:
    """Seconds per call, measured as nccl-tests does."""
    lane.enqueue(calls * 5)
    lane.stream.synchronize()
    rounds = []
    for _ in range(5):
        start = time.perf_counter()
        lane.enqueue(calls * n)
        lane.stream.synchronize()
        rounds.append((time.perf_counter() - start) / n)
    return median(rounds)


def _us(times: Sequence[float]) -> str:
    return f"{median(times) * 1e6:.1f} ({min(times) * 1e6:.1f} to {max(times) * 1e6:.1f})"
