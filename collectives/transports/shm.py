"""One host's ranks in one memory: buffers that every rank maps, read and written where they lie.

`collectives.shared` works out who waits for whom; the passes run in the native extension, or in
NumPy. There is no message anywhere: the sender's buffer is the message.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, Protocol, TypeVar, cast
from weakref import WeakValueDictionary, finalize

import numpy as np
from numpy.typing import NDArray

import native
from collectives.errors import RankFailure, Unavailable, Unsupported
from collectives.layout import Elements
from collectives.moves import Buffer
from collectives.ops import Op
from collectives.program import Program
from collectives.shared.bind import cores_of
from collectives.shared.ceiling import Ceiling, probe
from collectives.shared.fast import Shape, direct, eager, mail_bytes
from collectives.shared.flow import flow
from collectives.shared.memory import Memory, Segment
from collectives.shared.reference import Lives, Reference
from collectives.shared.tasks import Place, encode, ordered
from collectives.shared.windows import Windows
from collectives.spec import Collective
from collectives.transport import Action, Array, Buffers
from collectives.world import Json, World

__all__ = ["ShmTransport", "why_not"]

T = TypeVar("T")
_LINE = 128
_DIED, _LATE = 1, 3
EMPTY = -2
EXECUTORS = ("auto", "native", "numpy")
MEMORIES = ("auto", "memfd", "windows")


def why_not() -> str:
    """Why plans would run in NumPy here; empty where the native extension carries them out."""
    return native.why_not()


class ShmTransport:
    """See `Transport` for the methods; `prepare` is called by all ranks together.

    ``executor`` is ``native``, ``numpy``, or ``auto`` for native where it is available.
    ``memory`` is ``memfd``, ``windows`` (MPI-3), or ``auto`` for windows where memfd fails.
    ``deadline``: seconds that a rank waits for another before it gives up. Raises Unsupported
    when the ranks are on several nodes, Unavailable when memory cannot be shared.
    """

    name = "shm"

    def __init__(
        self,
        world: World,
        *,
        executor: str = "auto",
        memory: str = "auto",
        deadline: float = 60.0,
    ) -> None:
        if executor not in EXECUTORS:
            raise Unsupported(f"no executor {executor!r}; there are: {', '.join(EXECUTORS)}")
        if len(set(world.nodes)) > 1:
            raise Unsupported(
                f"the shm transport serves one node, not {len(set(world.nodes))};"
                " use --transport mpi"
            )
        core = None if executor == "numpy" else native.load()
        if executor == "native" and core is None:
            raise Unavailable(native.why_not())
        self.world, self.deadline = world, deadline
        self.core: ModuleType | None = core
        self.memory = _sharing(world, core, memory)
        self._attached: WeakValueDictionary[tuple[int, int], Array] = WeakValueDictionary()
        everyone = world.gather({"pid": os.getpid(), "cpus": sorted(os.sched_getaffinity(0))})
        self.pids = [int(one["pid"]) for one in everyone]
        self.cores = cores_of([one["cpus"] for one in everyone])
        self._life = self.common(world.size * _LINE)
        self.lives = Lives(world.rank, words(self._life), self.pids, deadline)
        # Also when the interpreter ends: whoever ends without leaving counts as dead.
        self._leave = finalize(self, _leave, words(self._life), world.rank)
        self.watch = core and core.Watch(
            world.rank, int(self._life.ctypes.data), self.pids, world.size > self.cores, deadline
        )

    @property
    def executor(self) -> str:
        """What carries plans out: ``native`` or ``numpy``."""
        return "native" if self.core else "numpy"

    def common(self, nbytes: int) -> Array:
        """Zeroed memory that all ranks share, held by rank 0. All ranks call this together."""
        first = self.world.rank == 0
        mine = None
        if first or self.memory.collective:
            mine = self.memory.allocate(nbytes if first else 0)
        found = self.world.broadcast(mine and self.memory.describe(mine.key))
        array = mine.array if mine and first else self.memory.attach(found)
        self.world.barrier()
        return array

    def attach(self, rank: int, key: int, found: Mapping[str, int]) -> Array:
        """Another rank's segment, mapped here once for all who use it."""
        array = self._attached.get((rank, key))
        if array is None:
            array = self.memory.attach(found)
            self._attached[rank, key] = array
        return array

    def allocate(self, nbytes: int) -> NDArray[np.uint8]:
        """Memory that every rank of the node maps, first touched by this one."""
        segment: Segment = self.memory.allocate(nbytes)
        return segment.array[:nbytes]

    def staging(self, program: Program, itemsize: int) -> int:
        """Late messages are put aside; at most those of the step that has most of them."""
        late = [sum(r.span.size for r in step.receives if r.late) for step in program.steps]
        return max(late, default=0) * itemsize

    def prepare(self, program: Program, buffers: Buffers, op: Op | None) -> Action:
        """See `Transport.prepare`. All ranks call this together."""
        return _ShmAction(self, program, buffers, op)

    def library(
        self,
        spec: Collective,
        buffers: Buffers,
        op: Op | None,
        *,
        elements: Elements,
        root: int,
        in_place: bool,
    ) -> Action:
        """There is no library here: raises Unsupported."""
        raise Unsupported(
            "the shm transport has no library collective to compare with; the MPI library's"
            " is had through the mpi transport"
        )

    def ceiling(self, source: Array, target: Array, n: int = 5) -> Ceiling:
        """What this memory gives these ranks at this size, from n sweeps of each kind.

        ``source`` and ``target`` are as long as the collective's; ``target`` loses its content.
        All ranks call this together. Raises Unsupported without the native extension.
        """
        core = self.core
        if core is None:
            raise Unsupported(f"no memory ceiling: {native.why_not() or 'the executor is numpy'}")
        nbytes = min(source.nbytes, target.nbytes) // 8 * 8

        def sweep(kind: str, stream: bool) -> list[float]:
            lines = self.common(plan_bytes(self.world.size))
            places = [source.ctypes.data, target.ctypes.data]
            if kind == "update":
                places[1] = places[0]
            number = core.SWEEPS.index(kind)
            plan = core.sweep(self.watch, lines.ctypes.data, number, *places, nbytes, stream)
            plan.fire()
            return cast("list[float]", self.guarded(lambda: plan.each(n)))

        return probe(sweep, self.world, nbytes)

    def clock(self) -> Callable[[], float]:
        """The host's clock."""
        return time.perf_counter

    def guarded(self, action: Callable[[], T]) -> T:
        """Run something native; a lost rank becomes RankFailure."""
        core = self.core
        if core is None:
            return action()
        try:
            return action()
        except core.PeerFailure as error:
            raise self.failure(*error.args) from None

    def failure(self, rank: int, reason: int) -> RankFailure:
        """What the native executor reports about a rank, as an error."""
        me = self.world.rank
        if reason == _LATE:
            return RankFailure(
                f"rank {me} waited {self.deadline:g} s for rank {rank}, which did not arrive"
            )
        what = "died" if reason == _DIED else "has left"
        return RankFailure(f"rank {rank} {what} while rank {me} waited in a collective")

    def close(self) -> None:
        """Leave: ranks that still wait for this one end with an error."""
        self._leave()
        self.lives.close()
        self.memory.close()


