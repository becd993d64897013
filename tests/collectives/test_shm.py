"""The shm transport among threads: right results with both executors, and no rank left behind."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from itertools import cycle, product
from pathlib import Path

import numpy as np
import pytest

import native
from busbar.errors import RankFailure, Unavailable, Unsupported
from collectives.execution.inproc.world import InprocWorld, run
from collectives.execution.plan import Plan
from collectives.execution.shm.transport import ShmTransport
from collectives.schedule.catalogue import build, spec
from collectives.schedule.dtypes import DTYPES
from collectives.schedule.ops import OPS, op
from tests.collectives.cases import (
    Case,
    Judged,
    all_cases,
    allocator,
    built,
    every_collective,
    judge,
    memory,
    placements,
)
from tests.conftest import thorough

needs_native = pytest.mark.skipif(native.load() is None, reason=native.why_not() or "")
# The native one where ranks have cores of their own, and where they share one (``crowded``).
NATIVE = ("native", "crowded")


@pytest.fixture(params=["numpy", *NATIVE])
def executor(request: pytest.FixtureRequest) -> str:
    """Each way of carrying plans out; those of the extension are skipped without it."""
    if request.param != "numpy" and native.load() is None:
        pytest.skip(native.why_not() or "")
    return str(request.param)


def _turns(*some: tuple[str, int]) -> pytest.MarkDecorator:
    """Executors with rank counts, in pairs; every pair of them is thorough."""
    every = [(name, n) for name in ("numpy", *NATIVE) for n in (1, 2, 3, 4, 8)]
    rest = thorough(*(pair for pair in every if pair not in some))
    return pytest.mark.parametrize(("executor", "nranks"), [*some, *rest], indirect=["executor"])


def _transport(world: InprocWorld, executor: str, deadline: float = 60) -> ShmTransport:
    """A transport whose ranks share cores, or do not, however many cores there are."""
    name = "native" if executor in NATIVE else executor
    transport = ShmTransport(world, executor=name, deadline=deadline)
    transport.yields = executor == "crowded"
    transport.cores = 1 if transport.yields else world.size
    return transport


def _play(world: InprocWorld, executor: str, everything: list[Judged]) -> None:
    """One rank's part of every case, run twice and compared each time."""
    transport, rank = _transport(world, executor, deadline=120), world.rank
    for judged in everything:
        case = judged.case
        source, target = memory(allocator(transport, case), case, judged.layout, rank)
        where = (case.schedule, case.what, transport, rank, source, target)
        used = op(case.op) if case.what.reduces else None
        with Plan(*where, used, case.elements, root=case.root, in_place=case.in_place) as plan:
            for _ in range(2):
                target[:] = 77
                source[:] = judged.given[rank]
                world.barrier()
                plan()
                assert np.array_equal(target, judged.wanted[rank]), f"{case}: {rank} is wrong"
                # Nobody reads or writes this rank's buffers any more: they may change at once.
                target[:] = 78
            assert [plan.sent, plan.received] == judged.counts(rank, 2), str(case)
            world.barrier()
    transport.close()


def _run(nranks: int, executor: str, cases: list[Case]) -> None:
    everything = [judge(case, nranks) for case in cases]
    run(nranks, lambda world: _play(world, executor, everything), deadline=200)


def small_and_large(nranks: int) -> Iterator[Case]:
    """Every algorithm, root and placement; sizes, types and operations take turns."""
    sizes = cycle((1, nranks + 1, 7001, 0, 37, 100_003))
    kinds, operations = cycle(DTYPES), cycle(OPS)
    for what, name, n, root in all_cases((nranks,)):
        schedule = built(what.name, name, n, root=root)
        if schedule is None:
            continue
        for in_place in placements(what):
            operation = "max" if what.idempotent else next(operations)
            small = next(sizes)
            elements = min(small, 1) if what.name == "barrier" else small
            yield Case(what, name, schedule, root, in_place, elements, next(kinds), operation)


def _share(world: InprocWorld, executor: str, everything: list[Judged]) -> None:
    """One rank's part of every case without its schedule, run twice and compared each time."""
    transport, rank = _transport(world, executor, deadline=120), world.rank
    for judged in everything:
        case = judged.case
        source, target = memory(allocator(transport, case), case, judged.layout, rank)
        action = transport.worksharing(case.call(source, target))
        for _ in range(2):
            target[:] = 77
            source[:] = judged.given[rank]
            world.barrier()
            action()
            assert np.array_equal(target, judged.wanted[rank]), f"{case}: {rank} is wrong"
        both = world.gather([action.sent, action.received])
        assert sum(sent for sent, _ in both) == sum(received for _, received in both), str(case)
        world.barrier()
        action.close()
    transport.close()


