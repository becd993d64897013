"""Memory is planned from what there really is, and rows that do not fit are left out."""

from __future__ import annotations

import os
import resource
import threading
import weakref
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

import bench.run.memory
import native
from bench.launch.control_socket import ControlSocket
from bench.options.argument_types import Checks
from bench.run.environment import RunContext
from bench.run.memory import (
    SHARE,
    Lack,
    MemoryGrowth,
    Need,
    Pool,
    Room,
    beside,
    buffers,
    lack,
    pools,
)
from bench.run.pace import Pace
from bench.run.roofline import Rooflines
from bench.run.rows import Bench, Case
from bench.run.sampler import Gauges
from bench.timing.measure import Timing
from busbar.errors import Unavailable
from busbar.units import format_bytes
from collectives.execution.inproc.transport import InprocTransport
from collectives.execution.inproc.world import InprocWorld, run
from collectives.execution.plan import Plan
from collectives.execution.shm.transport import ShmTransport
from collectives.execution.transport import Action, LibraryCall, unwatched
from collectives.schedule.catalogue import build, spec
from collectives.schedule.ops import op
from tests.conftest import examples

GIB = 2**30


def _root(tmp_path: Path, available_kib: int, cgroup: str) -> Path:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text(
        f"MemTotal: 1 kB\nMemAvailable: {available_kib} kB\n"
        f"CommitLimit: {3 * 2**20} kB\nCommitted_AS: {2**20} kB\nHugePages_Total: 0\n"
    )
    (tmp_path / "proc/self/cgroup").write_text(cgroup)
    return tmp_path


def _group(path: Path, **files: str) -> None:
    path.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (path / name.replace("__", ".")).write_text(text)


def _free(root: Path) -> dict[str, int]:
    return {pool.name: pool.free for pool in pools(0, root) if not pool.address}


def test_without_a_limit_the_node_decides(tmp_path: Path) -> None:
    """Rule: MemAvailable when no cgroup has a limit."""
    root = _root(tmp_path, 4 * 2**20, "0::/user\n")
    _group(root / "sys/fs/cgroup/user", memory__max="max\n", memory__current="5\n")
    assert _free(root) == {"on node 0": 4 * GIB}


def test_a_kernel_that_promises_no_more_than_it_has(tmp_path: Path) -> None:
    """Rule: with overcommit_memory 2 a node gives what is not promised yet."""
    root = _root(tmp_path, 4 * 2**20, "")
    (root / "proc/sys/vm").mkdir(parents=True)
    for mode, free in (("0", 4), ("2", 2)):
        (root / "proc/sys/vm/overcommit_memory").write_text(mode)
        assert _free(root) == {"on node 0": free * GIB}


def test_every_cgroup_above_us_counts(tmp_path: Path) -> None:
    """Rule: each limit on the way up is a pool; file pages that can be given back are free."""
    root = _root(tmp_path, 64 * 2**20, "0::/pod/task\n")
    pod = root / "sys/fs/cgroup/pod"
    _group(pod / "task", memory__max=str(8 * GIB), memory__current=str(GIB), memory__high="max")
    _group(
        pod,
        memory__max=str(5 * GIB),
        memory__high=str(4 * GIB),
        memory__current=str(3 * GIB),
        memory__stat=f"anon 1\nshmem 7\ninactive_file {GIB}\n",
    )
    assert _free(root) == {
        "on node 0": 64 * GIB,
        "in cgroup /pod/task of node 0": 7 * GIB,
        "in cgroup /pod of node 0": 2 * GIB,
    }


def test_version_one_of_cgroups(tmp_path: Path) -> None:
    """Rule: version 1 is read too: its "no limit" is a huge number, its sums have a prefix."""
    root = _root(tmp_path, 64 * 2**20, "5:cpu:/x\n9:memory:/job\n0::/\n")
    base = root / "sys/fs/cgroup/memory"
    _group(base, memory__limit_in_bytes=str(2**63 - 4096), memory__usage_in_bytes="7")
    _group(
        base / "job",
        memory__limit_in_bytes=str(3 * GIB),
        memory__usage_in_bytes=str(2 * GIB),
        memory__stat=f"inactive_file 0\ntotal_inactive_file {GIB}\n",
    )
    assert _free(root) == {"on node 0": 64 * GIB, "in cgroup /job of node 0": 2 * GIB}


