"""A rank's program bound to shared buffers, for the shm transport."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from collectives.execution.program import Program
from collectives.execution.shm.dependences import DependenceGraph, Work, dependence_graph
from collectives.execution.shm.fast import Shape, direct, eager, mail_bytes, window
from collectives.execution.shm.lines import plan_bytes, traffic, words
from collectives.execution.shm.memory import Memory
from collectives.execution.shm.reference import Lives, Reference
from collectives.execution.shm.stores import Maker, Past, with_best_stores
from collectives.execution.shm.tasks import EMPTY, Place, heard, ordered, places_of, told
from collectives.execution.shm.windows import Windows
from collectives.execution.transport import Action, Array, Buffers, Spans
from collectives.execution.world import Json, World
from collectives.schedule.moves import Buffer
from collectives.schedule.ops import Op

if TYPE_CHECKING:
    from native._core import Watch

T = TypeVar("T")


class RunnablePlan(Protocol):
    """An executable plan: the extension's, or `Reference`."""

    def run(self) -> None:
        """Once, untimed."""

    def spans(self, n: int, starts: Sequence[float], slower: float) -> Spans:
        """So many times, when each began and ended; see `Action.spans`."""
        ...

    def each(self, n: int) -> list[float]:
        """So many times, seconds each."""
        ...

    def loop(self, n: int) -> float:
        """So many times back to back, seconds in all."""
        ...


class HostTransport(Protocol):
    """The parts of `collectives.execution.shm.transport.ShmTransport` that a bound program uses."""

    world: World
    memory: Memory | Windows
    watch: Watch | None
    lives: Lives
    cores: int
    yields: bool
    known_stores: dict[Hashable, Past]

    def common(self, nbytes: int) -> Array: ...  # noqa: D102
    def attach(self, rank: int, key: int, found: Mapping[str, int]) -> Array: ...  # noqa: D102
    def guarded(self, action: Callable[[], T]) -> T: ...  # noqa: D102


class Built(NamedTuple):
    """A plan, and what has to stay mapped for it: its lines, and its staging."""

    plan: RunnablePlan
    shared: Array
    stage: Array | None


