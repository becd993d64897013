"""Memory is planned from what nodes, cgroups and processes really have left."""

from __future__ import annotations

import os
import resource
from pathlib import Path
from types import SimpleNamespace

import pytest

import bench.run.memory
from bench.run.memory import SHARE, Lack, Need, Pool, Room, lack, pools
from collectives.execution.inproc.transport import InprocTransport
from collectives.execution.inproc.world import InprocWorld, run

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
