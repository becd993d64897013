"""A program bound to shared buffers: what the shm transport's `prepare` gives."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from types import ModuleType
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np

from collectives.errors import Unsupported
from collectives.moves import Buffer
from collectives.ops import Op
from collectives.program import Program
from collectives.shared.fast import Shape, direct, eager, mail_bytes
from collectives.shared.flow import Flow, Work, flow
from collectives.shared.lines import plan_bytes, words
from collectives.shared.memory import Memory
from collectives.shared.pool import can_pool, pooled
from collectives.shared.reference import Lives, Reference
from collectives.shared.stores import Maker, Past, with_best_stores
from collectives.shared.tasks import Place, encode, ordered
from collectives.shared.windows import Windows
from collectives.transport import Array, Buffers, Counted
from collectives.world import Json, World

__all__ = ["Bound"]

T = TypeVar("T")
EMPTY = -2
"""The segment number of a buffer without elements."""


class FiredPlan(Protocol):
    """What carries a plan out: the extension's, or `Reference`."""

    def fire(self) -> None: ...
    def each(self, n: int) -> list[float]: ...
    def loop(self, n: int) -> float: ...


class Host(Protocol):
    """What a bound program needs of its transport: `collectives.transports.shm.ShmTransport`."""

    world: World
    core: ModuleType | None
    memory: Memory | Windows
    watch: Any
    lives: Lives
    cores: int
    pools: bool
    turns: bool
    known_stores: dict[Hashable, Past]

    def common(self, nbytes: int) -> Array: ...
    def attach(self, rank: int, key: int, found: Mapping[str, int]) -> Array: ...
    def guarded(self, action: Callable[[], T]) -> T: ...


class _Built(NamedTuple):
    """A plan, and what has to stay mapped for it: its lines, and its staging."""

    plan: FiredPlan
    shared: Array
    stage: Array | None


class Bound(Counted):
    """A program bound to shared buffers; see `Action` for the methods."""

    def __init__(self, transport: Host, program: Program, buffers: Buffers, op: Op | None) -> None:
        self._transport, world = transport, transport.world
        # Also where this rank's part is empty: all ranks must come to the same plan.
        self._dtype = buffers[Buffer.OUT].dtype
        super().__init__(*(n * self._dtype.itemsize for n in (program.sent(), program.received())))
        everyone = world.gather(self._describe(program, buffers))
        self._segments = [
            {int(key): self._map(rank, int(key), where) for key, where in one["segments"].items()}
            for rank, one in enumerate(everyone)
        ]
        self._built = self._build([one["steps"] for one in everyone], op)
        world.barrier()

    def _build(self, programs: list[Json], op: Op | None) -> _Built:
        transport, nranks = self._transport, len(programs)
        shape = Shape.of(programs, self._dtype.itemsize, transport.cores)
        core, watch, lines = transport.core, transport.watch, plan_bytes(nranks)
        if core is not None and shape.eager:
            shared = transport.common(lines + mail_bytes(programs, shape))
            at = int(shared.ctypes.data)
            letters = eager(core, watch, at, self, programs, shape, op, at + lines)
            return _Built(letters, shared, None)
        found = flow(ordered(programs), nranks)
        if core is None:
            shared = transport.common(lines)
            plan = Reference(
                found,
                self.rank,
                self._find,
                words(shared),
                transport.lives,
                op,
                self._dtype,
                shape.window,
                transport.world.barrier,
            )
            return _Built(plan, shared, None)

        pools = transport.pools and can_pool(found)
        # Among ranks that take turns on a core, nothing that one rank leaves for another in a window
        # is still in a cache when the other comes to it.
        turns = not pools and nranks > shape.cores and found.crossing

        def able(work: Work) -> set[Place]:
            return {*work.targets} - {*work.sources} if turns else work.cold

        def build(some: Flow, past: Past) -> _Built:
            def stored(work: Work) -> set[Place]:
                return past.of(work, able(work))

            shared = transport.common(lines)
            at = int(shared.ctypes.data)
            if pools:
                made = pooled(core, watch, at, self, some, op, stored, transport.turns)
            else:
                made = direct(core, watch, at, self, some, shape, op, stored)
            return _Built(made[0], shared, made[1])

        def timed(built: _Built, n: int) -> list[float]:
            return transport.guarded(lambda: built.plan.each(n))

        maker = Maker(able, self._find, build, timed)
        known = transport.known_stores
        return with_best_stores(found, shape.itemsize, shape.cores, transport.world, known, maker)

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
        """See `Action.__call__`. Raises RankFailure when another rank is lost."""
        self._transport.guarded(self._built.plan.fire)
        self._fired += 1

    def times(self, n: int, loop: bool) -> list[float]:
        """Fire n times; seconds of each (begun together), or of the loop as one number.

        In the native executor the interpreter takes no part in what is timed.
        """
        plan = self._built.plan
        timed = plan.loop if loop else plan.each
        found = self._transport.guarded(lambda: timed(n))
        self._fired += n
        return [found] if isinstance(found, float) else found

    def close(self) -> None:
        """See `Action.close`: lets go of all mappings."""
        del self._built, self._segments

    # -- what `fast` asks for

    @property
    def rank(self) -> int:
        """The rank whose plan this is."""
        return self._transport.world.rank

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the elements."""
        return self._dtype

    def _find(self, place: Place) -> Array:
        segment = self._segments[place.rank][place.segment]
        whole = len(segment) // self._dtype.itemsize * self._dtype.itemsize
        return segment[:whole].view(self._dtype)[place.start :]

    def address(self, place: Place) -> int:
        """Where a place lies in this process."""
        segment = self._segments[place.rank][place.segment]
        return int(segment.ctypes.data) + place.start * self._dtype.itemsize
