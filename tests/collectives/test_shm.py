"""The shm transport among threads: right results, and no rank left behind."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import native
from busbar.errors import RankFailure, Unavailable, Unsupported
from collectives.execution.inproc.world import InprocWorld, run
from collectives.execution.plan import Plan
from collectives.execution.shm import transport as transport_module
from collectives.execution.shm.memory import Memory
from collectives.execution.shm.transport import ShmTransport
from collectives.execution.transport import LibraryCall, Start
from collectives.schedule.catalogue import build, spec
from collectives.schedule.dtypes import DTYPES
from collectives.schedule.moves import Buffer
from collectives.schedule.ops import op
from tests.collectives.cases import Case
from tests.collectives.executing import allreduce, carry_out, every_operation, in_turn, judged_cases
from tests.conftest import thorough

pytestmark = pytest.mark.skipif(native.load() is None, reason=native.why_not() or "")
# Whether ranks share a core, or each has cores of its own.
shared = pytest.mark.parametrize("crowded", [False, True])


def _turns(*some: tuple[bool, int]) -> pytest.MarkDecorator:
    """Both with rank counts, in pairs; every pair of them is thorough."""
    every = [(crowded, n) for crowded in (False, True) for n in (1, 2, 3, 4, 8)]
    rest = thorough(*(pair for pair in every if pair not in some))
    return pytest.mark.parametrize(("crowded", "nranks"), [*some, *rest])


def _transport(world: InprocWorld, crowded: bool, deadline: float = 60) -> ShmTransport:
    """A transport whose ranks share cores, or do not, however many cores there are."""
    transport = ShmTransport(world, deadline=deadline)
    transport.yields, transport.cores = crowded, 1 if crowded else world.size
    return transport


def _run(nranks: int, crowded: bool, cases: list[Case], sharing: bool = False) -> None:
    everything = judged_cases(cases, nranks)

    def rank(world: InprocWorld) -> None:
        transport = _transport(world, crowded, deadline=120)
        for judged in everything:
            carry_out(world, transport, judged, sharing=sharing)
        transport.close()

    run(nranks, rank, deadline=200)


@pytest.mark.parametrize(("who", "what"), [(0, "allocate"), (1, "attach")])
def test_memory_that_a_rank_does_not_get_is_refused_on_all(
    who: int, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule: where one rank gets or maps no memory, no other waits for it; all raise the reason."""

    def rank(world: InprocWorld) -> None:
        transport = ShmTransport(world)

        def refuse(_: object) -> None:
            raise Unavailable("there is none")

        if world.rank == who:
            monkeypatch.setattr(transport.memory, what, refuse)
        with pytest.raises(Unavailable, match="there is none"):
            transport.common(64)
        transport.close()

    run(3, rank, deadline=20)


def test_memory_that_all_have_mapped_takes_no_open_file() -> None:
    """Rule: plans may be more than a process may have open files."""

    def rank(world: InprocWorld) -> None:
        transport = ShmTransport(world)
        world.barrier()
        files = len(list(Path("/proc/self/fd").iterdir()))
        world.barrier()
        lines = [transport.common(64) for _ in range(10)]
        now = len(list(Path("/proc/self/fd").iterdir()))
        assert now <= files + 2, "two ranks may be listing"
        world.barrier()
        lines[0][:] = 7
        del lines
        transport.close()

    run(2, rank, deadline=20)


def test_no_other_file_is_taken_for_a_ranks_memory() -> None:
    """Rule: a process id of another container may be that of a stranger here, whose files stay."""
    mine, stranger = Memory(), Memory()
    segment, other = mine.allocate(100), stranger.allocate(100)
    where = mine.describe(segment.key)
    assert mine.attach(where).size == segment.array.size
    with pytest.raises(Unavailable, match="a file of another process"):
        mine.attach({**where, "fd": stranger.describe(other.key)["fd"]})


def test_processes_of_other_containers_are_not_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: only where ids mean the same processes does the end of one end a wait."""
    monkeypatch.setattr(transport_module, "_pid_namespace", threading.get_ident)

    def rank(world: InprocWorld) -> list[int]:
        transport = ShmTransport(world)
        transport.close()
        return transport.pids

    assert run(2, rank, deadline=20) == [[os.getpid(), 0], [0, os.getpid()]]


@_turns((False, 1), (False, 3), (True, 8))
def test_work_sharing_gives_what_numpy_gives(crowded: bool, nranks: int) -> None:
    """Rule: any collective's work may be shared, in both placements; what leaves memory arrives."""
    _run(nranks, crowded, list(in_turn(nranks, first=True)), sharing=True)


@_turns((False, 1), (False, 3), (True, 4))
def test_every_algorithm_gives_what_numpy_gives(crowded: bool, nranks: int) -> None:
    """Rule: any schedule runs on shared memory, large (in place, windows) and small (mailboxes)."""
    _run(nranks, crowded, list(in_turn(nranks)))


@pytest.mark.parametrize("crowded", [False, *thorough(True)])
@pytest.mark.parametrize("kind", DTYPES)
def test_every_operation_on_every_type(crowded: bool, kind: str) -> None:
    """Rule: each type with each operation, through one pass over all sources and through a ring.

    Ranks that share a core add by the same kernels.
    """
    _run(4, crowded, list(every_operation(4, kind)))


def _each(
    body: Callable[[InprocWorld, ShmTransport], None], crowded: bool = False, nranks: int = 2
) -> None:
    def rank(world: InprocWorld) -> None:
        body(world, _transport(world, crowded))

    run(nranks, rank, deadline=120)


