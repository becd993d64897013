"""Plans for the native executor, as the flat numbers it reads (`native/src/module.cpp`).

Decides how a plan is carried out: small messages through mailboxes beside their flags, others
where they lie; and in which windows. The extension is loaded where a plan is made, not earlier.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from busbar.errors import Unsupported
from collectives.execution.shm.dependences import ENTRY, STAGE, DependenceGraph, Work
from collectives.execution.shm.tasks import Place, PlacedCopy, PlacedStep, SegmentSpan
from collectives.execution.transport import Array
from collectives.schedule.ops import Op

if TYPE_CHECKING:
    from native._core import Plan, Watch

TYPES = (
    "int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "bfloat16", "float32",
    "float64",
)  # fmt: skip
_OPS: dict[np.ufunc, int] = {np.add: 0, np.multiply: 1, np.minimum: 2, np.maximum: 3}

#: The most that a rank may send in a firing that goes through mailboxes.
EAGER_BYTES = 8192
# Bytes that a pass covers before the next one follows. Ranks that take turns on a core pay for
# every handing over, so theirs are longer. 16 KiB to 8 MiB were measured (docs/shared-memory.md).
WINDOW_BYTES = 512 << 10
CROWDED_WINDOW_BYTES = 2 << 20
# Bytes of all places of a rank that waits for nobody's passes, but comes back to what its own have
# touched: what stays in a core's second-level cache. And the least of one place.
CACHED_BYTES = 512 << 10
LEAST_WINDOW_BYTES = 4096
_WORD, _PAIR = 16, 128


def crossing_window_bytes(nranks: int, cores: int) -> int:
    """Bytes that a pass covers before the next follows, where ranks wait for others' passes."""
    return CROWDED_WINDOW_BYTES if nranks > cores else WINDOW_BYTES


