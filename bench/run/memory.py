"""Free memory (nodes, cgroups, address spaces, GPUs) and the buffers of rows."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np

from busbar.host import cgroups
from collectives.execution.transport import Array, Transport
from collectives.execution.world import World
from collectives.schedule.layout import Elements, Layout
from collectives.schedule.moves import Buffer
from collectives.schedule.spec import Collective

# The share of free memory that a row may take. The rest is for page tables, MPI's own buffers and
# other programs that start meanwhile.
SHARE = 0.85
# A cgroup without a limit shows a number near this one, or the word "max".
_NO_LIMIT = 2**60
Sizes = Mapping[Buffer, tuple[int, ...]]
"""Bytes of each buffer, a number a rank; in place there is one buffer, ``out``."""

# Vectors that MPI libraries allocate on every rank (docs/measuring.md, memory), if it is not 1.
_VECTORS = {"reduce": 2, "reduce_scatter": 2}
# For smaller vectors, a library's memory is dominated by its first messages.
_LEAST_VECTOR = 16 << 20


class Pool(NamedTuple):
    """A source of memory with a limit, as one rank sees it.

    ``key`` is the same for all ranks that share the pool. ``name`` completes a sentence such as "16
    GiB on node 0". ``free``: bytes available now. ``address``: True for an address space, in which
    every mapping counts. ``most``: bytes that these ranks may use in all, if other ranks use the
    pool at the same time.
    """

    key: str
    name: str
    free: int
    address: bool = False
    most: int | None = None


class Need(NamedTuple):
    """Bytes that a row needs on a rank in total, and how many of them the rank already holds.

    ``mapped``: True if a rank also maps the memory of the other ranks.
    """

    total: int
    held: int = 0
    mapped: bool = False


class Lack(NamedTuple):
    """A pool with too little memory: its name, bytes needed and free, and its number of ranks."""

    name: str
    need: int
    free: int
    ranks: int


# -- what this process sees


def _number(path: Path) -> int | None:
    try:
        text = path.read_text().split()[0]
    except (OSError, IndexError):
        return None
    return int(text) if text.isdigit() else None


def _named(path: Path) -> dict[str, int]:
    """The numbers in a file of lines "name value", such as /proc/meminfo, in the file's unit."""
    limits: dict[str, int] = {}
    with suppress(OSError):
        for line in path.read_text().splitlines():
            name, *rest = line.split()
            if rest and rest[0].isdigit():
                limits[name.rstrip(":")] = int(rest[0])
    return limits


def _node(root: Path) -> int:
    """MemAvailable in bytes; less if the kernel does not overcommit (overcommit_memory 2)."""
    info = _named(root / "proc/meminfo")
    free = info.get("MemAvailable", 2**20)
    if _number(root / "proc/sys/vm/overcommit_memory") == 2:
        free = min(free, info.get("CommitLimit", free) - info.get("Committed_AS", 0))
    return max(0, free) * 1024


def _cgroups(root: Path) -> Iterator[tuple[str, str, int]]:
    """Key, path and free bytes of each cgroup with a limit, from this process's group upwards."""
    for base, group in cgroups("memory", root):
        free = _group_free(group)
        if free is not None:
            where = group.stat()
            name = "/" if group == base else f"/{group.relative_to(base)}"
            yield f"{where.st_dev}:{where.st_ino}", name, free


def _group_free(group: Path) -> int | None:
    """Free bytes of a cgroup of either version, or None without a limit."""
    names = ("memory.max", "memory.high", "memory.limit_in_bytes")
    limits = [n for name in names if (n := _number(group / name)) is not None and n < _NO_LIMIT]
    current, usage = (_number(group / f"memory.{name}") for name in ("current", "usage_in_bytes"))
    used = usage if current is None else current
    if not limits or used is None:
        return None
    # The kernel reclaims these file pages when memory runs short. Version 1 names the sum that
    # includes child groups differently. Neither number includes shared memory.
    pages = _named(group / "memory.stat")
    cached = pages.get("total_inactive_file", pages.get("inactive_file", 0))
    return max(0, min(limits) - used + cached)


