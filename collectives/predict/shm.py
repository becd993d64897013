"""Predicted times of ranks that share memory, from the executor's own passes and messages.

`Rates` are the costs between two cores, from curves measured between pairs (`machine.Shared`): a
byte in the rank's own caches takes the time ``warm``, divided by the two bytes that a swap of
unwritten data moves, at the size at which the rank goes through as much memory before it returns to
the byte. A byte whose line another core has had since takes half the time of a byte that changes
cores: the reader fetches it, and the next writer must take it back. Adding takes the time ``join``
minus ``warm``.

`Drafts` are the programs that ranks run. `find_touches` finds the core whose cache holds each line
that a pass touches: iterations repeat, so the second one counts. As in MESI, a core keeps a line
that it has read or written until another core writes it, and may write a line freely that no other
core has read since. `Passes` follows ``Direct`` of `native/src/plans.cpp`: every rank does its
passes in order, round by round, each on the window that is due, and waits for passes of others.
`eager_seconds` follows ``Eager``: a rank copies, posts all messages of a step, receives all
messages to it, copies. Ranks that share a core run on it one at a time.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property, lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from collectives.execution.lower import lower
from collectives.execution.program import Local, Receive
from collectives.execution.shm.dependences import ENTRY, DependenceGraph, dependence_graph
from collectives.execution.shm.pass_plans import EAGER_BYTES, window_bytes
from collectives.execution.shm.tasks import STAGE, Place, PlacedProgram, Work, in_scratch, ordered
from collectives.predict.interface import (
    ITEM_BYTES,
    CollectivePredictor,
    Operation,
    schedule_refusal,
)
from collectives.predict.machine import Curve, LinkCosts, Machine, Shared
from collectives.schedule.layout import Layout
from collectives.schedule.moves import Buffer
from collectives.schedule.place import place
from collectives.schedule.schedule import Schedule
from collectives.schedule.spec import Collective
from topology.model.measured import BURST

_WORD = 8


@dataclass(frozen=True)
class Rates:
    """Costs of one class of link, and of the cores at its ends."""

    curves: Shared

    @cached_property
    def flag(self) -> float:
        """Seconds from the end of a copy or reduction until a rank that waits for it continues."""
        return max(0.0, self.curves.pull.alpha[0] - self.call)

    @cached_property
    def call(self) -> float:
        """The fixed cost of a copy or reduction: a swap with an addition minus one without."""
        both = self.curves.mail_join, self.curves.mail
        return max(0.0, float(both[0](_WORD)) - float(both[1](_WORD)))

    def own(self, distance: float) -> float:
        """Seconds per byte in the rank's caches, after ``distance`` bytes of other accesses.

        An addition in place also goes through two lines, so the smaller of the two times holds:
        disturbances only lengthen a measurement.
        """
        return min(self._per_byte("warm", distance / 2), self._per_byte("join", distance / 2)) / 2

    def far(self, distance: float) -> float:
        """Seconds per byte of a line that another core has changed or holds."""
        return max(self._per_byte("pull", distance) / 2, self.own(distance))

    def added(self, distance: float) -> float:
        """Seconds per byte of each further source of a reduction."""
        nbytes = distance / 2
        return max(0.0, self._per_byte("join", nbytes) - self._per_byte("warm", nbytes))

    def _per_byte(self, name: str, nbytes: float) -> float:
        """The time per byte of a message of this kind and size, without the fixed cost."""
        return _slope(getattr(self.curves, name), max(nbytes, 1.0))

    # -- eager messages

    @cached_property
    def post(self) -> float:
        """The fixed cost of an eager message at each end.

        From a burst, in which every rank posts and receives several messages; at most half a hop.
        """
        burst = float(self.curves.mail_burst(_WORD)) / (2 * BURST)
        return min(burst, float(self.curves.hop(_WORD)) / 2)

    @cached_property
    def flight(self) -> float:
        """Seconds from the posting of a message until its receiver can read it."""
        return max(0.0, float(self.curves.hop(_WORD)) - 2 * self.post)

    def eager_message(self, mail: float) -> float:
        """Seconds per byte and end of a message, for ``mail`` bytes of messages per iteration."""
        return self._per_byte("mail", mail / 2) / 2


@lru_cache(1 << 16)
def _slope(curve: Curve, nbytes: float) -> float:
    return max(0.0, float(curve(nbytes)) - curve.alpha[0]) / nbytes


#: The rates between any two cores; also from each core to itself.
Between = Mapping[int, Mapping[int, Rates]]


def rates_by_class(links: Sequence[LinkCosts]) -> list[Rates]:
    """Rates of each class; unmeasured classes have those of the first measured one."""
    known = [link.shared for link in links if link.shared is not None]
    return [Rates(link.shared or known[0]) for link in links] if known else []


# With more elements per chunk than this, chunks that differ by one element count as equal.
_EVEN = 16


@dataclass(eq=False)
class NodePrograms:
    """All ranks' programs over ``elements`` per part."""

    nranks: int
    programs: list[PlacedProgram]

    @cached_property
    def dependence_graph(self) -> DependenceGraph:
        """The copies and reductions (passes) of every rank, and those that they wait for."""
        return dependence_graph(ordered(self.programs), self.nranks, in_scratch(self.programs))

    @property
    def most_sent(self) -> int:
        """The largest number of elements that any rank sends."""
        return max(program.sent for program in self.programs)