def window_bytes(found: DependenceGraph, cores: int) -> float:
    """Bytes that a pass covers before the next one follows, on so many cores; infinite where all.

    Windows serve to find in a cache what an earlier pass left there. They are the same on all
    ranks.
    """
    if found.aligned and found.crossing:
        return crossing_window_bytes(len(found.works), cores)
    if found.aligned and max(map(len, found.works)) > 1:
        places = max(len({p for w in works for p in w.places}) for works in found.works)
        return max(CACHED_BYTES // places, LEAST_WINDOW_BYTES)
    return math.inf


def window(found: DependenceGraph, cores: int, itemsize: int) -> int:
    """Elements of a window, see `window_bytes`; at least 1."""
    size = max((work.size for work in found.order), default=0)
    return max(1, int(min(window_bytes(found, cores) / itemsize, size)))


class Binding(Protocol):
    """What a plan is bound to: see `collectives.execution.shm.transport`."""

    @property
    def rank(self) -> int: ...  # noqa: D102
    @property
    def dtype(self) -> np.dtype[Any]: ...  # noqa: D102
    def address(self, place: Place) -> int: ...  # noqa: D102


@dataclass(frozen=True)
class Shape:
    """How a plan is carried out: through mailboxes or not, on how many cores."""

    eager: bool
    itemsize: int
    cores: int

    @classmethod
    def of(cls, programs: Sequence[Sequence[PlacedStep]], itemsize: int, cores: int) -> Shape:
        """From all ranks' placed programs; the same on every rank."""
        most = max(sum(s.span.size for step in steps for s in step.sends) for steps in programs)
        return cls(most * itemsize <= EAGER_BYTES, itemsize, cores)


def type_number(dtype: np.dtype[Any]) -> int:
    """The extension's number for an element type. Raises Unsupported with the list."""
    if dtype.name not in TYPES:
        raise Unsupported(f"no kernels for {dtype.name}; there are: {', '.join(TYPES)}")
    return TYPES.index(dtype.name)


def op_number(op: Op | None) -> int:
    """The extension's number for an operation; any will do where nothing is reduced."""
    return 0 if op is None else _OPS[op.ufunc]


# -- where they lie


def direct(
    watch: Watch,
    lines: int,
    to: Binding,
    found: DependenceGraph,
    shape: Shape,
    op: Op | None,
    past: Callable[[Work], set[Place]],
) -> tuple[Plan, Array]:
    """A plan over the ranks' buffers themselves, and the staging that it needs to keep alive.

    ``lines``: where the plan's words begin. ``past``: targets of a pass that are
    written with non-temporal stores.
    """
    from native import _core

    nranks = len(found.works)
    size = max((work.size for work in found.order), default=1)
    covered = window(found, shape.cores, shape.itemsize)
    mine = found.works[to.rank]
    slot = max((w.size for w in mine), default=0)
    stage = np.empty(found.slots[to.rank] * min(covered, slot), to.dtype)

    def address(place: Place) -> int:
        if place.segment == STAGE:
            return int(stage.ctypes.data) + place.start * min(covered, slot) * to.dtype.itemsize
        return to.address(place)

    everyone = nranks > 2
    enter = [everyone and _enters_all(works, nranks) for works in found.works]
    leave = [everyone and len(exits) == nranks - 1 for exits in found.exits]
    numbers = [len(mine)]
    for i, work in enumerate(mine):
        waits = [w for w in work.waits if not (enter[to.rank] and i == 0 and w[1] == ENTRY)]
        numbers += _task(work, _waits(found, waits), address, past(work))
    numbers += _waits(found, [] if leave[to.rank] else found.exits[to.rank])
    plan = _core.direct(
        watch,
        lines,
        type_number(to.dtype),
        op_number(op),
        np.array(numbers, np.int64),
        [len(works) for works in found.works],
        covered,
        -(-size // covered),
        found.depth,
        any(enter) or any(leave),
        enter[to.rank],
        leave[to.rank],
    )
    return plan, stage


def _enters_all(works: Sequence[Work], nranks: int) -> bool:
    """Whether a rank's first pass needs everyone to have entered."""
    return bool(works) and sum(task == ENTRY for _, task in works[0].waits) == nranks - 1


def _waits(found: DependenceGraph, waits: Sequence[tuple[int, int]]) -> list[int]:
    numbers = [len(waits)]
    for peer, task in waits:
        numbers += [peer, task, 0 if task == ENTRY else found.works[peer][task].stage]
    return numbers


def _task(
    work: Work, waits: list[int], address: Callable[[Place], int], past: set[Place]
) -> list[int]:
    """A pass as numbers; ``past``: targets that are written with non-temporal stores."""
    numbers = [len(work.sources) > 1, work.published, work.size]
    for places in (work.targets, work.sources):
        numbers.append(len(places))
        for p in places:
            stored = places is work.targets and p in past
            numbers += [address(p), p.rank, 1 if p.segment == STAGE else 2 * stored]
    return [*numbers, *waits, work.stage]


def worksharing(
    watch: Watch,
    lines: int,
    to: Binding,
    found: DependenceGraph,
    op: Op | None,
    past: Callable[[Work], set[Place]],
) -> Plan:
    """A plan of parts, one a rank by number, that whoever has a core takes; see `direct`."""
    from native import _core

    numbers = [len(found.works)]
    for part in found.works:
        numbers.append(len(part))
        for work in part:
            numbers += _task(work, [0], to.address, past(work))
    described = np.array(numbers, np.int64)
    return _core.worksharing(watch, lines, type_number(to.dtype), op_number(op), described)


# -- through mailboxes


def _half(size: int, itemsize: int) -> int:
    return -(-(_WORD + size * itemsize) // _PAIR) * _PAIR


def _mail(
    programs: Sequence[Sequence[PlacedStep]], itemsize: int
) -> dict[tuple[int, int], list[int]]:
    """Where the mailbox of every message lies, by (sender, receiver), in order."""
    found: dict[tuple[int, int], list[int]] = {}
    at = 0
    for rank, steps in enumerate(programs):
        for step in steps:
            for peer, span in step.sends:
                found.setdefault((rank, peer), []).append(at)
                at += 2 * _half(span.size, itemsize)
    return found


def mail_bytes(programs: Sequence[Sequence[PlacedStep]], shape: Shape) -> int:
    """Bytes of all mailboxes of a plan."""
    if not shape.eager:
        return 0
    return sum(
        2 * _half(send.span.size, shape.itemsize)
        for steps in programs
        for step in steps
        for send in step.sends
    )


def eager(
    watch: Watch,
    lines: int,
    to: Binding,
    programs: Sequence[Sequence[PlacedStep]],
    shape: Shape,
    op: Op | None,
    mail: int,
) -> Plan:
    """A plan over mailboxes that begin at address ``mail``; its words begin at ``lines``."""
    from native import _core

    boxes = {pair: iter(at) for pair, at in _mail(programs, shape.itemsize).items()}

    def at(span: SegmentSpan) -> int:
        return to.address(Place(to.rank, span.segment, span.start))

    def letter(pair: tuple[int, int], span: SegmentSpan, other: SegmentSpan | None) -> list[int]:
        peer = pair[1] if pair[0] == to.rank else pair[0]
        box = mail + next(boxes[pair])
        joined = 0 if other is None else at(other)
        return [peer, box, _half(span.size, shape.itemsize), at(span), joined, span.size]

    def local(moves: Sequence[PlacedCopy]) -> list[int]:
        return [len(moves), *(n for a, b, add in moves for n in (at(a), at(b), a.size, int(add)))]

    steps = programs[to.rank]
    numbers = [len(steps)]
    for step in steps:
        sends = [letter((to.rank, p), span, None) for p, span in step.sends]
        receives = [letter((p, to.rank), span, other) for p, span, other, _ in step.receives]
        numbers += local(step.before)
        for letters in (sends, receives):
            numbers += [len(letters), *(n for one in letters for n in one)]
        numbers += local(step.after)
    described = np.array(numbers, np.int64)
    return _core.eager(watch, lines, type_number(to.dtype), op_number(op), described)