def test_a_container_sees_its_own_limit_at_the_root(tmp_path: Path) -> None:
    """Rule: where the path is another's view, what is mounted there is still found."""
    root = _root(tmp_path, 64 * 2**20, "0::/outside/name\n")
    _group(root / "sys/fs/cgroup", memory__max=str(GIB), memory__current="0")
    assert _free(root)["in cgroup / of node 0"] == GIB


def test_an_address_space_is_a_pool_of_its_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: ulimit -v leaves what is not mapped yet, to this process alone."""
    monkeypatch.setattr(resource, "getrlimit", lambda _: (2**46, resource.RLIM_INFINITY))
    (space,) = [pool for pool in pools() if pool.address]
    assert 0 < space.free < 2**46 and str(os.getpid()) in space.key
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY,) * 2)
    assert not [pool for pool in pools() if pool.address]


def _nodes(*free: int) -> list[list[Pool]]:
    """Two ranks on each of two nodes, seen by each of the four."""
    return [[Pool(f"node {n}", f"on node {n}", free[n])] for n in (0, 1, 0, 1)]


def test_needs_add_up_where_they_are_taken() -> None:
    """Rule: ranks of a node share it; the pool that lacks most is told with both sums."""
    fits = int(100 / SHARE) + 1
    needs = [Need(40), Need(50), Need(60), Need(51)]
    assert lack(needs, _nodes(fits, fits)) == Lack("on node 1", 101, 100, 2)
    assert lack(needs, _nodes(fits // 2, fits)) == Lack("on node 0", 100, 50, 2)
    assert lack(needs, _nodes(fits, 2 * fits)) is None


def test_what_is_held_is_not_needed_again() -> None:
    """Rule: bytes that a rank holds for the row are neither free nor asked for once more."""
    seen = _nodes(int(100 / SHARE) + 1 - 80, 1000)
    assert lack([Need(50, 40), Need(0), Need(50, 40), Need(0)], seen) is None
    assert lack([Need(50, 40), Need(0), Need(51, 40), Need(0)], seen) == Lack(
        "on node 0", 101, 100, 2
    )


def test_ranks_that_looked_at_different_moments_go_by_the_least() -> None:
    """Rule: a pool has one size for all who share it."""
    seen = [[Pool("n", "on node 0", free)] for free in (1000, 10)]
    assert lack([Need(20), Need(0)], seen) == Lack("on node 0", 20, 8, 2)


def test_mappings_of_others_count_in_an_address_space_alone() -> None:
    """Rule: a plan that maps all ranks' buffers takes them from each address space."""
    seen = [
        [Pool("n", "on node 0", 1000), Pool(f"p{rank}", "in p", 100, True)] for rank in range(3)
    ]
    assert lack([Need(50)] * 3, seen) is None
    assert lack([Need(50, 0, True)] * 3, seen) == Lack("in p", 150, 85, 1)


