"""The dependence graph: from an ordered list of tasks to the fewest waits between ranks.

Executing the tasks in order would be correct. Two tasks keep their order if they touch the same
elements and one of them writes; all others may run at once. Every rank does its own tasks in order,
so a rank waits until another has done a given *number* of tasks. Entering and leaving an iteration
are dependences too: a rank's memory may be touched once it has entered, and it leaves when no rank
touches its memory any more. There is no barrier, and iterations may follow each other directly.
Each pass is done by one of the ranks that its move connects. The receiver of a reducing message
adds it, reading the sender's memory. A plain message is loaded by its receiver (get) or stored by
its sender (put). Moves become one pass only within one rank (`collectives.execution.shm.fusion`;
docs/measuring-checks.md, "Who does a move").
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from collectives.execution.shm.fusion import Scratch, fuse, is_message, relayed
from collectives.execution.shm.tasks import STAGE, Place, Task, Work

ENTRY = -1
"""The task number that means that a rank has entered the iteration."""

_MOST_PIECES = 100_000
# Cost of a cache line that another core has written, relative to one of the rank's own (8 to 50 for
# 2 MB on two cores; benchmarks/results/shared-memory.md).
_CHANGES_HANDS = 8
# Ranks that load some messages and store others wait for each other more often: a ring in place on
# 4 ranks, with cost 0.88 by this measure, took 1.13 times as long for 64 KB.
_MIXED = 0.8


@dataclass(frozen=True)
class DependenceGraph:
    """Every rank's passes in order, the tasks it waits for before it leaves, and its staging slots.

    A pass is a copy or a reduction of some elements by one rank (`Work`). ``aligned``: any two
    places are equal or do not overlap, so the passes can be run window by window. ``order``: all
    ranks' passes in an order in which one process could run them.
    """

    works: tuple[tuple[Work, ...], ...]
    exits: tuple[tuple[tuple[int, int], ...], ...]
    slots: tuple[int, ...]
    aligned: bool
    order: tuple[Work, ...]

    @property
    def crossing(self) -> bool:
        """True if any pass waits for a pass of another rank."""
        return any(task != ENTRY for ranks in self.works for w in ranks for _, task in w.waits)

    @property
    def depth(self) -> int:
        """The highest stage of any pass."""
        return max((work.stage for works in self.works for work in works), default=0)

    def resized(self, size: Callable[[int], int]) -> DependenceGraph:
        """The same graph with other sizes of passes; their places begin where they did."""
        other = {id(w): replace(w, size=size(w.size)) for w in self.order}
        works = tuple(tuple(other[id(w)] for w in mine) for mine in self.works)
        return replace(self, works=works, order=tuple(other[id(w)] for w in self.order))


class _Edges:
    """Where pieces begin and end, for each rank and segment."""

    def __init__(self, tasks: Iterable[Task]) -> None:
        self.found: dict[tuple[int, int], set[int]] = defaultdict(set)
        for task in tasks:
            for place in (*task.targets, *task.sources):
                self.found[place[:2]] |= {place.start, place.start + task.size}
        self.sort()

    def sort(self) -> None:
        self.sorted = {key: sorted(edges) for key, edges in self.found.items()}
        self.count = sum(map(len, self.sorted.values()))

    def inside(self, place: Place, size: int) -> list[int]:
        """Edges strictly inside a place, as offsets from its start."""
        edges = self.sorted[place[:2]]
        low, high = bisect_right(edges, place.start), bisect_left(edges, place.start + size)
        return [edge - place.start for edge in edges[low:high]]


def _cut(tasks: list[Task]) -> tuple[list[Task], _Edges, bool]:
    """Cut tasks until every place is one whole piece. Returns False if there would be too many."""
    edges = _Edges(tasks)
    while edges.count < _MOST_PIECES:
        before = edges.count
        for task in tasks:
            places = (*task.targets, *task.sources)
            for offset in {o for p in places for o in edges.inside(p, task.size)}:
                for p in places:
                    edges.found[p[:2]].add(p.start + offset)
        edges.sort()
        if edges.count == before:
            return [piece for task in tasks for piece in _pieces(task, edges)], edges, True
    return tasks, edges, False


def _pieces(task: Task, edges: _Edges) -> Iterable[Task]:
    offsets = [0, *edges.inside(task.targets[0], task.size), task.size]
    for a, b in pairwise(offsets):
        yield task.shifted(a, b - a)


_When = tuple[int, int]
_Entry = tuple[_When, Work]


def _works(tasks: list[Task], nranks: int) -> tuple[list[_Entry], list[int]]:
    """All tasks' copies and reductions in order, and the number of staging slots of each rank.

    A ``late`` task, whose target others of its step still read, becomes two: into staging, and
    from there to the target.
    """
    entries: list[_Entry] = []
    slots = [0] * nranks
    used: dict[tuple[int, int], int] = defaultdict(int)
    for task in tasks:
        if not task.late:
            entries.append(
                (task.when, Work(task.rank, task.size, list(task.targets), list(task.sources)))
            )
            continue
        step = task.when[0]
        slot = used[task.rank, step]
        used[task.rank, step] += 1
        slots[task.rank] = max(slots[task.rank], slot + 1)
        stage = Place(task.rank, STAGE, slot)
        own, messages = list(task.sources[: task.other]), list(task.sources[task.other :])
        entries.append(((step, 1), Work(task.rank, task.size, [stage], messages)))
        entries.append((task.when, Work(task.rank, task.size, list(task.targets), [*own, stage])))
    return sorted(entries, key=lambda entry: entry[0]), slots


def _put(entries: list[_Entry]) -> list[Work]:
    """The passes of `_works`, changed so that senders store messages that are only copied (put).

    In the result of `_works`, receivers load every message (get). Messages that are reduced stay as
    they are. Messages of one step from the same part of a buffer become one pass of their sender.
    """
    put: list[Work] = []
    sends: dict[tuple[_When, Place, int], Work] = {}
    for when, work in entries:
        if not is_message(work):
            put.append(work)
            continue
        (source,), (target,) = work.sources, work.targets
        key = when, source, work.size
        if key in sends:
            sends[key].targets.append(target)
            continue
        sends[key] = Work(source.rank, work.size, [target], [source])
        put.append(sends[key])
    return put


def _least_busy(entries: list[_Entry], nranks: int, scratch: Scratch | None) -> list[Work]:
    """The copies and reductions with all messages put, or all got: whichever is the less work.

    The work is that of the busiest rank. With ``scratch`` passes are fused if possible. Then each
    message may be put or got separately, if that reduces the cost much; the cost weights data that
    moves between cores.
    """
    ways = [_put(entries), [work for _, work in entries]]
    if scratch is None:
        return min(ways, key=lambda works: _busiest(works, nranks, 0))
    fused = [fuse(works, scratch) for works in ways]
    alike = min(fused, key=lambda works: _busiest(works, nranks, 0))
    mixed = fuse(relayed(entries, nranks), scratch)
    cost = [_busiest(works, nranks, _CHANGES_HANDS) for works in (alike, mixed)]
    return mixed if cost[1] < _MIXED * cost[0] else alike


def _busiest(works: list[Work], nranks: int, weight: int) -> int:
    """The most elements that a rank moves, plus ``weight`` for each that moves between cores.

    For iterations that follow each other: a cache line moves when a rank reads what another rank
    has written, or writes what another has read or written (as in MESI, with a core for each rank).
    """
    holders: dict[Place, set[int]] = defaultdict(set)
    for _ in range(2):  # the first round leaves the state in which later iterations begin
        moved = [0] * nranks
        for work in works:
            moved[work.rank] += work.moved
            for place in work.sources:
                held = holders[place]
                moved[work.rank] += weight * work.size * bool(held and work.rank not in held)
                held.add(work.rank)
            for place in work.targets:
                moved[work.rank] += weight * work.size * bool(holders[place] - {work.rank})
                holders[place] = {work.rank}
    return max(moved, default=0)


class _Order:
    """Finds what each pass must wait for; atoms are whole pieces, or cuts of places at edges."""

    def __init__(self, nranks: int, edges: _Edges, aligned: bool) -> None:
        self.nranks, self.edges, self.aligned = nranks, edges, aligned
        self.writer: dict[Place, tuple[int, int]] = {}
        self.readers: dict[Place, list[tuple[int, int]]] = defaultdict(list)
        # For each rank, the last finished task it knows of each other: now, and after each pass.
        self.known = [[ENTRY - 1] * nranks for _ in range(nranks)]
        self.history: list[list[list[int]]] = [[] for _ in range(nranks)]
        self.last = [[ENTRY - 1] * nranks for _ in range(nranks)]

    def atoms(self, place: Place, size: int) -> list[Place]:
        if place.segment == STAGE:
            return []
        if self.aligned:
            return [place]
        return [place._replace(start=place.start + o) for o in (0, *self.edges.inside(place, size))]

    def learn(self, rank: int, needs: dict[int, int]) -> list[tuple[int, int]]:
        """The waits that are still needed for ``needs``; the rank then knows what those imply."""
        known, waits = self.known[rank], []
        for peer, task in sorted(needs.items(), key=lambda need: -need[1]):
            if peer == rank or known[peer] >= task:
                continue
            waits.append((peer, task))
            known[peer] = task
            if task != ENTRY:
                for other, had in enumerate(self.history[peer][task]):
                    known[other] = max(known[other], had)
        return waits

    def add(self, work: Work) -> None:
        needs: dict[int, int] = {}

        def need(rank: int, task: int) -> None:
            needs[rank] = max(task, needs.get(rank, ENTRY))

        me = (work.rank, len(self.history[work.rank]))
        reads = [a for p in work.sources for a in self.atoms(p, work.size)]
        writes = [a for p in work.targets for a in self.atoms(p, work.size)]
        for atom in (*reads, *writes):
            need(*self.writer.get(atom, (atom.rank, ENTRY)))
            self.last[atom.rank][work.rank] = me[1]
        for atom in writes:
            for reader in self.readers[atom]:
                need(*reader)
        work.waits = self.learn(work.rank, needs)
        for atom in reads:
            self.readers[atom].append(me)
        for atom in writes:
            self.writer[atom] = me
            self.readers[atom] = []
        self.history[work.rank].append(list(self.known[work.rank]))

    def leave(self, rank: int) -> list[tuple[int, int]]:
        needs = {p: t for p, t in enumerate(self.last[rank]) if p != rank and t > ENTRY}
        return self.learn(rank, needs)


def mark_cold(works: Sequence[Work]) -> None:
    """Mark targets that only one pass reads or writes in an iteration; no cache need keep them."""
    touched = Counter(p for work in works for p in set(work.places))
    for work in works:
        private = {t for t in work.targets if t.segment != STAGE and t not in work.sources}
        work.cold = {t for t in private if touched[t] == 1}


def dependence_graph(
    tasks: Sequence[Task], nranks: int, scratch: Scratch | None = None
) -> DependenceGraph:
    """The passes of every rank, in order, with their waits.

    ``scratch``: whether a place's content is not needed after an iteration. Without it, passes of
    different steps are not fused.
    """
    pieces, edges, aligned = _cut(list(tasks))
    entries, slots = _works(pieces, nranks)
    works = _least_busy(entries, nranks, scratch if aligned else None)
    if aligned:
        mark_cold(works)
    order = _Order(nranks, edges, aligned)
    for work in works:
        order.add(work)
    exits = tuple(tuple(order.leave(rank)) for rank in range(nranks))
    ranks = tuple(tuple(w for w in works if w.rank == rank) for rank in range(nranks))
    waited = {
        wait for source in (*(w.waits for w in works), *exits) for wait in source if wait[1] >= 0
    }
    for rank, mine in enumerate(ranks):
        for number, work in enumerate(mine):
            work.published = (rank, number) in waited
    if not any(slots):  # staging of one window must be free before the next
        _set_stages(works, nranks)
    return DependenceGraph(ranks, exits, tuple(slots), aligned, tuple(works))


def _set_stages(works: list[Work], nranks: int) -> None:
    stages: list[list[int]] = [[] for _ in range(nranks)]
    for work in works:
        mine = stages[work.rank]
        after = [stages[peer][task] + 1 for peer, task in work.waits if task != ENTRY]
        work.stage = max([mine[-1] if mine else 0, *after])
        mine.append(work.stage)
