"""What memory a node has left, so that nothing is attempted which does not fit."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

__all__ = ["SHARE", "free_memory", "per_node"]

# What is taken of the free memory at most: the rest is for page tables, MPI's own buffers and
# whatever else starts on the node meanwhile.
SHARE = 0.85


def _number(path: Path) -> int | None:
    try:
        text = path.read_text().split()[0]
    except (OSError, IndexError):
        return None
    return int(text) if text.isdigit() else None


def _cgroup_free(root: Path) -> int | None:
    """The least that any cgroup from ours upwards leaves, or None without a limit."""
    least: int | None = None
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers not in ("", "memory") and "memory" not in controllers.split(","):
            continue
        base = root / ("sys/fs/cgroup/memory" if controllers else "sys/fs/cgroup")
        limit_name = "memory.limit_in_bytes" if controllers else "memory.max"
        used_name = "memory.usage_in_bytes" if controllers else "memory.current"
        group = base / path.lstrip("/")
        while group == base or base in group.parents:
            limit, used = _number(group / limit_name), _number(group / used_name)
            if limit is not None and used is not None and limit < 2**60:
                free = max(0, limit - used + _reclaimable(group))
                least = free if least is None else min(least, free)
            if group == base:
                break
            group = group.parent
    return least


def _reclaimable(group: Path) -> int:
    """File pages that the group would give back before it ran out."""
    try:
        for line in (group / "memory.stat").read_text().splitlines():
            name, value = line.split()
            if name in ("inactive_file", "total_inactive_file"):
                return int(value)
    except (OSError, ValueError):
        pass
    return 0


def free_memory(root: Path = Path("/")) -> int:
    """Bytes that this node can still give: MemAvailable, and less where a cgroup allows less.

    ``root`` stands in for ``/`` in tests. Without ``/proc/meminfo`` (not Linux) 1 GiB is assumed.
    """
    available = 2**30
    try:
        for line in (root / "proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                available = int(line.split()[1]) * 1024
    except OSError:
        pass
    limit = _cgroup_free(root)
    return available if limit is None else min(available, limit)


def per_node(needs: Sequence[int], nodes: Sequence[int]) -> dict[int, int]:
    """Bytes needed on each node from those each rank needs."""
    total: dict[int, int] = {}
    for need, node in zip(needs, nodes, strict=True):
        total[node] = total.get(node, 0) + need
    return total