class Drafts:
    """Programs of one schedule by size; with equal chunks one program is scaled to all sizes."""

    def __init__(self, schedule: Schedule, spec: Collective, root: int, in_place: bool) -> None:
        self._schedule = place(schedule, spec, root)
        self._layout = Layout.of(self._schedule, spec, root)
        #: Chunks per part.
        self.split = max(1, self._layout.split)
        self._in_place = in_place and spec.in_place
        self._made: dict[int, NodePrograms] = {}

    def of(self, elements: int) -> tuple[NodePrograms, float]:
        """Programs for ``elements`` per part, and how many elements a program element means."""
        split = self.split
        if elements and (elements % split == 0 or elements >= _EVEN * split):
            return self._draft(split), elements / split
        return self._draft(elements), 1.0

    def _draft(self, elements: int) -> NodePrograms:
        if elements not in self._made:
            places = {buffer: (int(buffer), 0) for buffer in Buffer}
            n = self._schedule.nranks
            lowered = (
                lower(self._schedule, self._layout, rank, elements, in_place=self._in_place)
                for rank in range(n)
            )
            programs = [PlacedProgram(one.rank, one.steps, places, one.fusible) for one in lowered]
            self._made[elements] = NodePrograms(n, programs)
        return self._made[elements]


class Touch(NamedTuple):
    """An access to a source or target by a pass, which is a rank's copy or reduction.

    ``other``: the core whose cache has the data, or -1 if no other core's has. ``again``: the core
    has already accessed it in this iteration.
    """

    other: int
    again: bool


@dataclass
class Touched:
    """The accesses to memory of each pass, by (rank, number).

    ``through``: the working set of each core in elements.
    """

    of: dict[tuple[int, int], list[Touch]] = field(default_factory=dict)
    through: dict[int, int] = field(default_factory=dict)


class _Line(NamedTuple):
    """A cache line: the cores whose caches hold it, and the core that accessed it last."""

    holders: frozenset[int]
    last: int


_NOBODY = _Line(frozenset(), -1)


def order_passes(graph: DependenceGraph) -> list[tuple[int, int, Work]]:
    """All passes in an order that respects their waits: (rank, number, pass)."""
    done = [0] * len(graph.works)
    order: list[tuple[int, int, Work]] = []
    while len(order) < sum(map(len, graph.works)):
        for rank, works in enumerate(graph.works):
            while done[rank] < len(works):
                work = works[done[rank]]
                if any(task != ENTRY and done[peer] <= task for peer, task in work.waits):
                    break
                order.append((rank, done[rank], work))
                done[rank] += 1
    return order


def find_touches(graph: DependenceGraph, cores: Sequence[int]) -> Touched:
    """Find which core's cache has the data that each pass (a rank's copy or reduction) accesses.

    ``cores[r]``: the core of rank r. The result holds for an iteration that follows another.
    """
    order = order_passes(graph)
    lines: dict[Place, _Line] = {}
    result = Touched()
    for _ in range(2):
        seen: dict[int, dict[Place, int]] = {core: {} for core in cores}
        for rank, number, work in order:
            core = cores[rank]
            result.of[rank, number] = list(_pass(work, core, lines, seen[core]))
        result.through = {core: sum(places.values()) for core, places in seen.items()}
    return result


def _pass(
    work: Work, core: int, lines: dict[Place, _Line], seen: dict[Place, int]
) -> Iterator[Touch]:
    """Yield the accesses of one pass to its sources and targets, and update the lines' state.

    ``seen``: what the core has accessed in this iteration.
    """
    read = set[Place]()
    for where in work.sources:
        if where.segment == STAGE:
            yield Touch(-1, True)
            continue
        line = lines.get(where, _NOBODY)
        in_own_cache = core in line.holders or not line.holders
        yield Touch(-1 if in_own_cache else line.last, where in seen)
        lines[where] = _Line(line.holders | {core}, line.last if in_own_cache else core)
        read.add(where)
        seen[where] = work.size
    for where in work.targets:
        if where.segment == STAGE:
            yield Touch(-1, True)
            continue
        line = lines.get(where, _NOBODY)
        others = line.holders - {core}
        # Data that the pass has just read is in the cache and costs no second fetch.
        if others or where not in read:
            last = line.last if line.last in others else min(others, default=-1)
            yield Touch(last, where in seen)
        lines[where] = _Line(frozenset({core}), core)
        seen[where] = work.size


