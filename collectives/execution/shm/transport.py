"""The transport for ranks of one host: every rank maps all buffers and accesses them in place.

`collectives.execution.shm` computes the dependence graph, and the native extension runs the passes.
There are no message buffers: the receiver reads the sender's buffer.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from weakref import WeakValueDictionary, finalize

import numpy as np
from numpy.typing import NDArray

import native
from busbar.errors import Unavailable, Unsupported
from collectives.execution.one_sided import OneSidedProgram
from collectives.execution.program import Program
from collectives.execution.roofline import typical
from collectives.execution.shm.affinity import cores_of, yield_group
from collectives.execution.shm.bound import BoundProgram
from collectives.execution.shm.memory import LINE, Segment, plan_bytes
from collectives.execution.shm.stores import Past
from collectives.execution.shm.windows import sharing
from collectives.execution.shm.worksharing import OwnSweep, WorkSharing
from collectives.execution.transport import (
    Action,
    Array,
    Buffers,
    CallList,
    LibraryCall,
    OneSidedAccess,
    Spans,
    Transport,
)
from collectives.execution.world import World, agree, lost
from collectives.schedule.ops import Op

if TYPE_CHECKING:
    from native._core import Watch

T = TypeVar("T")
# Buffers with the same offset in their huge pages share cache sets and memory banks everywhere. A
# pass over the buffers of 16 ranks then evicts what it has just fetched. So each buffer begins this
# many bytes after another (docs/shared-memory.md); at most 64 places, 290 KiB.
_COLOUR_BYTES = 4608
_COLOURS = 64


def why_not() -> str:
    """Why shared memory cannot be used here; empty if the extension is available."""
    return native.why_not()


class ShmTransport(Transport):
    """The transport for processes of one node that map each other's buffers.

    See `Transport` for the methods; `prepare` is called by all ranks together. ``memory`` is
    ``memfd``, ``windows`` (MPI-3), or ``auto`` for windows if memfd fails. ``deadline``: seconds
    that a rank waits for another before it gives up. Raises Unsupported if the ranks are on several
    nodes, Unavailable if memory cannot be shared or a rank has no native extension; both on all
    ranks.
    """

    name = "shm"
    shares_memory = True

    def __init__(self, world: World, *, memory: str = "auto", deadline: float = 60.0) -> None:
        if len(set(world.nodes)) > 1:
            raise Unsupported(
                f"the shm transport serves one node, not {len(set(world.nodes))};"
                " use --transport mpi"
            )
        agree(world, why_not())
        from native import _core

        self.world, self.deadline = world, deadline
        self.memory = sharing(world, memory)
        self._allocated = 0
        self.known_stores: dict[Hashable, Past] = {}
        self._attached: WeakValueDictionary[tuple[int, int], Array] = WeakValueDictionary()
        mine = {
            "pid": os.getpid(),
            "namespace": _pid_namespace(),
            "cpus": sorted(os.sched_getaffinity(0)),
            "group": yield_group(),
        }
        everyone = world.gather(mine)
        # Here the process id of a rank in another container is no process, or one of a stranger.
        self.pids = [
            int(one["pid"]) if one["namespace"] == mine["namespace"] else 0 for one in everyone
        ]
        self.cores = cores_of([one["cpus"] for one in everyone])
        crowded = world.size > self.cores
        # Whether a rank that yields passes its core on to another rank.
        self.yields = crowded and len({one["group"] for one in everyone}) == 1
        self._life = self.common(world.size * LINE)
        life = int(self._life.ctypes.data)
        self.watch: Watch = _core.Watch(world.rank, life, self.pids, crowded, deadline)
        # Also runs when the interpreter exits: a rank that exits without it counts as dead.
        self._leave = finalize(self, _leave, self.watch, self._life)

    def common(self, nbytes: int) -> Array:
        """Zeroed memory of rank 0 that all ranks share. All ranks call this together.

        Raises Unavailable, on all ranks, if rank 0 gets no memory or a rank cannot map it.
        """
        first, why = self.world.rank == 0, ""
        mine: Segment | None = None
        if first or self.memory.collective:
            try:
                mine = self.memory.allocate(nbytes if first else 0)
            except Unavailable as error:
                why = str(error)
        where = self.world.broadcast(mine and self.memory.describe(mine.key))
        array = mine.array if mine and first else None
        if where is not None and array is None:
            try:
                array = self.memory.attach(where)
            except Unavailable as error:
                why = str(error)
        try:
            agree(self.world, why)
        finally:
            if mine:
                self.memory.close_file(mine.key)
        assert array is not None
        return array

    def attach(self, rank: int, key: int, where: Mapping[str, int]) -> Array:
        """Another rank's segment, mapped once and shared by all users of this transport."""
        array = self._attached.get((rank, key))
        if array is None:
            array = self.memory.attach(where)
            self._attached[rank, key] = array
        return array

    def allocate(self, nbytes: int) -> NDArray[np.uint8]:
        """Allocate memory that every rank of the node maps; this rank writes it first.

        Its offset in its pages differs from other ranks' buffers and from the one before.
        """
        colour = (2 * self.world.rank + self._allocated % 2) % _COLOURS
        self._allocated += 1
        begin = colour * _COLOUR_BYTES
        return self.memory.allocate(begin + nbytes).array[begin : begin + nbytes]

    def trim(self) -> None:
        """Free memory that no rank uses. All ranks call this together."""
        self.memory.trim()

    def prepare(self, program: Program, buffers: Buffers, op: Op | None) -> Action:
        """Bind one rank's program to its buffers; all ranks call this together."""
        return BoundProgram(self, program, buffers, op)

    def one_sided(self, program: Program, buffers: Buffers, how: OneSidedAccess) -> Action:
        """Bind a program of one step as stores into, or loads from, memory that both ranks map.

        The other rank is not notified; to read what was put, it waits for a barrier. See
        `Transport.one_sided`.
        """
        reaching = OneSidedProgram(self.world, program, how)
        exposed, description = buffers[reaching.exposed], None
        if exposed.nbytes:
            key, offset = self.memory.locate(exposed)
            description = [key, offset, exposed.nbytes, self.memory.describe(key)]
        everyone, places = self.world.gather(description), dict[int, Array]()
        for peer in reaching.peers:
            key, offset, nbytes, where = everyone[peer]
            places[peer] = self.attach(peer, key, where)[offset : offset + nbytes]
        self.world.barrier()  # descriptions stay valid until all ranks have mapped them
        calls = []
        for peer, own, start, stop in reaching.accesses:
            near = buffers[own.buffer][own.start : own.stop]
            far = places[peer].view(near.dtype)[start:stop]
            calls.append(partial(np.copyto, *((far, near) if reaching.put else (near, far))))
        return CallList(calls * reaching.times, *reaching.moved(exposed.itemsize))

    def worksharing(self, call: LibraryCall) -> Action:
        """Bind a collective whose work all ranks share; all ranks call this together."""
        return WorkSharing(self, call)

    def limit(self, call: LibraryCall, n: int = 5) -> float:
        """The shortest time that memory allows, see `Transport.limit`.

        Each rank does the copies and reductions of work sharing, but over its own memory.
        """
        sweep = OwnSweep(call, self)

        def seconds(stream: bool) -> float:
            lines = self.common(plan_bytes(self.world.size))
            plan = sweep.plan(self.watch, int(lines.ctypes.data), self.cores, stream)
            self.guarded(plan.run)
            return typical(Spans(*self.guarded(lambda: plan.spans(n))).seconds, self.world)

        return min(map(seconds, (False, True)))

    def guarded(self, action: Callable[[], T]) -> T:
        """Call a function of the extension. Raises RankFailure if another rank is lost."""
        from native import _core

        try:
            return action()
        except _core.PeerFailure as error:
            peer, reason = error.args
            raise lost(self.world.rank, peer, reason, self.deadline) from None

    def close(self) -> None:
        """Leave: ranks that still wait for this one end with an error."""
        self._leave()
        self.memory.close()


def _leave(watch: Watch, life: Array) -> None:
    """Mark this rank as left; ``life`` keeps the memory mapped until then."""
    watch.leave()


def _pid_namespace() -> int:
    """A number for this process's namespace of process ids; 0 if it is not known."""
    try:
        return Path("/proc/self/ns/pid").stat().st_ino
    except OSError:
        return 0
