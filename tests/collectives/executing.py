"""What the tests of transports share: cases in turn, what each must give, and carrying them out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from itertools import cycle, product
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from collectives.execution.lower import lower
from collectives.execution.plan import Plan
from collectives.execution.transport import Action, Start
from collectives.execution.world import World
from collectives.schedule.catalogue import algorithms, build, spec
from collectives.schedule.cost import traffic
from collectives.schedule.dtypes import DTYPES, dtype
from collectives.schedule.layout import Layout
from collectives.schedule.moves import Buffer
from collectives.schedule.ops import OPS, op, scale
from collectives.schedule.schedule import Schedule
from collectives.schedule.spec import Collective, Unit
from tests.collectives.cases import Case, all_cases, built, expected, inputs, placements


def in_turn(
    nranks: int,
    sizes: Sequence[int] = (1, 7001, 0, 37, 100_003),
    *,
    kinds: Sequence[str] = DTYPES,
    few: int = 9,
    first: bool = False,
) -> Iterator[Case]:
    """Every algorithm, root and placement; sizes, types and operations take turns.

    Among more than ``few`` ranks roots and placements take turns, too. ``first``: one algorithm of
    each collective, for what needs no schedule.
    """
    # Numbers that have no common divisor, so that in turn all meet all.
    each, types, operations = cycle((nranks + 1, *sizes)), cycle(kinds), cycle(OPS)
    for what, name, n, root in all_cases((nranks,)):
        turn = len(name) + nranks
        if nranks > few and what.rooted and (root == 0) != (turn % 2 == 0):
            continue
        if first and name != algorithms(what.name)[0]:
            continue
        schedule = built(what.name, name, n, root=root)
        if schedule is None:
            continue
        both = placements(what)
        for in_place in both if nranks <= few else (both[turn // 2 % len(both)],):
            operation = "max" if what.idempotent else next(operations)
            elements = 1 if what.unit is Unit.NOTHING else next(each)
            yield Case(what, name, schedule, root, in_place, elements, next(types), operation)


def every_operation(
    nranks: int,
    kind: str,
    names: Sequence[str] = ("sharded_ps", "ring"),
    sizes: Sequence[int] = (13, 20_011, 20_011, 13),
) -> Iterator[Case]:
    """All-reduce of one type with each operation: one pass over all sources, a ring, a library.

    Each operation is met in place and not, and at several sizes; how these go together takes turns.
    """
    what, each = spec("allreduce"), cycle(sizes)
    for (turn, name), (other, operation) in product(enumerate(names), enumerate(OPS)):
        schedule = None if name == "library" else built(what.name, name, nranks)
        in_place = (turn + other) % 2 == 1
        yield Case(what, name, schedule, 0, in_place, next(each), kind, operation)


def sent(schedule: Schedule, what: Collective, elements: int, **given: Any) -> Counter[Any]:
    """Elements that the programs of all ranks send, by (sender, receiver)."""
    found: Counter[tuple[int, int]] = Counter()
    for rank in range(schedule.nranks):
        program = lower(schedule, Layout.of(schedule, what), rank, elements, **given)
        for send in (send for step in program.steps for send in step.sends):
            found[rank, send.peer] += send.span.size
    return +found


class Judged(NamedTuple):
    """A case, and what goes in, must come out and (by a schedule) must travel, rank by rank."""

    case: Case
    layout: Layout
    given: list[NDArray[Any]]
    wanted: list[NDArray[Any]]
    moved: NDArray[np.int64] | None


def judge(case: Case, nranks: int) -> Judged:
    """What a case asks of every rank, by NumPy and by the schedule's own count."""
    layout, kind = case.layout(nranks), dtype(case.dtype)
    joined = op(case.op) if case.what.reduces else op("sum")
    given = inputs(layout, case.elements, kind, case.op == "prod")
    if kind.name.startswith("float8"):  # ones and twos, whose sums over few ranks are exact
        most = 1 if nranks > 4 else 2
        given = [np.minimum(x.astype(np.float32), most).astype(kind) for x in given]
    wanted = expected(layout, case.elements, given, joined.ufunc)
    for vector in wanted if joined.mean else ():
        scale(vector, nranks)
    moved = None
    if case.schedule is not None:
        moved = traffic(case.schedule, case.what, case.elements, kind.itemsize, case.root)
    return Judged(case, layout, given, wanted, moved)


