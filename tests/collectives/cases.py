"""What the tests of schedules share: the catalogue's cases, and a naive reading of a schedule."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from busbar.errors import Unsupported
from collectives.execution.transport import LibraryCall
from collectives.schedule.catalogue import algorithms, build, collectives, spec
from collectives.schedule.layout import Elements, Layout
from collectives.schedule.moves import Buffer, Moves
from collectives.schedule.ops import op
from collectives.schedule.schedule import Schedule, Step
from collectives.schedule.spec import Collective

RANKS = (*range(1, 18), 32)
PAIRS = [(c, a) for c in collectives() for a in algorithms(c)]


def lg(n: int) -> int:
    """⌈lg n⌉."""
    return (n - 1).bit_length()


def roots(what: Collective, nranks: int) -> list[int]:
    """Roots 0 and P−1 where a root applies."""
    return sorted({0, nranks - 1}) if what.rooted else [0]


def placements(what: Collective) -> tuple[bool, ...]:
    """Out of place, and in place where the collective has that."""
    return (False, True) if what.in_place else (False,)


def built(collective: str, name: str, nranks: int, **given: Any) -> Schedule | None:
    """A schedule, or None for a rank count that the algorithm refuses."""
    try:
        return build(collective, name, nranks, **given)
    except Unsupported:
        return None


def fixed(schedule: Schedule, steps: list[Moves]) -> Schedule:
    """The schedule with other moves."""
    return replace(schedule, steps=tuple(map(Step.fixed, steps)))


def inputs(
    layout: Layout, elements: Elements, dtype: np.dtype[Any], prod: bool
) -> list[NDArray[Any]]:
    """Every rank's ``in``; small whole numbers whose reductions are exact, no two ranks alike."""
    random = np.random.default_rng(layout.nranks * 1000 + layout.nchunks)
    return [
        random.integers(1, 3 if prod else 6, layout.elements(rank, Buffer.IN, elements)).astype(
            dtype
        )
        for rank in range(layout.nranks)
    ]


def expected(
    layout: Layout, elements: Elements, given: list[NDArray[Any]], ufunc: np.ufunc
) -> list[NDArray[Any]]:
    """Every rank's ``out``, straight from the specification, part by part."""
    what, n = layout.spec, layout.nranks
    share = np.broadcast_to(np.asarray(elements), what.parts(n))
    value: dict[int, NDArray[Any]] = {}
    for rank in range(n):
        at = 0
        for part in layout.parts(rank, Buffer.IN).tolist():
            mine = given[rank][at : at + share[part]]
            at += share[part]
            value[part] = ufunc(value[part], mine) if part in value else mine
    empty = given[0][:0]
    return [
        np.concatenate([empty, *(value[p] for p in layout.parts(rank, Buffer.OUT).tolist())])
        for rank in range(n)
    ]


Slots = dict[tuple[int, int, int], Any]


def naive(
    schedule: Schedule, layout: Layout, content: Slots, *, alias: Slots, backwards: bool = False
) -> Slots:
    """Carry a placed schedule out slot by slot: all reads of a step, then all its writes.

    ``content`` maps (rank, buffer, chunk) to a number; ``alias`` gives the slots that are another.
    ``backwards``: a step's writes in the opposite order, which must make no difference.
    """
    now = dict(content)
    for step in schedule.all_moves:
        writes = []
        for m in step.unit():
            src = (m.src, int(m.from_slot.buffer), m.from_slot.chunk)
            dst = (m.dst, int(m.to_slot.buffer), m.to_slot.chunk)
            writes.append((alias.get(dst, dst), now.get(alias.get(src, src)), m.reduce))
        for slot, value, reduce in reversed(writes) if backwards else writes:
            old = now.get(slot)
            bad = value is None or (reduce and old is None)
            now[slot] = None if bad else old + value if reduce else value
    return now


def aliases(layout: Layout) -> Slots:
    """In place: the slots of ``in`` that are a slot of ``out``."""
    found: Slots = {}
    for rank in range(layout.nranks):
        out = {c: i for i, c in enumerate(layout.chunks(rank, Buffer.OUT).tolist())}
        for i, c in enumerate(layout.chunks(rank, Buffer.IN).tolist()):
            if c in out:
                found[rank, int(Buffer.IN), i] = (rank, int(Buffer.OUT), out[c])
    return found


def filled(layout: Layout, alias: Slots) -> Slots:
    """Every input chunk its own random number, so that no two sums of different ones agree."""
    random = np.random.default_rng(7)
    found: Slots = {}
    for rank in range(layout.nranks):
        for i in range(len(layout.chunks(rank, Buffer.IN))):
            slot = (rank, int(Buffer.IN), i)
            found[alias.get(slot, slot)] = int(random.integers(2**48))
    return found


def right(layout: Layout, before: Slots, after: Slots, alias: Slots) -> bool:
    """Whether every output slot holds the sum that the specification asks for."""
    sums: dict[int, int] = {}
    for rank in range(layout.nranks):
        for i, c in enumerate(layout.chunks(rank, Buffer.IN).tolist()):
            slot = (rank, int(Buffer.IN), i)
            sums[c] = sums.get(c, 0) + before[alias.get(slot, slot)]
    return all(
        after.get((rank, int(Buffer.OUT), i)) == sums.get(c)
        for rank in range(layout.nranks)
        for i, c in enumerate(layout.chunks(rank, Buffer.OUT).tolist())
    )


def computes(schedule: Schedule, what: Collective, root: int = 0, *, in_place: bool) -> bool:
    """Whether a placed schedule, carried out naively, does what its collective asks for.

    A step's writes in either order: that must make no difference.
    """
    layout = Layout.of(schedule, what, root)
    alias = aliases(layout) if in_place else {}
    before = filled(layout, alias)
    ends = [naive(schedule, layout, before, alias=alias, backwards=b) for b in (False, True)]
    return all(right(layout, before, after, alias) for after in ends)


def all_cases(ranks: tuple[int, ...] = RANKS) -> Iterator[tuple[Collective, str, int, int]]:
    """(collective, algorithm, ranks, root) of everything that there is."""
    for collective, name in PAIRS:
        what = spec(collective)
        for nranks in ranks:
            for root in roots(what, nranks):
                yield what, name, nranks, root


class Case(NamedTuple):
    """One execution; no schedule is the library's own collective."""

    what: Collective
    name: str
    schedule: Schedule | None
    root: int
    in_place: bool
    elements: Elements
    dtype: str
    op: str

    def __str__(self) -> str:
        where = "in" if self.in_place else "out of"
        return (
            f"{self.what.name} {self.name}, root {self.root}, {where} place,"
            f" {self.elements} elements of {self.dtype}, {self.op}"
        )

    def call(self, source: Any, target: Any) -> LibraryCall:
        """The case without its schedule, between a rank's buffers."""
        used = op(self.op) if self.what.reduces else None
        buffers = {Buffer.IN: source, Buffer.OUT: target}
        return LibraryCall(self.what, buffers, used, self.elements, self.root, self.in_place)

    def layout(self, nranks: int) -> Layout:
        """Where every rank's parts lie."""
        if self.schedule is not None:
            return Layout.of(self.schedule, self.what, self.root)
        return Layout(self.what, nranks, self.what.parts(nranks), self.root)
