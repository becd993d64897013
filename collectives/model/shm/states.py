"""Cache states of the lines that a pass touches: in its core's cache, or in another's.

Iterations repeat, and so do the cache states, so the second iteration counts. As in MESI and
similar protocols, a core keeps a line that it has read or written until another core writes it, and
may write a line freely that no other core has read since.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from collectives.execution.shm.dependences import ENTRY, STAGE, DependenceGraph, Work
from collectives.execution.shm.tasks import Place


class Touch(NamedTuple):
    """A place that a pass reads or writes: whose core had it last if that matters, else -1.

    ``again``: the core has touched it in this iteration before.
    """

    other: int
    again: bool


@dataclass
class Touched:
    """The elements that each pass touches, by (rank, number), and the working set of each core."""

    of: dict[tuple[int, int], list[Touch]] = field(default_factory=dict)
    through: dict[int, int] = field(default_factory=dict)


class _Line(NamedTuple):
    """The cores that hold a line, and the one that had it last."""

    holders: frozenset[int]
    last: int


_NOBODY = _Line(frozenset(), -1)


def in_order(found: DependenceGraph) -> list[tuple[int, int, Work]]:
    """All passes in an order in which one could do them: (rank, number, pass)."""
    done = [0] * len(found.works)
    order: list[tuple[int, int, Work]] = []
    while len(order) < sum(map(len, found.works)):
        for rank, works in enumerate(found.works):
            while done[rank] < len(works):
                work = works[done[rank]]
                if any(task != ENTRY and done[peer] <= task for peer, task in work.waits):
                    break
                order.append((rank, done[rank], work))
                done[rank] += 1
    return order


def touched(found: DependenceGraph, cores: Sequence[int]) -> Touched:
    """The touches of all passes; ``cores[r]``: the core of rank r."""
    order = in_order(found)
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
    """The touches of one pass, which change the lines."""
    read = set[Place]()
    for place in work.sources:
        if place.segment == STAGE:
            yield Touch(-1, True)
            continue
        line = lines.get(place, _NOBODY)
        mine = core in line.holders or not line.holders
        yield Touch(-1 if mine else line.last, place in seen)
        lines[place] = _Line(line.holders | {core}, line.last if mine else core)
        read.add(place)
        seen[place] = work.size
    for place in work.targets:
        if place.segment == STAGE:
            yield Touch(-1, True)
            continue
        line = lines.get(place, _NOBODY)
        others = line.holders - {core}
        # Data that the pass has just read is in the cache and costs no second fetch.
        if others or place not in read:
            last = line.last if line.last in others else min(others, default=-1)
            yield Touch(last, place in seen)
        lines[place] = _Line(frozenset({core}), core)
        seen[place] = work.size