def judged_cases(cases: Iterator[Case] | list[Case], nranks: int) -> list[Judged]:
    """What each case asks."""
    return [judge(case, nranks) for case in cases]


def _memory(allocate: Callable[[int], Any], case: Case, layout: Layout, rank: int) -> list[Any]:
    """A rank's ``in`` and ``out``; in place the smaller lies inside the larger.

    ``allocate`` gives so many elements of the case's type.
    """
    sizes = [layout.elements(rank, b, case.elements) for b in (Buffer.IN, Buffer.OUT)]
    whole = [allocate(n) for n in sizes]
    parts = [layout.parts(rank, b).tolist() for b in (Buffer.IN, Buffer.OUT)]
    if case.in_place and all(parts):
        big, small = (0, 1) if len(parts[0]) > len(parts[1]) else (1, 0)
        share = sizes[big] // len(parts[big])
        start = parts[big].index(parts[small][0]) * share
        whole[small] = whole[big][start : start + sizes[small]]
    return whole


def host(array: Any) -> NDArray[Any]:
    """What an array holds, wherever its memory is."""
    return array if isinstance(array, np.ndarray) else array.host()


def carry_out(
    world: World,
    transport: Any,
    judged: Judged,
    *,
    iterations: int = 2,
    timed: int = 0,
    sharing: bool = False,
) -> None:
    """One rank's part of a case: run so often, in memory of its own, and compared each time.

    Without a schedule it is the library's collective, or, ``sharing``, the transport's work
    sharing. ``timed``: iterations that the transport times after the first one.
    """
    case, kind, rank = judged.case, dtype(judged.case.dtype), world.rank
    source, target = _memory(
        lambda n: transport.allocate(n * kind.itemsize).view(kind), case, judged.layout, rank
    )
    with closing(_prepared(transport, case, rank, source, target, sharing)) as action:
        for number in range(iterations):
            # Nobody reads or writes this rank's buffers any more: they may change at once.
            target.view(np.uint8)[:] = 0xA5
            source[:] = judged.given[rank]
            world.barrier()
            action()
            if case.schedule is not None or case.what.unit is not Unit.NOTHING:
                same = np.array_equal(host(target), judged.wanted[rank])
                assert same, f"{case}: rank {rank} is wrong"
            if not case.in_place:
                same = np.array_equal(host(source), judged.given[rank])
                assert same, f"{case}: the input of rank {rank} was changed"
            if timed and not number:
                seconds = action.spans(timed, Start(world.barrier)).seconds
                assert len(seconds) == timed and min(seconds) >= 0
        moved = [action.sent, action.received]
        if sharing:
            sent, received = zip(*world.gather(moved), strict=True)
            assert sum(sent) == sum(received), str(case)
        elif judged.moved is not None:
            # Before it times, a transport runs once more: in the second iteration it captures.
            runs = iterations + (timed + 1 if timed else 0)
            assert moved == (runs * judged.moved[:, rank]).tolist(), str(case)
        world.barrier()


def _prepared(
    transport: Any, case: Case, rank: int, source: Any, target: Any, sharing: bool
) -> Action:
    if sharing:
        return transport.worksharing(case.call(source, target))
    if case.schedule is None:
        return transport.library(case.call(source, target))
    used = op(case.op) if case.what.reduces else None
    where: Any = (case.what, transport, rank, source, target, used, case.elements)
    return Plan(case.schedule, *where, root=case.root, in_place=case.in_place)


def allreduce(
    transport: Any,
    world: World,
    name: str,
    elements: int,
    kind: DTypeLike = np.float32,
    *,
    in_place: bool = False,
    operation: str = "sum",
) -> tuple[Plan, Any, Any]:
    """An all-reduce over fresh memory, which holds ones; the plan and its buffers."""
    nbytes = elements * np.dtype(kind).itemsize
    source = transport.allocate(nbytes).view(kind)
    source[:] = np.ones(elements, kind)
    target = source if in_place else transport.allocate(nbytes).view(kind)
    where: Any = (transport, world.rank, source, target, op(operation), elements)
    schedule = build("allreduce", name, world.size)
    return Plan(schedule, spec("allreduce"), *where, in_place=in_place), source, target
