"""Makes plans of the extension from tables (for their rows see `native/_core.pyi`).

Small messages go through mailboxes (eager). For larger ones, ranks access each other's buffers
directly, window by window.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from busbar.errors import Unsupported
from collectives.execution.program import Span
from collectives.execution.shm.dependences import ENTRY, DependenceGraph
from collectives.execution.shm.tasks import STAGE, Place, PlacedProgram, Work
from collectives.execution.transport import Array
from collectives.schedule.ops import Op
from native import OPS, TYPES

if TYPE_CHECKING:
    from native._core import Plan, Watch

#: Ranks use mailboxes if none of them sends more than so many bytes in an iteration.
EAGER_BYTES = 8192
# Bytes of a window. Ranks that share a core pay for every context switch, so their windows are
# longer. 16 KiB to 8 MiB were measured (docs/shared-memory.md).
WINDOW_BYTES = 512 << 10
CROWDED_WINDOW_BYTES = 2 << 20
# Bytes of all places in a window of a rank that waits for no other rank's passes, but reads data of
# its own passes again: they should fit into a second-level cache. And the least for one place.
CACHED_BYTES = 512 << 10
LEAST_WINDOW_BYTES = 4096
_WORD, _PAIR = 16, 128


def crossing_window_bytes(nranks: int, cores: int) -> int:
    """Bytes of a window if ranks wait for other ranks' passes."""
    return CROWDED_WINDOW_BYTES if nranks > cores else WINDOW_BYTES


def window_bytes(graph: DependenceGraph, cores: int) -> float:
    """Bytes of a window (a pass covers one before the next pass follows); infinite for no windows.

    In a window a pass finds in a cache what an earlier pass left there. Windows are the same on all
    ranks.
    """
    if graph.aligned and graph.crossing:
        return crossing_window_bytes(len(graph.works), cores)
    if graph.aligned and max(map(len, graph.works)) > 1:
        places = max(len({p for w in works for p in w.places}) for works in graph.works)
        return max(CACHED_BYTES // places, LEAST_WINDOW_BYTES)
    return math.inf


class Binding(Protocol):
    """A rank, its element type, and the addresses of places in its process."""

    @property
    def rank(self) -> int: ...  # noqa: D102
    @property
    def dtype(self) -> np.dtype[Any]: ...  # noqa: D102
    def address(self, place: Place) -> int: ...  # noqa: D102


def type_number(dtype: np.dtype[Any]) -> int:
    """The extension's number of an element type. Raises Unsupported with the list."""
    if dtype.name not in TYPES:
        raise Unsupported(f"no kernels for {dtype.name}; there are: {', '.join(TYPES)}")
    return TYPES.index(dtype.name)


def op_number(op: Op | None) -> int:
    """The extension's number of an operation; 0 if nothing is reduced."""
    return 0 if op is None else OPS.index(op.ufunc.__name__)


# -- direct access to buffers


def direct(
    watch: Watch,
    lines: int,
    to: Binding,
    graph: DependenceGraph,
    cores: int,
    op: Op | None,
    past: Callable[[Work], set[Place]],
) -> tuple[Plan, Array]:
    """A plan that accesses the ranks' buffers directly, and its staging, which must be kept alive.

    ``lines``: the address of the plan's control words. ``past(work)``: targets of a pass that are
    written with non-temporal stores.
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
    """True if a rank's first pass waits for all ranks to enter."""
    return bool(works) and sum(task == ENTRY for _, task in works[0].waits) == nranks - 1


def _waits(graph: DependenceGraph, waits: Sequence[tuple[int, int]]) -> list[tuple[int, int, int]]:
    """Rows of the table of waits: peer, task, and the task's stage."""
    return [
        (peer, task, 0 if task == ENTRY else graph.works[peer][task].stage) for peer, task in waits
    ]


class _Tasks:
    """Passes as rows of three tables; ``past``: targets with non-temporal stores."""

    def __init__(self, address: Callable[[Place], int], past: Callable[[Work], set[Place]]) -> None:
        self._address, self._past = address, past
        self.rows: list[tuple[bool, int, int, int, int, int]] = []
        self.places: list[tuple[int, int, bool, bool]] = []
        self.waits: list[tuple[int, int, int]] = []

    def add(self, work: Work, waits: Sequence[tuple[int, int, int]]) -> None:
        """Append a pass, and the rows of its waits."""
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
    """A plan in which any rank with a core runs the next part; arguments as for `direct`."""
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
    """True if no rank sends more than `EAGER_BYTES` in an iteration; the same on every rank."""
    return max(program.sent for program in programs) * itemsize <= EAGER_BYTES


def _half(size: int, itemsize: int) -> int:
    return -(-(_WORD + size * itemsize) // _PAIR) * _PAIR


def mailboxes(
    programs: Sequence[PlacedProgram], itemsize: int
) -> tuple[dict[tuple[int, int], list[int]], int]:
    """Mailbox offsets of all messages by (sender, receiver), in order; and their total bytes."""
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
    """A plan over mailboxes; ``mail`` has their addresses. Its control words begin at ``lines``."""
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