def _sharing(world: World, core: ModuleType | None, memory: str) -> Memory | Windows:
    """Memory that all ranks can map, tried out by all of them together."""
    if memory not in MEMORIES:
        raise Unsupported(f"no memory {memory!r}; there are: {', '.join(MEMORIES)}")
    if memory == "windows":
        return Windows(world)
    found = Memory(core.Mapping if core else None)
    failed = ""
    try:
        trial = found.allocate(1)
        where: Json = found.describe(trial.key)
    except Unavailable as error:
        failed, where = str(error), None
    for other in world.gather(where):
        try:
            if other is not None:
                found.attach(other)
        except Unavailable as error:
            failed = str(error)
    reasons = [reason for reason in world.gather(failed) if reason]
    if not reasons:
        return found
    if memory == "memfd" or not hasattr(world, "comm"):
        raise Unavailable(reasons[0])
    return Windows(world)


def _leave(lives: Array, rank: int) -> None:
    lives[rank] = 1


def plan_bytes(nranks: int) -> int:
    """Bytes of a plan's lines, as `plan_lines` in native/src/plans.hpp counts them."""
    gates = 3
    return ((1 + gates) * nranks + gates) * _LINE


def words(lines: Array) -> NDArray[np.uint64]:
    """The first word of every line of a control segment."""
    return lines[: len(lines) // _LINE * _LINE].view(np.uint64)[:: _LINE // 8]


class FiredPlan(Protocol):
    """What carries a plan out: the extension's, or `Reference`."""

    def fire(self) -> None: ...
    def each(self, n: int) -> list[float]: ...
    def loop(self, n: int) -> float: ...


class _ShmAction:
    """A program bound to shared buffers; see `Action` for the methods."""

    def __init__(
        self, transport: ShmTransport, program: Program, buffers: Buffers, op: Op | None
    ) -> None:
        self._transport, world = transport, transport.world
        self._bytes = program.sent(), program.received()
        self._fired = 0
        self._stage: Array | None = None
        # Also where this rank's part is empty: all ranks must come to the same plan.
        self._dtype = buffers[Buffer.OUT].dtype
        everyone = world.gather(self._describe(program, buffers))
        self._segments = [
            {int(key): self._map(rank, int(key), where) for key, where in one["segments"].items()}
            for rank, one in enumerate(everyone)
        ]
        self._plan = self._build([one["steps"] for one in everyone], op)
        world.barrier()

    def _build(self, programs: list[Json], op: Op | None) -> FiredPlan:
        transport, nranks = self._transport, len(programs)
        shape = Shape.of(programs, self._dtype.itemsize, transport.cores)
        lines = plan_bytes(nranks)
        self._shared = transport.common(lines + mail_bytes(programs, shape))
        core = transport.core
        if core is None:
            return Reference(
                flow(ordered(programs), nranks),
                self.rank,
                self._find,
                words(self._shared[:lines]),
                transport.lives,
                op,
                self._dtype,
                shape.window,
                transport.world.barrier,
            )
        if shape.eager:
            mail = self.lines + lines
            return cast(FiredPlan, eager(core, transport.watch, self, programs, shape, op, mail))
        plan, self._stage = direct(core, transport.watch, self, programs, shape, op)
        return cast(FiredPlan, plan)

    def _describe(self, program: Program, buffers: Buffers) -> Json:
        memory, size = self._transport.memory, self._dtype.itemsize
        found: dict[Buffer, tuple[int, int]] = {}
        for buffer, array in buffers.items():
            key, offset = memory.locate(array) if array.size else (EMPTY, 0)
            if offset % size:
                raise Unsupported(f"a buffer begins {offset} bytes in, not at a whole element")
            found[buffer] = key, offset // size
        segments = {key: memory.describe(key) for key, _ in found.values() if key != EMPTY}
        return {"steps": encode(program, found), "segments": segments}

    def _map(self, rank: int, key: int, where: Mapping[str, int]) -> Array:
        if rank == self.rank:
            return self._transport.memory.own(key)
        return self._transport.attach(rank, key, where)

    def __call__(self) -> None:
        self._transport.guarded(self._plan.fire)
        self._fired += 1

    def times(self, n: int, loop: bool) -> list[float]:
        """Fire n times; seconds of each (begun together), or of the loop as one number.

        In the native executor the interpreter takes no part in what is timed.
        """
        timed = self._plan.loop if loop else self._plan.each
        found = self._transport.guarded(lambda: timed(n))
        self._fired += n
        return [found] if isinstance(found, float) else found

    @property
    def sent(self) -> int:
        """See `Action.sent`."""
        return self._fired * self._bytes[0] * self._dtype.itemsize

    @property
    def received(self) -> int:
        """See `Action.received`."""
        return self._fired * self._bytes[1] * self._dtype.itemsize

    def close(self) -> None:
        """See `Action.close`: lets go of all mappings."""
        del self._plan, self._segments, self._shared
        self._stage = None

    # -- what `fast` asks for

    @property
    def rank(self) -> int:
        """The rank whose plan this is."""
        return self._transport.world.rank

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the elements."""
        return self._dtype

    @property
    def lines(self) -> int:
        """Where the plan's words begin."""
        return int(self._shared.ctypes.data)

    def _find(self, place: Place) -> Array:
        segment = self._segments[place.rank][place.segment]
        whole = len(segment) // self._dtype.itemsize * self._dtype.itemsize
        return segment[:whole].view(self._dtype)[place.start :]

    def address(self, place: Place) -> int:
        """Where a place lies in this process."""
        segment = self._segments[place.rank][place.segment]
        return int(segment.ctypes.data) + place.start * self._dtype.itemsize