def test_groups_beside_each_other_have_a_part_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: with --split a group takes its part of what was free, not what it finds first."""
    node = Pool("node 0", "on node 0", 1000)
    monkeypatch.setattr(bench.run.memory, "pools", lambda node_: [node])

    def body(world: InprocWorld) -> Lack | None:
        return Room(world, InprocTransport(world), 0.25).lack(Need(110))

    assert run(2, body) == [Lack("on node 0", 220, int(250 * SHARE), 2)] * 2


def test_a_gpu_is_a_pool() -> None:
    """Rule: a transport that takes from a GPU says from which, and how much it has."""

    def body(world: InprocWorld) -> Lack | None:
        gpu = SimpleNamespace(room=lambda: (f"GPU {world.rank // 2}", 1000), shares_memory=False)
        return Room(world, gpu).lack(Need(500))

    assert run(3, body) == [Lack("on GPU 0 of node 0", 1000, 850, 2)] * 3


KIB = 2**10


class _Node:
    """A node with so many bytes. Whoever takes more than there are would be killed."""

    def __init__(self, total: int) -> None:
        self.total, self.taken, self.most = total, 0, 0
        self._lock = threading.Lock()

    def take(self, nbytes: int) -> None:
        with self._lock:
            self.taken += nbytes
            self.most = max(self.most, self.taken)

    def pools(self, node: int = 0) -> list[Pool]:
        return [Pool("node 0", "on node 0", self.total - self.taken)]


class _OnNode(InprocTransport):
    """Threads whose buffers come from a small node, and a library that takes what MPI's do."""

    def __init__(self, world: InprocWorld, node: _Node) -> None:
        super().__init__(world)
        self._world_, self._node = world, node

    def allocate(self, nbytes: int) -> NDArray[np.uint8]:
        array = super().allocate(nbytes)
        self._node.take(nbytes)
        weakref.finalize(array, self._node.take, -nbytes)
        return array

    def library(self, call: LibraryCall) -> Action:
        return _Library(self, self._world_, self._node, call)


class _Library(Plan):
    """A ring that takes a vector for the while of every iteration, as MPI_Allreduce does."""

    def __init__(self, transport: Any, world: InprocWorld, node: _Node, call: LibraryCall) -> None:
        ring, own = build(call.spec.name, "ring", world.size), call.buffers
        where = (ring, call.spec, transport, world.rank, *own.values())
        super().__init__(*where, call.op, call.elements, in_place=call.in_place)
        self._node, self._vector = node, max(array.nbytes for array in own.values())

    def __call__(self) -> None:
        self._node.take(self._vector)
        super().__call__()
        self._node.take(-self._vector)


def _bench(world: InprocWorld, transport: Any) -> Bench:
    opened = RunContext(world, transport, transport, "", ControlSocket())
    return Bench(
        opened, Timing(warmup=0, iterations=1), unwatched, check=Checks(),
        room=Room(world, transport), rooflines=Rooflines(world, transport, False),
        gauges=Gauges(world, transport), pace=Pace([], bounded=False),
    )  # fmt: skip