class Bound(Action):
    """Bound to shared buffers; see `Action` for the methods. All ranks make one together.

    A subclass says what a rank tells the others, and how a plan comes of what all have told.
    ``segments``: of every rank, what is mapped here of it. ``counts``: what all have moved so far.
    """

    def __init__(self, transport: HostTransport, buffers: Buffers) -> None:
        self.transport, world = transport, transport.world
        # Also where this rank's part is empty: all ranks must come to the same plan.
        self.dtype = buffers[Buffer.OUT].dtype
        found = places_of(transport.memory.locate, buffers, self.dtype.itemsize)
        segments = {
            key: transport.memory.describe(key) for key, _ in found.values() if key != EMPTY
        }
        everyone = world.gather({"told": self._told(found), "segments": segments})
        self.segments = [
            {int(key): self._map(rank, int(key), where) for key, where in one["segments"].items()}
            for rank, one in enumerate(everyone)
        ]
        self._built = self._build([one["told"] for one in everyone])
        world.barrier()
        counts = traffic(self._built.shared, world.size)
        # Bytes moved by the trial of stores do not count.
        self.counts, self._before = counts, (counts.out(self.rank), counts.into(self.rank))
        world.barrier()

    @abstractmethod
    def _told(self, places: Mapping[Buffer, tuple[int, int]]) -> Json:
        """This rank's message to all others, with its buffers' segments and elements."""

    @abstractmethod
    def _build(self, everyone: list[Json]) -> Built:
        """The plan, from what all ranks told."""

    def in_numpy(self, found: DependenceGraph, op: Op | None, cores: int) -> Built:
        """A plan carried out in NumPy."""
        transport = self.transport
        shared = transport.common(plan_bytes(transport.world.size))
        plan = Reference(
            found,
            self.rank,
            self._find,
            words(shared),
            transport.lives,
            op,
            self.dtype,
            window(found, cores, self.dtype.itemsize),
            transport.world.barrier,
            traffic(shared, transport.world.size),
        )
        return Built(plan, shared, None)

    def with_best_stores(
        self,
        found: DependenceGraph,
        able: Callable[[Work], set[Place]],
        build: Callable[
            [int, DependenceGraph, Callable[[Work], set[Place]]], tuple[Any, Array | None]
        ],
    ) -> Built:
        """The plan with the stores that take it least time.

        ``build(lines, flow, past)``: a plan with its words at an address, and its staging.
        """
        transport = self.transport

        def made(some: DependenceGraph, past: Past) -> Built:
            shared = transport.common(plan_bytes(transport.world.size))
            at = int(shared.ctypes.data)
            plan, stage = build(at, some, lambda work: past.of(work, able(work)))
            return Built(plan, shared, stage)

        def timed(built: Built, n: int) -> list[float]:
            return transport.guarded(lambda: built.plan.each(n))

        maker = Maker(able, self._find, made, timed)
        known = transport.known_stores
        itemsize = self.dtype.itemsize
        return with_best_stores(found, itemsize, transport.cores, transport.world, known, maker)

    def _map(self, rank: int, key: int, where: Mapping[str, int]) -> Array:
        if rank == self.rank:
            return self.transport.memory.own(key)
        return self.transport.attach(rank, key, where)

    @property
    def sent(self) -> int:
        """Bytes that left this rank's memory, or that it stored elsewhere, as executors counted."""
        return self.counts.out(self.rank) - self._before[0]

    @property
    def received(self) -> int:
        """Bytes that came into this rank's memory, or that it loaded from elsewhere."""
        return self.counts.into(self.rank) - self._before[1]

    def __call__(self) -> None:
        """See `Action.__call__`. Raises RankFailure when another rank is lost."""
        self.transport.guarded(self._built.plan.run)

    def times(self, n: int, loop: bool) -> list[float] | None:
        """Run n times; seconds of each (begun together), or of the loop as one number.

        In the native executor the interpreter takes no part in what is timed.
        """
        plan = self._built.plan
        timed = plan.loop if loop else plan.each
        found = self.transport.guarded(lambda: timed(n))
        return [found] if isinstance(found, float) else found

    def spans(self, n: int, starts: Sequence[float] = (), slower: float = 0.0) -> Spans | None:
        """See `Action.spans`."""
        plan = self._built.plan
        return self.transport.guarded(lambda: plan.spans(n, list(starts), slower))

    def close(self) -> None:
        """See `Action.close`: lets go of all mappings."""
        del self._built, self.segments, self.counts

    # -- what `fast` asks for

    @property
    def rank(self) -> int:
        """The rank whose plan this is."""
        return self.transport.world.rank

    def _find(self, place: Place) -> Array:
        segment = self.segments[place.rank][place.segment]
        whole = len(segment) // self.dtype.itemsize * self.dtype.itemsize
        return segment[:whole].view(self.dtype)[place.start :]

    def address(self, place: Place) -> int:
        """Where a place lies in this process."""
        segment = self.segments[place.rank][place.segment]
        return int(segment.ctypes.data) + place.start * self.dtype.itemsize


class BoundProgram(Bound):
    """A rank's program: every pass is done by a rank whose move it is."""

    def __init__(
        self, transport: HostTransport, program: Program, buffers: Buffers, op: Op | None
    ) -> None:
        self._program, self._op = program, op
        super().__init__(transport, buffers)

    def _told(self, places: Mapping[Buffer, tuple[int, int]]) -> Json:
        return told(self._program, places)

    def _build(self, everyone: list[Json]) -> Built:
        transport, op, nranks = self.transport, self._op, len(everyone)
        programs = [heard(one) for one in everyone]
        shape = Shape.of(programs, self.dtype.itemsize, transport.cores)
        watch = transport.watch
        if watch is not None and shape.eager:
            lines = plan_bytes(nranks)
            shared = transport.common(lines + mail_bytes(programs, shape))
            at = int(shared.ctypes.data)
            plan = eager(watch, at, self, programs, shape, op, at + lines)
            return Built(plan, shared, None)
        found = dependence_graph(ordered(programs), nranks)
        if watch is None:
            return self.in_numpy(found, op, shape.cores)
        # Among ranks that take turns on a core, nothing that one rank leaves for another in a
        # window is still in a cache when the other comes to it.
        crowded = nranks > shape.cores and found.crossing

        def able(work: Work) -> set[Place]:
            return {*work.targets} - {*work.sources} if crowded else work.cold

        return self.with_best_stores(
            found,
            able,
            lambda at, some, past: direct(watch, at, self, some, shape, op, past),
        )
