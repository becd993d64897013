"""Plans of parts that wait for nobody: a rank its own, or whoever has a core those of who has none.

What depends on each other is a *chain*: the ring's moves of one chunk, through all ranks, are one.
Chains share nothing that is written, so any process may carry one out alone, window by window and
without waiting: what one rank's pass leaves for the next rank is then still in a cache. For ranks
that outnumber the cores (docs/shared-memory.md, "Turns").
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from types import ModuleType
from typing import Any

import numpy as np

from collectives.ops import Op
from collectives.shared.fast import Binding, op_number, task_numbers, type_number
from collectives.shared.flow import ENTRY, STAGE, Flow, Work
from collectives.shared.tasks import Place

__all__ = ["WINDOWS_BYTES", "Piece", "apart", "can_pool", "chains", "parts", "pooled"]

# Ranks that a word of a pooled plan can tell apart (`kRankBits` in native/src/plans.cpp).
MOST_POOLED = 4096
# Bytes of all places of a chain that a window touches: what stays in a core's second-level cache.
WINDOWS_BYTES = 512 << 10
# Pieces begin at multiples of this, so that no two processes write one pair of cache lines.
PIECE_BYTES = 4096


@dataclass(frozen=True)
class Piece:
    """Elements ``start`` to ``start + size`` of all passes of a chain, which are in order."""

    works: tuple[Work, ...]
    start: int
    size: int


def can_pool(found: Flow) -> bool:
    """Whether a pooled plan waits for nothing that the schedule does not wait for.

    So it is where nobody could leave before all have entered. And what depends on what must be known.
    """
    if not found.aligned and (found.crossing or any(found.slots)):
        return False
    return found.joined and len(found.works) <= MOST_POOLED


def chains(found: Flow) -> list[tuple[Work, ...]]:
    """The passes of all ranks by what depends on each other, each chain in order.

    Where places were not cut into matching pieces, a rank's passes are one.
    """
    if not found.aligned:
        return [works for works in found.works if works]
    head = list(range(len(found.order)))

    def root(i: int) -> int:
        while head[i] != i:
            head[i] = head[head[i]]
            i = head[i]
        return i

    writer: dict[Place, int] = {}
    readers: dict[Place, list[int]] = defaultdict(list)
    for i, work in enumerate(found.order):
        for place in work.sources:
            if place in writer:
                head[root(i)] = root(writer[place])
            readers[place].append(i)
        for place in work.targets:
            # What is put aside is put aside for the step: the next user of the slot begins anew.
            before = [*readers.pop(place, []), *([writer[place]] if place in writer else [])]
            for j in before if place.segment != STAGE else []:
                head[root(i)] = root(j)
            writer[place] = i
    joined: dict[int, list[Work]] = defaultdict(list)
    for i, work in enumerate(found.order):
        joined[root(i)].append(work)
    return sorted(map(tuple, joined.values()), key=lambda works: works[0].rank)


def parts(found: Flow, grain: int) -> list[list[Piece]]:
    """As many parts as ranks, of like work; chains are cut where that needs it.

    ``grain``: elements that a piece is a multiple of, but for the last of a chain.
    """
    nranks = len(found.works)
    every = [
        (works, max(w.size for w in works), sum(w.moved for w in works)) for works in chains(found)
    ]
    share = max(sum(moved for _, _, moved in every) / nranks, 1)
    cut: list[list[Piece]] = [[] for _ in range(nranks)]
    before = 0
    for works, size, moved in every:
        bounds = ((share * n - before) * size / max(moved, 1) for n in range(1, nranks))
        inner = {round(b / grain) * grain for b in bounds} if found.aligned else set()
        edges = [0, *sorted(b for b in inner if 0 < b < size), size]
        for start, end in pairwise(edges):
            middle = before + moved * (start + end) / 2 / max(size, 1)
            cut[min(int(middle / share), nranks - 1)].append(Piece(works, start, end - start))
        before += moved
    return cut


def apart(found: Flow) -> tuple[Flow, int]:
    """What `can_pool` as the work of ranks that wait for all to enter, and for all to be done.

    Every element of what is given stands for so many (the second) of what is returned.
    """
    nranks = len(found.works)
    fine = nranks if found.aligned else 1

    def moved(place: Place, start: int) -> Place:
        put_aside = place.segment == STAGE
        return place if put_aside else place._replace(start=place.start * fine + start)

    others = [[(peer, ENTRY) for peer in range(nranks) if peer != rank] for rank in range(nranks)]
    works = tuple(
        tuple(
            replace(
                work,
                rank=rank,
                size=piece.size if found.aligned else work.size,
                targets=[moved(p, piece.start) for p in work.targets],
                sources=[moved(p, piece.start) for p in work.sources],
                waits=others[rank],
                stage=0,
            )
            for piece in pieces
            for work in piece.works
        )
        for rank, pieces in enumerate(parts(found.resized(lambda size: size * fine), 1))
    )
    last = [(rank, len(mine) - 1) for rank, mine in enumerate(works) if mine]
    exits = tuple(tuple(end for end in last if end[0] != rank) for rank in range(nranks))
    order = tuple(work for mine in works for work in mine)
    return Flow(works, exits, found.slots, found.aligned, order, True), fine


def _window(piece: Piece, aligned: bool, itemsize: int) -> int:
    """Elements that a pass covers before the next one of the chain follows."""
    if len(piece.works) == 1 or not aligned:
        return max(piece.size, 1)
    places = {p for w in piece.works for p in (*w.targets, *w.sources)}
    return max(WINDOWS_BYTES // len(places), PIECE_BYTES) // itemsize


def pooled(
    core: ModuleType,
    watch: Any,
    lines: int,
    to: Binding,
    found: Flow,
    op: Op | None,
    past: Callable[[Work], set[Place]],
    shared: bool,
) -> tuple[Any, Any]:
    """A plan for what `can_pool`, and the staging that it needs to keep alive.

    ``lines``: where the plan's words begin. ``past``: targets of a pass that are stored past the caches. ``shared``: whether whoever has a
    core does the parts of others; a rank does its own where not.
    """
    itemsize = to.dtype.itemsize
    every = parts(found, PIECE_BYTES // itemsize)
    windows = [[_window(piece, found.aligned, itemsize) for piece in part] for part in every]
    # What is put aside is in chains of several passes.
    widest = max(
        (_window(p, True, itemsize) for part in every for p in part if p.works[1:]), default=0
    )
    slots = [sum(found.slots[:rank]) for rank in range(len(found.slots) + 1)]
    stage = np.empty(slots[-1] * widest, to.dtype)

    def address(start: int, place: Place) -> int:
        if place.segment == STAGE:
            slot = slots[place.rank] + place.start
            return int(stage.ctypes.data) + slot * widest * itemsize
        return to.address(place) + start * itemsize

    numbers = [len(every)]
    for pieces, sizes in zip(every, windows, strict=True):
        numbers.append(len(pieces))
        for piece, window in zip(pieces, sizes, strict=True):
            numbers += [window, len(piece.works)]
            for work in piece.works:
                size = piece.size if found.aligned else work.size
                at = partial(address, piece.start)
                numbers += task_numbers(work, size, [0], at, past(work))
    described = np.array(numbers, np.int64)
    plan = core.pooled(watch, lines, type_number(to.dtype), op_number(op), described, shared)
    return plan, stage