def _case(algorithm: str, nbytes: int, nranks: int) -> Case:
    schedule = None if algorithm == "library" else build("allreduce", algorithm, nranks)
    return Case(spec("allreduce"), schedule, np.dtype("f4"), op("sum"), nbytes // 4, 0)


RANKS = 4
Row = tuple[str, int, bool]
ROWS = list(
    product(("ring", "ps", "library", "recursive_doubling"), (64, 128, 256, 512), (False, True))
)


def _sweep(node: _Node, rows: list[Row]) -> list[str]:
    """Why each row was left out, or nothing where it ran; the same on all ranks."""

    def body(world: InprocWorld) -> list[str]:
        bench_ = _bench(world, _OnNode(world, node))
        said = []
        for algorithm, kib, in_place in rows:
            case = _case(algorithm, kib * KIB, world.size)
            record = bench_.measure(case, in_place)
            assert not bench_.complaint and bool(record.times_s) != bool(record.skipped)
            said.append(record.skipped)
        return said

    found = run(RANKS, body, deadline=60)
    assert all(one == found[0] for one in found), "ranks must decide alike"
    return list(found[0])


@examples(6)
@given(st.permutations(ROWS), st.integers(1, 14))
def test_a_row_runs_if_it_would_alone(rows: list[Row], half_mib: int) -> None:
    """Rule: no order of algorithms, sizes and placements takes more than there is, nor costs a row.

    What fits on the idle node runs, whatever ran before it; nothing else is tried.
    """
    node = _Node(half_mib * 512 * KIB)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bench.run.memory, "pools", node.pools)
        said = _sweep(node, rows)
        assert node.most <= node.total, "the run would have been killed"
        assert node.taken == 0
        idle = int(node.total * SHARE)
    for (algorithm, kib, in_place), skipped in zip(rows, said, strict=True):
        sizes = buffers(spec("allreduce"), RANKS, 0, kib * KIB // 4, 4, in_place)
        least = sum(map(sum, sizes.values()))
        if algorithm == "library":
            least += RANKS * beside(spec("allreduce"), sizes, 0)
        if algorithm in ("library", "ring"):  # the others have scratch as well
            assert bool(skipped) == (least > idle), (algorithm, kib, in_place, skipped)
        if skipped:
            assert f"which has {format_bytes(idle)} to give" in skipped


def test_a_library_that_takes_more_is_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: what a library has been seen to take is planned for at the next size."""
    mib = 2**20
    node = Pool("node 0", "on node 0", 250 * mib)
    monkeypatch.setattr(bench.run.memory, "pools", lambda _: [node])

    class _Greedy(_Library):
        def __call__(self) -> None:
            held = np.ones(3 * self._vector, np.uint8)
            super().__call__()
            del held

    class _Transport(_OnNode):
        def library(self, call: LibraryCall) -> Action:
            return _Greedy(self, self._world_, self._node, call)

    def body(world: InprocWorld) -> list[str]:
        bench_ = _bench(world, _Transport(world, _Node(0)))
        sizes = 16 * mib, 32 * mib, 64 * mib
        return [bench_.measure(_case("library", n, 1), True).skipped for n in sizes]

    fits, also, too_much = run(1, body, deadline=60)[0]
    # In place two vectors are foreseen, and four were seen: 128 MiB would fit, 256 MiB do not.
    assert (fits, also) == ("", "") and too_much.startswith("1 rank x 2")


def test_growth_is_the_peak_and_not_the_end(tmp_path: Path) -> None:
    """Rule: memory that came and went is seen; where the kernel tells nothing, it is nothing."""
    growth = MemoryGrowth()
    held = np.ones(64 << 20, np.uint8)
    del held
    assert 60 << 20 < growth.nbytes() < 128 << 20
    assert MemoryGrowth(tmp_path).nbytes() == 0


def test_memory_that_one_rank_is_refused_costs_the_row_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rule: what no sum foresaw is N/A on all ranks, and the next row runs."""

    class _Refuses(InprocTransport):
        def allocate(self, nbytes: int) -> NDArray[np.uint8]:
            if refusing and threading.current_thread() is refusing[0]:
                raise Unavailable("no shared memory of so many bytes")
            return super().allocate(nbytes)

    refusing: list[threading.Thread] = []

    def body(world: InprocWorld) -> list[str]:
        bench_, said = _bench(world, _Refuses(world)), []
        for turn in range(3):
            world.barrier()
            if world.rank == 1:
                refusing[:] = [threading.current_thread()] if turn == 1 else []
            world.barrier()
            case = _case("ring", 1024 << turn, world.size)
            said.append(bench_.measure(case, False).skipped)
        return said

    wanted = ["", "rank 1: no shared memory of so many bytes", ""]
    assert run(3, body, deadline=30) == [wanted] * 3


@pytest.mark.skipif(native.load() is None, reason=native.why_not() or "")
def test_shared_segments_go_with_their_row() -> None:
    """Rule: plans, probes and views keep no rank's segment mapped once another row begins."""

    def mapped() -> int:
        lines = Path("/proc/self/maps").read_text().splitlines()
        ends = [line.split()[0].split("-") for line in lines if "memfd:busbar" in line]
        return sum(int(end, 16) - int(begin, 16) for begin, end in ends)

    def body(world: InprocWorld) -> int:
        transport = ShmTransport(world)
        bench_ = _bench(world, transport)
        bench_._rooflines = Rooflines(world, transport)
        most = 0
        for algorithm, in_place in product(("ring", "ps"), (False, True)):
            for nbytes in (8 << 20, 1 << 20):
                case = _case(algorithm, nbytes, world.size)
                assert not bench_.measure(case, in_place).skipped
            world.barrier()
            most = max(most, mapped())
            world.barrier()
        transport.close()
        return most

    # Of 3 ranks' last row: two buffers of 1 MiB each, in whole huge pages, and some lines.
    assert max(run(3, body, deadline=60)) <= 3 * 2 * (4 << 20)
