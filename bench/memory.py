"""What memory a node has left, so that nothing is attempted which does not fit."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from collectives.world import World

__all__ = ["SHARE", "Room", "free_memory", "room"]

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


class Room(NamedTuple):
    """Where ranks take memory from: the place of each rank, and what each place has to give.

    A place is a node, or a GPU.
    """

    of_rank: tuple[int, ...]
    names: tuple[str, ...]
    free: tuple[int, ...]

    def needs(self, each: Sequence[int]) -> list[int]:
        """Bytes needed in each place, from those that each rank needs."""
        total = [0] * len(self.names)
        for need, place in zip(each, self.of_rank, strict=True):
            total[place] += need
        return total

    def ranks(self, place: int) -> int:
        """How many ranks take from a place."""
        return self.of_rank.count(place)


def room(world: World, transport: object) -> Room:
    """The memory of a run: of the nodes, or of the GPUs where the transport moves theirs.

    Such a transport has a method ``room`` that gives the GPU's name and its free bytes. All ranks
    call this together.
    """
    own = getattr(transport, "room", None)
    name, free = ("", free_memory()) if own is None else own()
    found = world.gather([world.nodes[world.rank], name, int(free * SHARE)])
    places = sorted({(node, name) for node, name, _ in found})
    of_rank = tuple(places.index((node, name)) for node, name, _ in found)
    return Room(
        of_rank,
        tuple(f"{name} of node {node}" if name else f"node {node}" for node, name in places),
        tuple(
            min(free for (_, _, free), at in zip(found, of_rank, strict=True) if at == place)
            for place in range(len(places))
        ),
    )
