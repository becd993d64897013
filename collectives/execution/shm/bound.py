"""Actions over shared buffers: a rank's program, or its part of shared work."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Hashable, Mapping
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

from collectives.execution.program import Program
from collectives.execution.shm.dependences import DependenceGraph, dependence_graph
from collectives.execution.shm.memory import Memory, plan_bytes, traffic
from collectives.execution.shm.pass_plans import direct, eager, is_eager, mailboxes
from collectives.execution.shm.stores import Maker, Past, with_best_stores
from collectives.execution.shm.tasks import (
    EMPTY,
    Place,
    Work,
    in_scratch,
    ordered,
    placed_program_json,
    places_of,
    read_placed_program,
)
from collectives.execution.transport import (
    Action,
    Array,
    Buffers,
    Floats,
    Spans,
    Start,
    Tell,
    TracedMessage,
)
from collectives.execution.world import Json, World
from collectives.schedule.moves import Buffer
from collectives.schedule.ops import Op

if TYPE_CHECKING:
    from native import _core

T = TypeVar("T")


class HostTransport(Protocol):
    """The parts of `collectives.execution.shm.transport.ShmTransport` that a bound program uses."""

    world: World
    memory: Memory
    watch: _core.Watch
    cores: int
    yields: bool
    known_stores: dict[Hashable, Past]

    def allocate(self, nbytes: int) -> Array: ...  # noqa: D102
    def common(self, nbytes: int) -> Array: ...  # noqa: D102
    def attach(self, rank: int, key: int, where: Mapping[str, int]) -> Array: ...  # noqa: D102
    def guarded(self, action: Callable[[], T]) -> T: ...  # noqa: D102


class Built(NamedTuple):
    """A plan of the extension, and the memory that it needs: its control lines and its staging."""

    plan: _core.Plan
    shared: Array
    stage: Array | None = None


class Bound(Action):
    """A collective bound to shared buffers; see `Action`. All ranks create one together.

    A subclass makes this rank's message to the others, and the plan from all messages.
    ``segments``: for each rank, its memory that is mapped here, by key. ``counts``: the bytes that
    all ranks have moved so far.
    """

    def __init__(self, transport: HostTransport, buffers: Buffers) -> None:
        self.transport, world = transport, transport.world
        # Also for a rank with an empty part: all ranks must come to the same plan.
        self.dtype = buffers[Buffer.OUT].dtype
        places = places_of(transport.memory.locate, buffers, self.dtype.itemsize)
        segments = {
            key: transport.memory.describe(key) for key, _ in places.values() if key != EMPTY
        }
        everyone = world.gather({"message": self._message(places), "segments": segments})
        self.segments = [
            {int(key): self._map(rank, int(key), where) for key, where in one["segments"].items()}
            for rank, one in enumerate(everyone)
        ]
        self._built = self._build([one["message"] for one in everyone])
        world.barrier()
        counts = traffic(self._built.shared, world.size)
        # Bytes that were moved to choose the stores do not count.
        self.counts, self._before = counts, (counts.out(self.rank), counts.into(self.rank))
        world.barrier()

    @abstractmethod
    def _message(self, places: Mapping[Buffer, tuple[int, int]]) -> Json:
        """This rank's message to all others; ``places``: where its buffers lie."""

    @abstractmethod
    def _build(self, everyone: list[Json]) -> Built:
        """Build the plan from the messages of all ranks."""

    def with_best_stores(
        self,
        graph: DependenceGraph,
        able: Callable[[Work], set[Place]],
        build: Callable[
            [int, DependenceGraph, Callable[[Work], set[Place]]], tuple[_core.Plan, Array | None]
        ],
    ) -> Built:
        """Build the plan with the fastest kind of stores.

        ``build(lines, graph, past)`` gives a plan whose control words begin at ``lines``, and its
        staging.
        """
        transport, world = self.transport, self.transport.world

        def made(some: DependenceGraph, past: Past) -> Built:
            shared = transport.common(plan_bytes(world.size))
            at = int(shared.ctypes.data)
            plan, stage = build(at, some, lambda work: past.of(work, able(work)))
            return Built(plan, shared, stage)

        def timed(built: Built, n: int) -> Floats:
            return Spans(*transport.guarded(lambda: built.plan.spans(n))).seconds

        maker = Maker(able, self._find, made, timed)
        itemsize, known = self.dtype.itemsize, transport.known_stores
        return with_best_stores(graph, itemsize, transport.cores, world, known, maker)

    def _map(self, rank: int, key: int, where: Mapping[str, int]) -> Array:
        if rank == self.rank:
            return self.transport.memory.own(key)
        return self.transport.attach(rank, key, where)

    @property
    def sent(self) -> int:
        """Bytes that left this rank's memory or that it stored elsewhere, counted at run time."""
        return self.counts.out(self.rank) - self._before[0]

    @property
    def received(self) -> int:
        """Bytes that came into this rank's memory, or that this rank loaded from elsewhere."""
        return self.counts.into(self.rank) - self._before[1]

    def __call__(self) -> None:
        """Run the operation once. Raises RankFailure if another rank is lost."""
        self.transport.guarded(self._built.plan.run)

    def traced(self, tell: Tell) -> None:
        """Run once, and call ``tell`` with each access to other ranks' memory and mailbox message.

        Their ``step`` is the number of the copy or reduction in this rank's plan. See
        `Action.traced`.
        """
        accesses = self.transport.guarded(self._built.plan.traced)
        for load, peer, nbytes, step, begin, end in accesses:
            tell(TracedMessage("from" if load else "to", peer, nbytes, step, begin, end))

    def spans(self, n: int, start: Start) -> Spans:
        """Run n iterations; returns when each began and ended, see `Action.spans`."""
        if not start.by_host_clock:
            return super().spans(n, start)
        plan, how = self._built.plan, (start.at, start.loop, start.slower)
        return Spans(*self.transport.guarded(lambda: plan.spans(n, *how)))

    def begun(self) -> int:
        """The number of iterations begun so far, see `Action.begun`."""
        return self._built.plan.begun()

    def close(self) -> None:
        """Release all mappings; the action cannot run again."""
        del self._built, self.segments, self.counts

    # -- for the plans in `pass_plans`

    @property
    def rank(self) -> int:
        """The rank whose plan this is."""
        return self.transport.world.rank

    def _find(self, place: Place) -> Array:
        segment = self.segments[place.rank][place.segment]
        whole = len(segment) // self.dtype.itemsize * self.dtype.itemsize
        return segment[:whole].view(self.dtype)[place.start :]

    def address(self, place: Place) -> int:
        """The address of a place in this process."""
        segment = self.segments[place.rank][place.segment]
        return int(segment.ctypes.data) + place.start * self.dtype.itemsize


