"""Plans of the extension, made from the tables that it reads (their rows: `native/_core.pyi`).

Small messages go through mailboxes (eager); larger ones are accessed where they lie, window by
window.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from busbar.errors import Unsupported
from collectives.execution.program import Span
from collectives.execution.shm.dependences import ENTRY, DependenceGraph
from collectives.execution.shm.passes import STAGE, Work
from collectives.execution.shm.tasks import Place, PlacedProgram
from collectives.execution.transport import Array
from collectives.schedule.ops import Op
from native import OPS, TYPES

if TYPE_CHECKING:
    from native._core import Plan, Watch

#: The most that a rank may send in an iteration that goes through mailboxes.
EAGER_BYTES = 8192
# Bytes of a window. Ranks that share a core pay for every context switch, so their windows are
# longer. 16 KiB to 8 MiB were measured (docs/shared-memory.md).
WINDOW_BYTES = 512 << 10
CROWDED_WINDOW_BYTES = 2 << 20
# Bytes of all places in a window of a rank that waits for no other rank's passes, but returns to
# data of its own passes: it should stay in a second-level cache. And the least of one place.
CACHED_BYTES = 512 << 10
LEAST_WINDOW_BYTES = 4096
_WORD, _PAIR = 16, 128


def crossing_window_bytes(nranks: int, cores: int) -> int:
    """Bytes that a pass covers before the next follows, where ranks wait for others' passes."""
    return CROWDED_WINDOW_BYTES if nranks > cores else WINDOW_BYTES


