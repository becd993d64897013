"""Work-sharing plans: independent parts, run by their owner or by any rank that has a core.

They show how fast a collective could be in this memory. Each part of the vector is one pass over
the memory of all ranks that have it and all that want it, which is the least memory traffic
possible. The passes are divided equally among all processes, as OpenMP's work-sharing constructs
divide the iterations of a loop. No schedule is used. docs/measuring-checks.md says what this is
for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from busbar.errors import Unsupported
from collectives.execution.shm.bound import Bound, Built, HostTransport
from collectives.execution.shm.dependences import ENTRY, DependenceGraph, mark_cold
from collectives.execution.shm.pass_plans import direct, worksharing
from collectives.execution.shm.tasks import Place, Work, places_of
from collectives.execution.transport import Array, LibraryCall, Spans, Start, spans_from_python
from collectives.execution.world import Json
from collectives.schedule.layout import Elements, Layout
from collectives.schedule.moves import Buffer
from collectives.schedule.ops import op, scale

if TYPE_CHECKING:
    from native._core import Plan, Watch

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
    """The copies and reductions of a collective, cut and divided among as many processes as ranks.

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
    """One copy or reduction for every part that any rank needs, not yet assigned to a rank."""
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


def over_own_memory(graph: DependenceGraph, scale: int, in_place: bool) -> DependenceGraph:
    """The same passes, each over its rank's own memory, begun without waiting for other ranks.

    ``scale``: elements of the result for one of the graph. Places follow each other, sources in
    segment 0 and targets in segment 1. Where ``in_place``, all are in segment 0, and a target that
    is a source is that source.
    """
    works = []
    for mine in graph.works:
        used = [0, 0]
        own = []
        for work in mine:
            places: dict[Place, Place] = {}
            for side, of in enumerate((work.sources, work.targets)):
                segment = 0 if in_place else side
                for place in of:
                    if place not in places:
                        places[place] = Place(work.rank, segment, used[segment])
                        used[segment] += work.size * scale
            targets, sources = ([places[p] for p in of] for of in (work.targets, work.sources))
            size = work.size * scale
            own.append(replace(work, size=size, targets=targets, sources=sources, waits=[]))
        works.append(tuple(own))
    # No pass returns to a place, so all are done whole.
    order = tuple(work for own in works for work in own)
    return replace(graph, works=tuple(works), aligned=False, order=order)


def _own_memory(transport: HostTransport, nbytes: int) -> Array:
    """Memory for one rank, which other ranks need not ask for; this rank writes its pages first."""
    if transport.memory.collective:
        return np.ones(nbytes, np.uint8)
    return transport.allocate(nbytes)


class OwnSweep:
    """The sweep that a collective is compared with; see docs/measuring-limit.md.

    Elements are added as integers, which takes no longer than loading them. All ranks make one
    together. A rank with shorter buffers (because it is not the root) sweeps temporary memory.
    """

    def __init__(self, call: LibraryCall, transport: HostTransport) -> None:
        buffers = [call.buffers[Buffer.IN], call.buffers[Buffer.OUT]]
        itemsize = buffers[1].dtype.itemsize
        places = places_of(transport.memory.locate, call.buffers, itemsize)
        shared = shared_out(call, transport.world.gather(ends(places)), itemsize)
        self.rank = transport.world.rank
        self.dtype = np.dtype(np.uint8 if itemsize % 4 else np.uint32)
        scale = itemsize // self.dtype.itemsize
        self._graph = over_own_memory(shared, scale, call.in_place)
        if call.in_place:
            buffers = [max(buffers, key=len)]
        self._memory = []
        for segment, array in enumerate(buffers):
            needed = self.dtype.itemsize * max(
                (
                    p.start + work.size
                    for work in self._graph.works[self.rank]
                    for p in work.places
                    if p.segment == segment
                ),
                default=0,
            )
            self._memory.append(array if array.nbytes >= needed else _own_memory(transport, needed))

    def address(self, place: Place) -> int:
        """Where a place lies in this process."""
        return int(self._memory[place.segment].ctypes.data) + place.start * self.dtype.itemsize

    def plan(self, watch: Watch, lines: int, cores: int, stream: bool) -> Plan:
        """The sweep with ordinary or with non-temporal stores."""

        def past(work: Work) -> set[Place]:
            return {*work.targets} - {*work.sources} if stream else set()

        return direct(watch, lines, self, self._graph, cores, op("sum"), past)[0]


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
        """Run the operation once. Raises RankFailure if another rank is lost."""
        super().__call__()
        if self._mean:
            scale(self._call.buffers[Buffer.OUT], self.transport.world.size)

    def spans(self, n: int, start: Start) -> Spans:
        """Run n iterations; returns when each began and ended, see `Action.spans`.

        They are timed from Python if an average is divided here.
        """
        return spans_from_python(self, n, start) if self._mean else super().spans(n, start)

    @property
    def _mean(self) -> bool:
        return self._call.op is not None and self._call.op.mean