@shared
@pytest.mark.parametrize("elements", [2, 50_000])
def test_a_rank_that_has_left_ends_the_wait_of_the_others(crowded: bool, elements: int) -> None:
    """Rule: a rank that leaves is named to those who wait for it, long before the deadline."""

    def body(world: InprocWorld, transport: ShmTransport) -> None:
        plan, *_ = allreduce(transport, world, "sharded_ps", elements)
        if world.rank == 1:
            transport.close()
            return
        with pytest.raises(RankFailure, match="rank 1 has left"):
            plan()

    _each(body, crowded)


@shared
@pytest.mark.parametrize("loop", [False, True])
def test_timing_fires_and_counts(crowded: bool, loop: bool) -> None:
    """Rule: spans() runs n times, gives a time each (or one), and counts what was moved."""

    def body(world: InprocWorld, transport: ShmTransport) -> None:
        plan, *_ = allreduce(transport, world, "sharded_ps", 5000)
        seconds = plan.spans(3, Start(world.barrier, loop=loop)).seconds
        assert len(seconds) == (1 if loop else 3) and min(seconds) > 0
        assert plan.sent == 3 * 5000 * 4
        world.barrier()

    _each(body, crowded)


def test_memory_from_elsewhere_is_refused() -> None:
    """Rule: a buffer that other ranks cannot map is an error that says where to get one."""

    def body(world: InprocWorld, transport: ShmTransport) -> None:
        schedule = build("allreduce", "ring", 1)
        array = np.zeros(4, np.float32)
        where = (schedule, spec("allreduce"), transport, 0, array, array)
        with pytest.raises(Unavailable, match="allocate"):
            Plan(*where, op("sum"), 4, in_place=True)

    _each(body, nranks=1)


def test_nothing_is_left_behind() -> None:
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
        with allreduce(transport, world, "sharded_ps", 50_000)[0] as plan:
            plan()
            world.barrier()

    _each(body, nranks=3)
    assert held() == before


def test_huge_pages_are_asked_for() -> None:
    """Rule: the mapping of a large buffer carries the wish for huge pages (``hg``)."""
    if not Path("/sys/kernel/mm/transparent_hugepage").exists():
        pytest.skip("this kernel has no huge pages on demand")

    def body(world: InprocWorld, transport: ShmTransport) -> None:
        array = transport.allocate(8 << 20)
        parts = Path("/proc/self/smaps").read_text().split("VmFlags:")
        mine = [i for i, part in enumerate(parts) if f"{array.ctypes.data:x}-" in part]
        assert mine and "hg" in parts[mine[0] + 1].splitlines()[0].split()

    _each(body, nranks=1)


def test_without_anonymous_files_mpi_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: where no memory can be shared, one error says why and names what would serve."""

    def refuse(*_: object) -> int:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr("os.memfd_create", refuse)
    with pytest.raises(Unavailable, match=r"Function not implemented.*--transport mpi"):
        run(1, ShmTransport, deadline=20)


def test_without_the_extension_all_ranks_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: where one rank has no extension, all raise its reason, with what would serve."""

    def body(world: InprocWorld) -> None:
        with pytest.raises(Unavailable, match="not built here; go on with --transport mpi"):
            ShmTransport(world)

    said = iter(["", "not built here; go on with --transport mpi", ""])
    monkeypatch.setattr("native.why_not", lambda: next(said))
    run(3, body, deadline=20)


@pytest.mark.parametrize(
    ("crowded", "name", "elements"),
    [
        *((False, "sharded_ps", 2_000_003), (True, "ring", 2_000_003)),
        *thorough((False, "ring", 9_000_000), (True, "sharded_ps", 9_000_000)),
    ],
)
def test_a_plan_that_was_tried_leaves_memory_as_it_was(
    crowded: bool, name: str, elements: int
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

    _each(body, crowded, 3)


@shared
@pytest.mark.parametrize("collective", ["broadcast", "allreduce"])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_the_limit_of_ranks_with_unequal_buffers(
    collective: str, dtype: str, crowded: bool
) -> None:
    """Rule: where only the root has a source, all ranks sweep alike and agree on the limit."""
    found: dict[int, float] = {}

    def body(world: InprocWorld, transport: ShmTransport) -> None:
        sizes = (1 << 16 if collective == "allreduce" or world.rank == 0 else 0, 1 << 16)
        own = dict(zip(Buffer, (transport.allocate(n).view(dtype) for n in sizes), strict=False))
        elements = len(own[Buffer.OUT]) // max(1, spec(collective).parts(world.size))
        found[world.rank] = transport.limit(LibraryCall(spec(collective), own, None, elements), 3)

    _each(body, crowded, nranks=3)
    assert len(found) == 3 and len(set(found.values())) == 1 and found[0] > 0


def test_two_nodes_are_refused() -> None:
    """Rule: shared memory ends at the host, and the message names what does not."""

    def body(world: InprocWorld) -> None:
        world.nodes = (0, 1)
        with pytest.raises(Unsupported, match="--transport mpi"):
            ShmTransport(world)

    run(2, body, deadline=20)


def test_an_unknown_memory_is_refused() -> None:
    """Rule: an unknown option value is an error with the list, never a default."""
    with pytest.raises(Unsupported, match="auto, memfd, windows"):
        run(1, lambda world: ShmTransport(world, memory="fast"))


def test_buffers_of_a_node_begin_apart() -> None:
    """Rule: buffers of 16 ranks begin at different places of their huge pages, on whole lines."""

    def body(world: InprocWorld) -> list[int]:
        transport = ShmTransport(world)
        held = [transport.allocate(1 << 20) for _ in range(2)]
        found = [transport.memory.locate(array)[1] for array in held]
        world.barrier()
        transport.close()
        return found

    places = [place for found in run(16, body) for place in found]
    assert len(set(places)) == 32
    assert all(place % 64 == 0 for place in places)