class BoundProgram(Bound):
    """A rank's program bound to shared buffers.

    Each move between two ranks is one copy or reduction, done by one of them.
    """

    def __init__(
        self, transport: HostTransport, program: Program, buffers: Buffers, op: Op | None
    ) -> None:
        self._program, self._op = program, op
        super().__init__(transport, buffers)

    def _message(self, places: Mapping[Buffer, tuple[int, int]]) -> Json:
        return placed_program_json(self._program, places)

    def _build(self, everyone: list[Json]) -> Built:
        transport, op, nranks = self.transport, self._op, len(everyone)
        programs = [read_placed_program(one) for one in everyone]
        watch, cores = transport.watch, transport.cores
        if is_eager(programs, self.dtype.itemsize):
            boxes, nbytes = mailboxes(programs, self.dtype.itemsize)
            lines = plan_bytes(nranks)
            shared = transport.common(lines + nbytes)
            at = int(shared.ctypes.data)
            mail = {pair: [at + lines + box for box in places] for pair, places in boxes.items()}
            return Built(eager(watch, at, self, programs[self.rank], mail, op), shared)
        graph = dependence_graph(ordered(programs), nranks, in_scratch(programs))
        # If ranks share a core, data that one rank leaves in a window is in no cache any more when
        # the next rank comes to it.
        crowded = nranks > cores and graph.crossing

        def able(work: Work) -> set[Place]:
            return {*work.targets} - {*work.sources} if crowded else work.cold

        return self.with_best_stores(
            graph, able, lambda at, some, past: direct(watch, at, self, some, cores, op, past)
        )