def _address_space(root: Path) -> int | None:
    """Bytes that this process may still map (ulimit -v), or None without a limit."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    pages = _number(root / "proc/self/statm")
    if limit == resource.RLIM_INFINITY or pages is None:
        return None
    return max(0, limit - pages * resource.getpagesize())


def pools(node: int = 0, root: Path = Path("/")) -> list[Pool]:
    """All pools that this process takes memory from, as they are now; ``node``: number of its node.

    ``root`` replaces ``/`` in tests. Without ``/proc/meminfo`` (not Linux) a node has 1 GiB.
    """
    where = f"node {node}"
    known = [Pool(where, f"on {where}", _node(root))]
    for key, path, free in _cgroups(root):
        known.append(Pool(f"{where} {key}", f"in cgroup {path} of {where}", free))
    space = _address_space(root)
    if space is not None:
        name = "in the address space of one process (ulimit -v)"
        known.append(Pool(f"{where} process {os.getpid()}", name, space, True))
    return known


class MemoryGrowth:
    """Growth of this process's memory from creation of this object to its peak.

    ``root`` replaces ``/proc/self`` in tests. If the kernel does not report it, the growth is 0.
    """

    def __init__(self, root: Path = Path("/proc/self")) -> None:
        self._status, self._before = root / "status", 2**60
        with suppress(OSError):
            (root / "clear_refs").write_text("5")  # the peak begins anew
            self._before = _named(self._status).get("VmRSS", self._before)

    def nbytes(self) -> int:
        """Bytes of the peak above the memory that was in use at creation."""
        return max(0, _named(self._status).get("VmHWM", 0) - self._before) * 1024


def free_memory() -> int:
    """Bytes that processes on this node can still allocate."""
    return min(pool.free for pool in pools() if not pool.address)


# -- what all ranks see together


def lack(needs: Sequence[Need], seen: Sequence[Sequence[Pool]]) -> Lack | None:
    """The pool with the least memory in proportion to the need; None if all pools have enough.

    ``needs`` and ``seen`` have an entry for each rank. Memory that a rank already holds for the row
    counts as free, so the answer does not depend on earlier rows. If ranks read different sizes of
    a pool, the smallest counts.
    """
    everyone = sum(need.total for need in needs)
    of: dict[str, list[int]] = {}
    for rank, own in enumerate(seen):
        for pool in own:
            of.setdefault(pool.key, []).append(rank)
    shortages: list[Lack] = []
    for key, ranks in of.items():
        views = [pool for rank in ranks for pool in seen[rank] if pool.key == key]
        shares = views[0].address and needs[ranks[0]].mapped
        need = everyone if shares else sum(needs[rank].total for rank in ranks)
        whole = min(pool.free for pool in views) + sum(needs[rank].held for rank in ranks)
        if views[0].most is not None:
            whole = min(whole, views[0].most)
        free = int(whole * SHARE)
        if need > free:
            shortages.append(Lack(views[0].name, need, free, len(ranks)))
    return min(shortages, key=lambda one: one.free / one.need, default=None)


class Room:
    """The memory of a run; every method is called by all ranks together.

    The memory is the nodes' (``on_host``), or the GPUs' if the transport has a method ``room`` that
    returns a GPU's name and free bytes. A transport with ``shares_memory`` maps the buffers of all
    ranks. ``part``: the share of the memory free at the start that these ranks may use, if groups
    of ranks run at the same time (``--split``).
    """

    def __init__(self, world: World, transport: Transport, part: float = 1.0) -> None:
        self._world = world
        self._transport = transport
        self.on_host = transport.room() is None
        self.mapped = transport.shares_memory
        self._most: dict[str, int] = {}
        if part < 1:
            self._most = {p.key: int(p.free * part) for p in self._look() if not p.address}

    def _look(self) -> list[Pool]:
        """The free memory that this rank sees now."""
        node = self._world.nodes[self._world.rank]
        room = self._transport.room()
        if room is None:
            known = pools(node)
        else:
            name, free = room
            known = [Pool(f"{name} of node {node}", f"on {name} of node {node}", free)]
        return [pool._replace(most=self._most.get(pool.key)) for pool in known]

    def seen(self) -> list[list[Pool]]:
        """The pools of every rank, read now. Only rank 0 gets them; others get an empty list."""
        return [[Pool(*pool) for pool in one] for one in self._world.collect(self._look())]

    def lack(self, need: Need) -> Lack | None:
        """The pool that is too small for a row, or None; the same on all ranks.

        ``need`` is this rank's own.
        """
        needs = [Need(*one) for one in self._world.collect(need)]
        lacking = self._world.broadcast(lack(needs, self.seen()))
        return None if lacking is None else Lack(*lacking)


def buffers(
    spec: Collective, nranks: int, root: int, elements: Elements, itemsize: int, in_place: bool
) -> Sizes:
    """The bytes that all ranks need for ``in`` and ``out``, computed without communication."""
    layout = Layout(spec, nranks, spec.parts(nranks), root)
    own = {
        buffer: tuple(layout.elements(r, buffer, elements) * itemsize for r in range(nranks))
        for buffer in (Buffer.IN, Buffer.OUT)
    }
    return {Buffer.OUT: tuple(map(max, *own.values()))} if in_place else own


def beside(spec: Collective, sizes: Sizes, rank: int, vectors: float = 0.0) -> int:
    """Bytes that a library's collective allocates on a rank in addition to the row's buffers.

    ``vectors``: how many vectors it allocated in earlier rows, if that is more than usual.
    """
    return int(max(_VECTORS.get(spec.name, 1), vectors) * _vector(sizes, rank))


def taken(sizes: Sizes, rank: int, nbytes: int) -> float:
    """The memory that a library allocated, in vectors; 0 if vectors are too small to tell.

    ``nbytes``: what it allocated.
    """
    vector = _vector(sizes, rank)
    return nbytes / vector if vector >= _LEAST_VECTOR else 0.0


def _vector(sizes: Sizes, rank: int) -> int:
    return max(own[rank] for own in sizes.values())


class Arena:
    """The buffers of the current row; every method is called by all ranks in the same order.

    A buffer is reused for the next row if it has the same size there on all ranks. Otherwise it is
    freed before free memory is read. So a row's memory does not depend on the rows before it.
    """

    def __init__(self, transport: Transport, rank: int) -> None:
        self._transport, self._rank = transport, rank
        self._sizes: dict[Buffer, tuple[int, ...]] = {}
        self._held: dict[Buffer, Array] = {}

    def keep(self, sizes: Sizes) -> int:
        """Free buffers of other sizes. Returns the bytes that this rank still holds."""
        for buffer, held in list(self._sizes.items()):
            if sizes.get(buffer) != held:
                del self._sizes[buffer], self._held[buffer]
        return sum(own[self._rank] for own in self._sizes.values())

    def take(self, sizes: Sizes) -> None:
        """Allocate the buffers of a row that are not held yet.

        ``sizes``: bytes of each buffer on every rank. Raises Unavailable if memory is short.
        """
        for buffer, own in sizes.items():
            if buffer not in self._held:
                self._held[buffer] = self._transport.allocate(own[self._rank])
                self._sizes[buffer] = own

    def __getitem__(self, buffer: Buffer) -> Array:
        """A buffer's bytes on this rank."""
        return self._held[buffer]


def in_place_starts(layout: Layout, rank: int, elements: Elements) -> tuple[int, int]:
    """The first elements of ``in`` and ``out`` in the memory that they share."""
    mine = layout.parts(rank, Buffer.IN).tolist()
    want = layout.parts(rank, Buffer.OUT).tolist()
    if not mine or not want:
        return 0, 0
    each = int(np.asarray(elements).flat[0])  # parts of unequal sizes are never in place
    if len(mine) <= len(want):
        return want.index(mine[0]) * each, 0
    return 0, mine.index(want[0]) * each