@_turns(("numpy", 3), ("native", 1), ("native", 2), ("crowded", 8))
def test_work_sharing_gives_what_numpy_gives(executor: str, nranks: int) -> None:
    """Rule: any collective's work may be shared, in both placements; what leaves memory arrives."""
    everything = [judge(case, nranks) for case in every_collective(nranks)]
    run(nranks, lambda world: _share(world, executor, everything), deadline=200)


def every_operation(nranks: int, kind: str) -> Iterator[Case]:
    """All-reduce of one type with each operation: one pass over all sources, and a ring.

    Each is met in place and not, small and large; how these go together takes turns.
    """
    what, sizes = spec("allreduce"), cycle((13, 20_011, 20_011, 13))
    for name in ("sharded_ps", "ring"):
        schedule = built(what.name, name, nranks)
        for operation, in_place in product(OPS, (False, True)):
            yield Case(what, name, schedule, 0, in_place, next(sizes), kind, operation)


@_turns(*(("numpy", 1), ("numpy", 4), ("native", 2), ("native", 3), ("native", 4), ("crowded", 4)))
def test_every_algorithm_gives_what_numpy_gives(executor: str, nranks: int) -> None:
    """Rule: any schedule runs on shared memory, large (in place, windows) and small (mailboxes)."""
    _run(nranks, executor, list(small_and_large(nranks)))


@pytest.mark.parametrize("executor", ["numpy", "native", *thorough("crowded")], indirect=True)
@pytest.mark.parametrize("kind", DTYPES)
def test_every_operation_on_every_type(executor: str, kind: str) -> None:
    """Rule: each type with each operation, through one pass over all sources and through a ring.

    Ranks that share a core add by the same kernels.
    """
    _run(4, executor, list(every_operation(4, kind)))


def _each(
    body: Callable[[InprocWorld, ShmTransport], None], executor: str, nranks: int = 2
) -> None:
    def rank(world: InprocWorld) -> None:
        body(world, _transport(world, executor))

    run(nranks, rank, deadline=120)


def _plan(world: InprocWorld, transport: ShmTransport, elements: int) -> Plan:
    source, target = (transport.allocate(4 * elements).view(np.float32) for _ in range(2))
    schedule = build("allreduce", "sharded_ps", world.size)
    where = (schedule, spec("allreduce"), transport, world.rank, source, target)
    return Plan(*where, op("sum"), elements)


@pytest.mark.parametrize("elements", [2, 50_000])
def test_a_rank_that_has_left_ends_the_wait_of_the_others(executor: str, elements: int) -> None:
    """Rule: a rank that leaves is named to those who wait for it, long before the deadline."""

    def body(world: InprocWorld, transport: ShmTransport) -> None:
        plan = _plan(world, transport, elements)
        if world.rank == 1:
            transport.close()
            return
        with pytest.raises(RankFailure, match="rank 1 has left"):
            plan()

    _each(body, executor)


@pytest.mark.parametrize("loop", [False, True])
def test_timing_fires_and_counts(executor: str, loop: bool) -> None:
    """Rule: times() runs n times, gives a time each (or one), and counts what was moved."""

    def body(world: InprocWorld, transport: ShmTransport) -> None:
        plan = _plan(world, transport, 5000)
        found = plan.times(3, loop)
        assert len(found) == (1 if loop else 3) and min(found) > 0
        assert plan.sent == 3 * 5000 * 4
        world.barrier()

    _each(body, executor)


def test_memory_from_elsewhere_is_refused(executor: str) -> None:
    """Rule: a buffer that other ranks cannot map is an error that says where to get one."""

    def body(world: InprocWorld, transport: ShmTransport) -> None:
        schedule = build("allreduce", "ring", 1)
        array = np.zeros(4, np.float32)
        where = (schedule, spec("allreduce"), transport, 0, array, array)
        with pytest.raises(Unavailable, match="allocate"):
            Plan(*where, op("sum"), 4, in_place=True)

    _each(body, executor, 1)


