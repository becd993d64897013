"""Work-sharing plans: independent parts, run by their owner or by any rank that has a core.

They show how fast a collective could be in this memory. Each part of the vector is one pass over
the memory of all ranks that have it and all that want it, which is the least memory traffic
possible. The passes are divided equally among all processes, as OpenMP's work-sharing constructs
divide the iterations of a loop. No schedule is used. docs/measuring.md says what this is for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from busbar.errors import Unsupported
from collectives.execution.shm.bound import Bound, Built, HostTransport
from collectives.execution.shm.dependences import ENTRY, DependenceGraph, mark_cold
from collectives.execution.shm.pass_plans import direct, worksharing
from collectives.execution.shm.passes import Work
from collectives.execution.shm.tasks import Place
from collectives.execution.transport import Array, LibraryCall, Spans, Start, spans_from_python
from collectives.execution.world import Json
from collectives.schedule.layout import Elements, Layout
from collectives.schedule.moves import Buffer
from collectives.schedule.ops import scale

if TYPE_CHECKING:
    from native._core import Plan

# The most ranks that a word of a work-sharing plan can tell apart (`kRankBits` in
# native/src/plans.cpp).
MOST_RANKS = 4096
# Pieces begin at multiples of this, so that no two processes write one pair of cache lines.
PIECE_BYTES = 4096

Where = Callable[[int, Buffer], tuple[int, int]]
"""The segment of a rank's ``in`` or ``out``, and the element at which the buffer begins there."""


def ends(places: Mapping[Buffer, tuple[int, int]]) -> Json:
    """A rank's message for `shared_out`: where its ``in`` and ``out`` begin."""
    return [places[Buffer.IN], places[Buffer.OUT]]


def shared_out(call: LibraryCall, everyone: Sequence[Json], itemsize: int) -> DependenceGraph:
    """The passes of a collective, cut and divided among as many processes as ranks.

    ``everyone``: the message of each rank, by `ends`. Every process waits until all ranks have
    entered, and leaves when all passes are done.
    """
    nranks, spec = len(everyone), call.spec
    layout = Layout(spec, nranks, spec.parts(nranks), call.root)

    def where(rank: int, buffer: Buffer) -> tuple[int, int]:
        segment, start = everyone[rank][buffer is Buffer.OUT]
        return segment, start

    grain = max(1, PIECE_BYTES // itemsize)
    dealt = _deal(list(_passes(layout, call.elements, where)), nranks, grain)
    ranks = range(nranks)
    for rank, works in enumerate(dealt):
        for number, work in enumerate(works):
            work.rank, work.published = rank, number == len(works) - 1
            work.waits = [(peer, ENTRY) for peer in ranks if peer != rank] if not number else []
    last = [(rank, len(works) - 1 if works else ENTRY) for rank, works in enumerate(dealt)]
    exits = tuple(tuple(end for end in last if end[0] != rank) for rank in ranks)
    order = tuple(work for works in dealt for work in works)
    mark_cold(order)
    return DependenceGraph(tuple(map(tuple, dealt)), exits, (0,) * nranks, True, order)


def traffic(graph: DependenceGraph, rank: int) -> tuple[int, int]:
    """Elements that leave a rank's memory or that it stores elsewhere, and those that come in."""
    out = into = 0
    for work in graph.order:
        mine = work.rank == rank
        out += work.size * sum(p.rank == rank != work.rank for p in work.sources)
        into += work.size * sum(p.rank == rank != work.rank for p in work.targets)
        out += work.size * mine * sum(p.rank != rank for p in work.targets)
        into += work.size * mine * sum(p.rank != rank for p in work.sources)
    return out, into


def _passes(layout: Layout, elements: Elements, where: Where) -> Iterable[Work]:
    """One pass for every part that any rank needs, not yet assigned to a rank."""
    nparts = layout.spec.parts(layout.nranks)
    sizes = np.broadcast_to(np.asarray(elements, np.int64), nparts).tolist()
    by_buffer: dict[Buffer, list[list[Place]]] = {}
    for buffer in (Buffer.IN, Buffer.OUT):
        places: list[list[Place]] = [[] for _ in range(nparts)]
        for rank in range(layout.nranks):
            segment, at = where(rank, buffer)
            for part in layout.parts(rank, buffer).tolist():
                places[part].append(Place(rank, segment, at))
                at += sizes[part]
        by_buffer[buffer] = places
    for size, sources, targets in zip(
        sizes, by_buffer[Buffer.IN], by_buffer[Buffer.OUT], strict=True
    ):
        wanting = targets if sources[1:] else [p for p in targets if p not in sources]
        if size and sources and wanting:
            yield Work(0, size, list(wanting), list(sources))


def _deal(passes: list[Work], nranks: int, grain: int) -> list[list[Work]]:
    """Deal passes to ``nranks`` lists of equal work; cuts are at multiples of ``grain``."""
    share = max(sum(work.moved for work in passes) / nranks, 1.0)
    dealt: list[list[Work]] = [[] for _ in range(nranks)]
    before = 0
    for work in passes:
        each = len(work.places)
        bounds = ((share * n - before) / each for n in range(1, nranks))
        inner = {round(bound / grain) * grain for bound in bounds}
        edges = [0, *sorted(b for b in inner if 0 < b < work.size), work.size]
        for start, end in pairwise(edges):
            middle = before + each * (start + end) / 2
            dealt[min(int(middle / share), nranks - 1)].append(_piece(work, start, end))
        before += work.moved
    return dealt


def _piece(work: Work, start: int, end: int) -> Work:
    def moved(places: list[Place]) -> list[Place]:
        return [place._replace(start=place.start + start) for place in places]

    return Work(work.rank, end - start, moved(work.targets), moved(work.sources))


class WorkSharing(Bound):
    """A collective on shared buffers, with its work shared among all ranks' processes.

    If ranks outnumber the cores and a yield passes a core on, a rank with a core also runs the
    parts of ranks without. Raises Unsupported for more ranks than a plan can tell apart.
    """

    def __init__(self, transport: HostTransport, call: LibraryCall) -> None:
        if transport.world.size > MOST_RANKS:
            raise Unsupported(f"work sharing serves at most {MOST_RANKS} ranks")
        self._call = call
        super().__init__(transport, call.buffers)

    def _message(self, places: Mapping[Buffer, tuple[int, int]]) -> Json:
        return ends(places)

    def _build(self, everyone: list[Json]) -> Built:
        transport, call = self.transport, self._call
        watch = transport.watch
        graph = shared_out(call, everyone, self.dtype.itemsize)

        def build(
            at: int, some: DependenceGraph, past: Callable[[Work], set[Place]]
        ) -> tuple[Plan, Array | None]:
            if transport.yields:
                return worksharing(watch, at, self, some, call.op, past), None
            return direct(watch, at, self, some, transport.cores, call.op, past)

        return self.with_best_stores(graph, lambda work: work.cold, build)

    def __call__(self) -> None:
        """See `Action.__call__`. Raises RankFailure if another rank is lost."""
        super().__call__()
        if self._mean:
            scale(self._call.buffers[Buffer.OUT], self.transport.world.size)

    def spans(self, n: int, start: Start) -> Spans:
        """See `Action.spans`. Timed from Python if an average is divided here."""
        return spans_from_python(self, n, start) if self._mean else super().spans(n, start)

    @property
    def _mean(self) -> bool:
        return self._call.op is not None and self._call.op.mean
