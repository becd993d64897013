"""What can be wrong with an MSCCL file, one change at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from collectives.formats.msccl import OPERATIONS, Algorithm, ThreadblockStep

Change = tuple[str, Algorithm]


def _with(algorithm: Algorithm, gpu: int, tb: int, **fields: object) -> Algorithm:
    """The algorithm with one threadblock (by position) changed."""
    blocks = list(algorithm.gpus[gpu].threadblocks)
    blocks[tb] = replace(blocks[tb], **fields)  # type: ignore[arg-type]
    gpus = list(algorithm.gpus)
    gpus[gpu] = replace(gpus[gpu], threadblocks=tuple(blocks))
    return replace(algorithm, gpus=tuple(gpus))


def _steps(step: ThreadblockStep) -> Iterator[tuple[str, ThreadblockStep]]:
    does = step.operation
    if step.depid >= 0:
        yield "dependency", step._replace(depid=-1, deps=-1)
    if step.hasdep:
        yield "signal", step._replace(hasdep=0)
    if step.type == "nop" or not step.cnt:
        return
    for by in (-1, 1):
        if does.reads:
            yield "offset", step._replace(srcoff=step.srcoff + by)
        if does.writes:
            yield "offset", step._replace(dstoff=step.dstoff + by)
    for kind in OPERATIONS:
        if kind != step.type:
            yield "type", step._replace(type=kind)
    yield "count", step._replace(cnt=step.cnt + 1)
    if step.cnt > 1:
        yield "count", step._replace(cnt=step.cnt - 1)
    for buffer in "ios":
        if does.reads and buffer != step.srcbuf:
            yield "buffer", step._replace(srcbuf=buffer)
        if does.writes and buffer != step.dstbuf:
            yield "buffer", step._replace(dstbuf=buffer)


def changes(algorithm: Algorithm, gpu: int, t: int) -> Iterator[Change]:
    """Every single change of one threadblock (by position), lazily."""
    tb = algorithm.gpus[gpu].threadblocks[t]
    for peer in range(-1, algorithm.ngpus):
        for end in ("send", "recv"):
            if getattr(tb, end) not in (-1, peer):
                yield "peer", _with(algorithm, gpu, t, **{end: peer})
    for at, step in enumerate(tb.steps):
        before, after = tb.steps[:at], tb.steps[at + 1 :]
        if step.type != "nop":
            yield "dropped", _with(algorithm, gpu, t, steps=before + after)
        for kind, new in _steps(step):
            yield kind, _with(algorithm, gpu, t, steps=(*before, new, *after))


def mutants(algorithm: Algorithm) -> Iterator[Change]:
    """Every single change of every step and threadblock, lazily."""
    for gpu in algorithm.gpus:
        for t in range(len(gpu.threadblocks)):
            yield from changes(algorithm, gpu.id, t)