# Windows beyond the depth that are simulated one by one; further windows take as long as these.
_FOLLOWED = 8


class Passes:
    """The times of a program's passes (copies and reductions in shared memory) on a machine.

    ``cores[r]``: the core of rank r. ``between[a][b]``: rates between two cores.
    """

    def __init__(self, draft: NodePrograms, cores: Sequence[int], between: Between) -> None:
        self._cores = cores
        self._graph = draft.dependence_graph
        self._between = between
        self._order = order_passes(self._graph)
        self._touched: Touched = find_touches(self._graph, cores)

    def seconds(self, scale: float) -> float:
        """Seconds of an iteration; a program element is ``scale`` bytes."""
        graph = self._graph
        size = max((w.size for works in graph.works for w in works), default=0) * scale
        window = min(window_bytes(graph, len(set(self._cores))), size)
        if not size:
            return 0.0
        windows = -(-size // window)
        followed = int(min(windows, graph.depth + _FOLLOWED))
        share = self._shares(scale, window / size)
        whole = self._run(share, scale, window, followed)
        if followed == windows:
            return whole
        few = self._run(share, scale, window, followed - _FOLLOWED // 2)
        # The last window may be shorter.
        return whole + (size / window - followed) * (whole - few) / (_FOLLOWED // 2)

    def _shares(self, scale: float, window: float) -> dict[tuple[int, int], float]:
        """Seconds per byte of each pass; ``window``: the fraction of the data in one window."""
        known: dict[tuple[int, Touch], float] = {}
        shares = {}
        for rank, number, work in self._order:
            core = self._cores[rank]
            through = self._touched.through[core] * scale
            near = window * through
            total = 0.0
            for touch in self._touched.of[rank, number]:
                if (core, touch) not in known:
                    distance = min(near, through) if touch.again else through
                    known[core, touch] = self._share(core, touch, distance)
                total += known[core, touch]
            if len(work.sources) > 1:
                total += (len(work.sources) - 1) * self._between[core][core].added(through)
            shares[rank, number] = total
        return shares

    def _share(self, core: int, touch: Touch, distance: float) -> float:
        if touch.other < 0:
            return self._between[core][core].own(distance)
        return self._between[core][touch.other].far(distance)

    def _run(
        self, share: dict[tuple[int, int], float], scale: float, window: float, windows: int
    ) -> float:
        """Seconds of the first ``windows`` windows."""
        cores, between = self._cores, self._between
        now = [0.0] * len(cores)
        free = dict.fromkeys(cores, 0.0)
        done: dict[tuple[int, int, int], float] = {}

        def after(rank: int, waits: Sequence[tuple[int, int]], at: int) -> float:
            """The time at which a rank that waits for passes on window ``at`` continues."""
            begin = now[rank]
            for peer, task in waits:
                flag = between[cores[rank]][cores[peer]].flag
                begin = max(begin, flag + (done[peer, task, at] if task != ENTRY else 0.0))
            return begin

        for turn in range(windows + self._graph.depth):
            for rank, number, work in self._order:
                at = turn - work.stage
                if not 0 <= at < windows:
                    continue
                begin = max(after(rank, work.waits, at), free[cores[rank]])
                nbytes = min(window, max(0.0, work.size * scale - at * window))
                call = between[cores[rank]][cores[rank]].call
                now[rank] = begin + (call + nbytes * share[rank, number] if nbytes else 0.0)
                free[cores[rank]] = now[rank]
                done[rank, number, at] = now[rank]
        ends = [after(rank, waits, windows - 1) for rank, waits in enumerate(self._graph.exits)]
        return max(*ends, 0.0)


def eager_seconds(
    draft: NodePrograms, scale: float, cores: Sequence[int], between: Between
) -> float:
    """Seconds of an iteration through mailboxes; a program element is ``scale`` bytes."""
    mail = [_mail(program) * scale for program in draft.programs]
    now = [0.0] * draft.nranks
    boxes: dict[tuple[int, int], deque[float]] = defaultdict(deque)
    at = [0] * draft.nranks
    posted = [False] * draft.nranks
    left = sum(len(program.steps) for program in draft.programs)
    while left:
        for rank, program in enumerate(draft.programs):
            while at[rank] < len(program.steps):
                step, own = program.steps[at[rank]], between[cores[rank]][cores[rank]]
                if not posted[rank]:
                    now[rank] += _local(step.before, scale, own, mail[rank])
                    for peer, span, _ in step.sends:
                        rates = between[cores[rank]][cores[peer]]
                        now[rank] += rates.post + span.size * scale * rates.eager_message(
                            mail[rank]
                        )
                        boxes[rank, peer].append(now[rank] + rates.flight)
                    posted[rank] = True
                if not _arrived(rank, step.receives, boxes):
                    break
                for peer, span, other, _ in step.receives:
                    rates = between[cores[rank]][cores[peer]]
                    now[rank] = max(now[rank], boxes[peer, rank].popleft())
                    now[rank] += rates.post + span.size * scale * rates.eager_message(mail[rank])
                    now[rank] += own.call if other is not None else 0.0
                now[rank] += _local(step.after, scale, own, mail[rank])
                at[rank], posted[rank], left = at[rank] + 1, False, left - 1
    return max(now)


def _mail(of: PlacedProgram) -> float:
    """Elements of all messages of a rank, sent and received."""
    return of.sent + sum(receive.span.size for step in of.steps for receive in step.receives)


def _arrived(
    rank: int, receives: Sequence[Receive], boxes: dict[tuple[int, int], deque[float]]
) -> bool:
    """True if all messages of a step have been posted."""
    wanted = Counter(receive.peer for receive in receives)
    return all(len(boxes[peer, rank]) >= count for peer, count in wanted.items())


def _local(moves: Sequence[Local], scale: float, own: Rates, mail: float) -> float:
    return sum(own.call + 2 * move.span.size * scale * own.own(mail) for move in moves)


class SharedMemoryPredictor(CollectivePredictor):
    """Predicts schedules of ranks that share one memory, by simulating their copies one by one.

    `Machine.cores` are the cores of the measured ranks; further ranks use them again in turn.
    Without them every rank has a core of its own. Schedules are lowered once.
    """

    name = "shm"

    def __init__(self, machine: Machine) -> None:
        super().__init__(machine)
        self._rates = rates_by_class(machine.costs)
        self._planned: dict[tuple[int, int, bool], _Planned] = {}

    def refusal(self, operation: Operation) -> str:
        """Why this operation cannot be predicted, or "" if it can."""
        if not self._rates:
            return "the costs were not measured over shared memory"
        return schedule_refusal(operation)

    def _seconds(self, operation: Operation, sizes: Sequence[int]) -> NDArray[np.float64]:
        schedule, what = operation.schedule, operation.spec
        key = id(schedule), operation.root, operation.in_place
        if key not in self._planned:
            self._planned[key] = _Planned(operation, self)
        planned, itemsize = self._planned[key], operation.itemsize
        counts = [what.size(operation.ranks, size, itemsize).elements for size in sizes]
        times = [planned.seconds(elements, itemsize) for elements in counts]
        return self.machine.start + np.array(times)

    def one_port_bound(
        self, collective: str, ranks: int, sizes: Sequence[int], itemsize: int = ITEM_BYTES
    ) -> None:
        """None: one pass reads from many ranks, so the bound of ports does not hold in memory.

        docs/measuring-limit.md has the limit that does.
        """

    def core(self, rank: int) -> int:
        """The core of a rank."""
        cores = self.machine.cores
        return cores[rank % len(cores)] if cores else rank

    def between(self, cores: Sequence[int]) -> Between:
        """The rates between the cores of ranks; within a core, those of the nearest class."""
        assert self.machine.classes is not None
        first: dict[int, int] = {}
        for rank, core in enumerate(cores):
            first.setdefault(core, rank)
        ranks = np.array(list(first.values()))
        table = self.machine.classes.links(ranks[:, None], ranks[None, :])
        apart = table[~np.eye(len(ranks), dtype=bool)]
        near = int(apart.min()) if apart.size else 0
        return {
            a: {b: self._rates[near if a == b else int(table[i, j])] for j, b in enumerate(first)}
            for i, a in enumerate(first)
        }


class _Planned:
    """One lowered schedule. It keeps the schedule alive, so that no other gets the same id."""

    def __init__(self, operation: Operation, host: SharedMemoryPredictor) -> None:
        self.schedule = operation.schedule
        self._drafts = Drafts(self.schedule, operation.spec, operation.root, operation.in_place)
        self._cores = [host.core(rank) for rank in range(self.schedule.nranks)]
        self._between = host.between(self._cores)
        self._passes = cache(lambda draft: Passes(draft, self._cores, self._between))

    def seconds(self, elements: int, itemsize: int) -> float:
        """Seconds of an iteration with ``elements`` per part."""
        draft, each = self._drafts.of(elements)
        scale = each * itemsize
        if draft.most_sent * scale <= EAGER_BYTES:
            return eager_seconds(draft, scale, self._cores, self._between)
        return self._passes(draft).seconds(scale)
