"""The sections of gpu_one.py on speed: two-shot, small sizes, what plans cost, NCCL alone."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

import numpy as np
from gpu_right import DEADLINE_S, GB, KB, MB, SPEC, SUM, Bound, bound, fill, inputs, on_threads

from collectives.catalogue import build
from collectives.gpu.device import Device
from collectives.gpu.ipc_fire import EXECUTORS
from collectives.gpu.lane import Lane
from collectives.layout import Layout
from collectives.moves import Buffer
from collectives.shared.ceiling import least
from collectives.transport import LibraryCall
from collectives.world import World
from collectives.worlds.inproc import run

SIZES = (64 * MB, 256 * MB, GB)


def source_of(transport: Any, size: int) -> Any:
    """A rank's input of so many bytes: floats that are not all alike, since zeros may run faster."""
    source = transport.allocate(size).view(np.float32)
    fill(transport.device, transport.lane.stream, source, inputs(transport.world.rank, "float"))
    return source


def copy_rate(cupy: Any, nbytes: int = GB, turns: int = 10) -> float:
    """Bytes per second, read and written both counted, of a copy inside the GPU; the median."""

    def body(world: Any) -> float:
        device = Device(cupy, 0)
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


def timed(transport: Any, one: Bound, firings: int, repeats: int) -> list[float]:
    """Seconds of a firing, firings back to back: of the slowest rank, several times over."""
    one.action.times(firings, True)
    own = [one.action.times(firings, True)[0] / firings for _ in range(repeats)]
    return [float(x) for x in transport.world.combine(np.array(own), "max")]


def two_shot(cupy: Any, sizes: Sequence[int] = SIZES, ranks: Sequence[int] = (2, 4)) -> list[str]:
    """The share of what the copy rate allows for the bytes that two-shot must move."""
    rate = copy_rate(cupy, max(sizes))
    lines = [
        "### Two-shot over peer memory, ranks as threads",
        "",
        f"A copy inside the GPU moves {rate / 1e9:.0f} GB/s, read and written both counted (median of"
        " 10). `sharded_ps`, float sum, 20 firings back to back as graphs, median of 5 (and range).",
        "",
        "| ranks | bytes | placement | time (us) | moved (GB/s) | share of the copy rate |",
        "|---|---|---|---|---|---|",
    ]
    for n in ranks:
        for size in sizes:
            for in_place in (False, True):

                def body(transport: Any, size: int = size, in_place: bool = in_place) -> Any:
                    source = source_of(transport, size)
                    target = source if in_place else source_of(transport, size)
                    one = bound(transport, "sharded_ps", source, target, in_place)
                    return timed(transport, one, 20, 5)

                times = on_threads(cupy, n, body)
                layout = Layout.of(build("allreduce", "sharded_ps", n), SPEC)
                # Elements of a part: the vector is one part.
                moved = least(layout, size // 4, 4, in_place)
                speed = (moved.reads + moved.writes) / median(times)
                where = "in" if in_place else "out"
                lines.append(
                    f"| {n} | {size} | {where} | {_us(times)} | {speed / 1e9:.0f} |"
                    f" {100 * speed / rate:.0f} % |"
                )
    return lines


def small(cupy: Any, size: int = 4 * KB, ranks: Sequence[int] = (2, 4, 8)) -> list[str]:
    """Small all-reduces, timed by events round graphs."""
    lines = [
        f"### {size} bytes, ranks as threads",
        "",
        "Float sum, 200 firings back to back as graphs, median of 7 (and range).",
        "",
        "| ranks | algorithm | time (us) |",
        "|---|---|---|",
    ]
    for n in ranks:
        for name in ("one_shot", "sharded_ps", "ring"):

            def body(transport: Any, name: str = name) -> Any:
                source, target = (source_of(transport, size) for _ in range(2))
                return timed(transport, bound(transport, name, source, target), 200, 7)

            lines.append(f"| {n} | {name} | {_us(on_threads(cupy, n, body))} |")
    return lines


def overhead(cupy: Any, size: int = KB, ranks: Sequence[int] = (2, 4)) -> list[str]:
    """What plans cost beside moving bytes: eager and from a graph, in each way of firing."""
    lines = [
        "### Plan overhead",
        "",
        f"Ring all-reduce of {size} bytes, no gate, so that enqueueing is inside: microseconds a step"
        " of the schedule.",
        "",
        "| ranks | executor | steps | eager (us/step) | graph (us/step) |",
        "|---|---|---|---|---|",
    ]
    for n in ranks:
        for executor in EXECUTORS:

            def body(transport: Any) -> Any:
                source, target = (source_of(transport, size) for _ in range(2))
                one = bound(transport, "ring", source, target)
                return one.steps, one.action.overhead(50)

            steps, took = on_threads(cupy, n, body, executor=executor)
            cells = [
                f"{took[w] * 1e6 / steps:.2f}" if w in took else "-" for w in ("eager", "graph")
            ]
            lines.append(f"| {n} | {executor} | {steps} | {' | '.join(cells)} |")
    return lines


def baseline(cupy: Any, nccl: Any, sizes: Sequence[int] = (MB, 16 * MB, 256 * MB, GB)) -> list[str]:
    """NCCL's own all-reduce on 1 rank, and what nccl-tests would call its numbers."""
    from collectives.transports.nccl import NcclTransport

    lines = [
        "### NCCL alone, 1 rank",
        "",
        "As nccl-tests reckons: algbw is bytes over time, busbw that times 2(n-1)/n, so 0 on 1 rank,"
        " where out of place is a copy inside the GPU and in place nothing moves. Median of 20.",
        "",
        "| bytes | out of place (us) | algbw (GB/s) | in place (us) | busbw (GB/s) |",
        "|---|---|---|---|---|",
    ]

    def make(world: World, device: Device) -> NcclTransport:
        return NcclTransport(world, device, nccl, cold=False, deadline=DEADLINE_S)

    for size in sizes:

        def body(transport: Any, size: int = size) -> list[float]:
            source, target = (source_of(transport, size) for _ in range(2))
            found = []
            for other in (target, source):
                action = transport.library(
                    LibraryCall(
                        SPEC,
                        {Buffer.IN: source, Buffer.OUT: other},
                        SUM,
                        size // 4,
                        in_place=other is source,
                    )
                )
                found.append(median(action.times(20, False)))
                action.close()
            return found

        out, inside = on_threads(cupy, 1, body, make)
        lines.append(
            f"| {size} | {out * 1e6:.1f} | {size / max(out, 1e-9) / 1e9:.0f} | {inside * 1e6:.1f} |"
            f" {size / max(out, 1e-9) / 1e9 * SPEC.bus_factor(1):.0f} |"
        )
    return lines


def _us(times: Sequence[float]) -> str:
    return f"{median(times) * 1e6:.1f} ({min(times) * 1e6:.1f} to {max(times) * 1e6:.1f})"
