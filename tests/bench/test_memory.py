"""Memory is planned from what the node, and any cgroup above us, really leaves."""

from pathlib import Path
from types import SimpleNamespace

from bench.memory import Room, free_memory, room
from collectives.worlds.inproc import InprocWorld, run

GIB = 2**30


def _root(tmp_path: Path, available_kib: int, cgroup: str) -> Path:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text(f"MemTotal: 1 kB\nMemAvailable: {available_kib} kB\n")
    (tmp_path / "proc/self/cgroup").write_text(cgroup)
    return tmp_path


def _group(path: Path, **files: str) -> None:
    path.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (path / name.replace("__", ".")).write_text(text)


def test_without_a_limit_the_node_decides(tmp_path: Path) -> None:
    """Rule: MemAvailable when no cgroup has a limit."""
    root = _root(tmp_path, 4 * 2**20, "0::/user\n")
    _group(root / "sys/fs/cgroup/user", memory__max="max\n", memory__current="5\n")
    assert free_memory(root) == 4 * GIB


def test_the_tightest_cgroup_above_us_decides(tmp_path: Path) -> None:
    """Rule: a parent's limit counts, and file pages that can be given back do not."""
    root = _root(tmp_path, 64 * 2**20, "0::/pod/task\n")
    pod = root / "sys/fs/cgroup/pod"
    _group(pod / "task", memory__max=str(8 * GIB), memory__current=str(GIB))
    _group(
        pod,
        memory__max=str(4 * GIB),
        memory__current=str(3 * GIB),
        memory__stat=f"anon 1\ninactive_file {GIB}\n",
    )
    assert free_memory(root) == 2 * GIB


def test_version_one_of_cgroups(tmp_path: Path) -> None:
    """Rule: the memory controller of cgroup v1 is read too; its "no limit" is a huge number."""
    root = _root(tmp_path, 64 * 2**20, "5:cpu:/x\n9:memory:/job\n")
    base = root / "sys/fs/cgroup/memory"
    _group(base, memory__limit_in_bytes=str(2**63 - 4096), memory__usage_in_bytes="7")
    _group(base / "job", memory__limit_in_bytes=str(3 * GIB), memory__usage_in_bytes=str(GIB))
    assert free_memory(root) == 2 * GIB


def test_needs_add_up_per_node() -> None:
    """Rule: all ranks of a node share its memory, and those of a GPU the GPU's."""
    two = Room((0, 1, 0, 1), ("node 0", "node 1"), (1, 1))
    assert two.needs([1, 2, 4, 8]) == [5, 10] and two.ranks(1) == 2

    def body(world: InprocWorld) -> Room:
        gpu = SimpleNamespace(room=lambda: (f"GPU {world.rank // 2}", 1000 * (world.rank + 1)))
        return room(world, gpu)

    found = run(3, body)
    assert (
        found[0] == found[2] == Room((0, 0, 1), ("GPU 0 of node 0", "GPU 1 of node 0"), (850, 2550))
    )