def test_nothing_is_left_behind(executor: str) -> None:
    """Rule: when plans and buffers are gone, so are their files and mappings."""

    def held() -> tuple[int, int]:
        gc.collect()
        maps = Path("/proc/self/maps").read_text().splitlines()
        mapped = sum("memfd:busbar" in line for line in maps)
        links = [fd.readlink() for fd in Path("/proc/self/fd").iterdir() if fd.is_symlink()]
        files = sum("memfd:busbar" in str(link) for link in links)
        return mapped, files

    before = held()

    def body(world: InprocWorld, transport: ShmTransport) -> None:
        with _plan(world, transport, 50_000) as plan:
            plan()
            world.barrier()

    _each(body, executor, 3)
    assert held() == before


def test_huge_pages_are_asked_for(executor: str) -> None:
    """Rule: the mapping of a large buffer carries the wish for huge pages (``hg``)."""
    if not Path("/sys/kernel/mm/transparent_hugepage").exists():
        pytest.skip("this kernel has no huge pages on demand")

    def body(world: InprocWorld, transport: ShmTransport) -> None:
        array = transport.allocate(8 << 20)
        parts = Path("/proc/self/smaps").read_text().split("VmFlags:")
        mine = [i for i, part in enumerate(parts) if f"{array.ctypes.data:x}-" in part]
        assert mine and "hg" in parts[mine[0] + 1].splitlines()[0].split()

    _each(body, executor, 1)


def test_without_anonymous_files_mpi_is_named(
    executor: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule: where no memory can be shared, one error says why and names what would serve."""

    def refuse(*_: object) -> int:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr("os.memfd_create", refuse)
    with pytest.raises(Unavailable, match=r"Function not implemented.*--transport mpi"):
        run(1, lambda world: _transport(world, executor), deadline=20)


@needs_native
@pytest.mark.parametrize(
    ("executor", "name", "elements"),
    [
        *(("native", "sharded_ps", 2_000_003), ("crowded", "ring", 2_000_003)),
        ("native", "ring", 9_000_000),
        *thorough(("crowded", "sharded_ps", 9_000_000)),
    ],
)
def test_a_plan_that_was_tried_leaves_memory_as_it_was(
    executor: str, name: str, elements: int
) -> None:
    """Rule: choosing stores works on the ranks' own memory, whole or in part, and restores it."""

    def body(world: InprocWorld, transport: ShmTransport) -> None:
        buffers = [transport.allocate(4 * elements).view(np.float32) for _ in range(2)]
        for i, array in enumerate(buffers):
            array[:] = np.arange(elements) % 1009 + 10 * i + world.rank
        before = [array.copy() for array in buffers]
        schedule = build("allreduce", name, world.size)
        with Plan(
            schedule, spec("allreduce"), transport, world.rank, *buffers, op("sum"), elements
        ) as plan:
            assert all(map(np.array_equal, buffers, before))
            plan()
            assert np.array_equal(buffers[1], 3 * before[0] + 3 * (1 - world.rank))
            world.barrier()

    _each(body, executor, 3)


@needs_native
def test_the_roofline_of_ranks_with_unequal_buffers() -> None:
    """Rule: where only the root has a source, all ranks sweep alike and agree on the rates."""
    found: dict[int, object] = {}

    def body(world: InprocWorld, transport: ShmTransport) -> None:
        sizes = (1 << 16 if world.rank == 0 else 0, 1 << 16)
        roofline = transport.roofline(*(transport.allocate(n) for n in sizes), 3)
        assert min(roofline.read, roofline.write, roofline.copy, roofline.update) > 0
        found[world.rank] = roofline

    _each(body, "native", 3)
    assert len(found) == 3 and len(set(found.values())) == 1


def test_two_nodes_are_refused(executor: str) -> None:
    """Rule: shared memory ends at the host, and the message names what does not."""

    def body(world: InprocWorld) -> None:
        world.nodes = (0, 1)
        with pytest.raises(Unsupported, match="--transport mpi"):
            _transport(world, executor)

    run(2, body, deadline=20)


def test_an_unknown_executor_is_refused() -> None:
    """Rule: an unknown option value is an error with the list, never a default."""
    with pytest.raises(Unsupported, match="auto, native, numpy"):
        run(1, lambda world: ShmTransport(world, executor="fast"))


def test_buffers_of_a_node_begin_apart() -> None:
    """Rule: buffers of 16 ranks begin at different places of their huge pages, on whole lines."""

    def body(world: InprocWorld) -> list[int]:
        transport = ShmTransport(world, executor="numpy")
        held = [transport.allocate(1 << 20) for _ in range(2)]
        found = [transport.memory.locate(array)[1] for array in held]
        world.barrier()
        transport.close()
        return found

    places = [place for found in run(16, body) for place in found]
    assert len(set(places)) == 32
    assert all(place % 64 == 0 for place in places)