def window_bytes(graph: DependenceGraph, cores: int) -> float:
    """Bytes that a pass covers before the next one follows, on so many cores; infinite where all.

    Windows serve to find in a cache what an earlier pass left there. They are the same on all
    ranks.
    """
    if graph.aligned and graph.crossing:
        return crossing_window_bytes(len(graph.works), cores)
    if graph.aligned and max(map(len, graph.works)) > 1:
        places = max(len({p for w in works for p in w.places}) for works in graph.works)
        return max(CACHED_BYTES // places, LEAST_WINDOW_BYTES)
    return math.inf


class Binding(Protocol):
    """A rank, the type of its elements, and where places lie in its process."""

    @property
    def rank(self) -> int: ...  # noqa: D102
    @property
    def dtype(self) -> np.dtype[Any]: ...  # noqa: D102
    def address(self, place: Place) -> int: ...  # noqa: D102


def type_number(dtype: np.dtype[Any]) -> int:
    """The extension's number for an element type. Raises Unsupported with the list."""
    if dtype.name not in TYPES:
        raise Unsupported(f"no kernels for {dtype.name}; there are: {', '.join(TYPES)}")
    return TYPES.index(dtype.name)


def op_number(op: Op | None) -> int:
    """The extension's number for an operation; any will do where nothing is reduced."""
    return 0 if op is None else OPS.index(op.ufunc.__name__)


# -- where they lie


def direct(
    watch: Watch,
    lines: int,
    to: Binding,
    graph: DependenceGraph,
    cores: int,
    op: Op | None,
    past: Callable[[Work], set[Place]],
) -> tuple[Plan, Array]:
    """A plan over the ranks' buffers themselves, and the staging that it needs to keep alive.

    ``lines``: where the plan's words begin. ``past``: targets of a pass that are written with
    non-temporal stores.
    """
    from native import _core

    nranks, itemsize = len(graph.works), to.dtype.itemsize
    size = max((work.size for work in graph.order), default=1)
    covered = max(1, int(min(window_bytes(graph, cores) / itemsize, size)))
    mine = graph.works[to.rank]
    slot = min(covered, max((w.size for w in mine), default=0))
    stage = np.empty(graph.slots[to.rank] * slot, to.dtype)

    def address(place: Place) -> int:
        if place.segment == STAGE:
            return int(stage.ctypes.data) + place.start * slot * itemsize
        return to.address(place)

    everyone = nranks > 2
    enter = [everyone and _enters_all(works, nranks) for works in graph.works]
    leave = [everyone and len(exits) == nranks - 1 for exits in graph.exits]
    tasks = _Tasks(address, past)
    for i, work in enumerate(mine):
        waits = [w for w in work.waits if not (enter[to.rank] and i == 0 and w[1] == ENTRY)]
        tasks.add(work, _waits(graph, waits))
    tasks.waits += _waits(graph, [] if leave[to.rank] else graph.exits[to.rank])
    rounds = (
        covered,
        -(-size // covered),
        graph.depth,
        any(enter) or any(leave),
        enter[to.rank],
        leave[to.rank],
    )
    plan = _core.direct(
        watch,
        lines,
        type_number(to.dtype),
        op_number(op),
        np.array([rounds], _core.ROUNDS),
        np.array(tasks.rows, _core.TASK),
        np.array(tasks.places, _core.PLACE),
        np.array(tasks.waits, _core.WAIT),
        [len(works) for works in graph.works],
    )
    return plan, stage


def _enters_all(works: Sequence[Work], nranks: int) -> bool:
    """Whether a rank's first pass needs everyone to have entered."""
    return bool(works) and sum(task == ENTRY for _, task in works[0].waits) == nranks - 1


def _waits(graph: DependenceGraph, waits: Sequence[tuple[int, int]]) -> list[tuple[int, int, int]]:
    """Rows of the table of waits."""
    return [
        (peer, task, 0 if task == ENTRY else graph.works[peer][task].stage) for peer, task in waits
    ]


class _Tasks:
    """Passes as rows of three tables; ``past``: targets that are written non-temporally."""

    def __init__(self, address: Callable[[Place], int], past: Callable[[Work], set[Place]]) -> None:
        self._address, self._past = address, past
        self.rows: list[tuple[bool, int, int, int, int, int]] = []
        self.places: list[tuple[int, int, bool, bool]] = []
        self.waits: list[tuple[int, int, int]] = []

    def add(self, work: Work, waits: Sequence[tuple[int, int, int]]) -> None:
        """A pass, with the rows of what it waits for."""
        past = self._past(work)
        counts = len(work.targets), len(work.sources), len(waits)
        self.rows.append((work.published, work.size, work.stage, *counts))
        for places, written in ((work.targets, True), (work.sources, False)):
            for p in places:
                stage = p.segment == STAGE
                stream = written and not stage and p in past
                self.places.append((self._address(p), p.rank, stage, stream))
        self.waits += waits


def worksharing(
    watch: Watch,
    lines: int,
    to: Binding,
    graph: DependenceGraph,
    op: Op | None,
    past: Callable[[Work], set[Place]],
) -> Plan:
    """A plan of parts, one a rank by number, that whoever has a core takes; see `direct`."""
    from native import _core

    tasks = _Tasks(to.address, past)
    for part in graph.works:
        for work in part:
            tasks.add(work, [])
    return _core.worksharing(
        watch,
        lines,
        type_number(to.dtype),
        op_number(op),
        np.array(tasks.rows, _core.TASK),
        np.array(tasks.places, _core.PLACE),
        [len(part) for part in graph.works],
    )


# -- through mailboxes


def is_eager(programs: Sequence[PlacedProgram], itemsize: int) -> bool:
    """Whether no rank sends more than `EAGER_BYTES` in an iteration; the same on every rank."""
    return max(program.sent for program in programs) * itemsize <= EAGER_BYTES


def _half(size: int, itemsize: int) -> int:
    return -(-(_WORD + size * itemsize) // _PAIR) * _PAIR


def mailboxes(
    programs: Sequence[PlacedProgram], itemsize: int
) -> tuple[dict[tuple[int, int], list[int]], int]:
    """Where the mailbox of every message lies, by (sender, receiver), in order; bytes of all."""
    boxes: dict[tuple[int, int], list[int]] = {}
    at = 0
    for program in programs:
        for step in program.steps:
            for send in step.sends:
                boxes.setdefault((program.rank, send.peer), []).append(at)
                at += 2 * _half(send.span.size, itemsize)
    return boxes, at


def eager(
    watch: Watch,
    lines: int,
    to: Binding,
    program: PlacedProgram,
    mail: Mapping[tuple[int, int], Sequence[int]],
    op: Op | None,
) -> Plan:
    """A plan over mailboxes, whose addresses ``mail`` has; its words begin at ``lines``."""
    from native import _core

    boxes = {pair: iter(addresses) for pair, addresses in mail.items()}
    me, itemsize = to.rank, to.dtype.itemsize

    def at(span: Span) -> int:
        return to.address(program.at(span))

    def message(peer: int, box: int, span: Span, other: Span | None) -> tuple[int, ...]:
        joined = 0 if other is None else at(other)
        return peer, box, _half(span.size, itemsize), at(span), joined, span.size

    rows, copies, messages = [], [], []
    for step in program.steps:
        messages += [message(p, next(boxes[me, p]), span, None) for p, span, _ in step.sends]
        messages += [message(p, next(boxes[p, me]), span, o) for p, span, o, _ in step.receives]
        copies += [(at(a), at(b), a.size, add) for a, b, add in (*step.before, *step.after)]
        rows.append((len(step.before), len(step.sends), len(step.receives), len(step.after)))
    return _core.eager(
        watch,
        lines,
        type_number(to.dtype),
        op_number(op),
        np.array(rows, _core.EXCHANGE),
        np.array(copies, _core.COPY),
        np.array(messages, _core.EAGER_MESSAGE),
    )
