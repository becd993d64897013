"""One rank's program bound to all ranks' GPU memory: addresses, the plan's table, its launches.

The transport calls this on all ranks together, since they exchange addresses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from collectives.execution.gpu.array import DeviceArray
from collectives.execution.gpu.device import GpuDevice
from collectives.execution.gpu.lane import Lane
from collectives.execution.ipc.kernels import PassKernels
from collectives.execution.ipc.launch import Call, program
from collectives.execution.ipc.memory import PeerMemory
from collectives.execution.ipc.table import (
    Addresses,
    StagingArea,
    control_bytes,
    table,
    teams,
)
from collectives.execution.program import Program
from collectives.execution.shm.dependences import ENTRY, DependenceGraph, dependence_graph
from collectives.execution.shm.tasks import EMPTY, Place, heard, ordered, places_of, told
from collectives.execution.shm.worksharing import ends, shared_out
from collectives.execution.transport import Buffers, LibraryCall
from collectives.execution.world import Json, World
from collectives.schedule.moves import Buffer
from collectives.schedule.ops import Op


class Peers(Protocol):
    """The parts of the transport that binding uses: GPU, memory, and world."""

    world: World
    device: GpuDevice
    memory: PeerMemory
    lane: Lane
    deadline: float
    #: Whether a pass reads the next rank's data first; otherwise rank 0's.
    rotated: bool
    #: Whether ranks are processes of their own, and the teams that fit on this one's GPU.
    shared: bool
    most_teams: int

    def allocate(self, nbytes: int) -> Any:
        """Memory of this rank's GPU."""

    def gather(self, value: Json, keys: Iterable[int], kept: list[object]) -> list[Json]:
        """Every rank's value; ``kept`` gains what keeps the named allocations mapped."""

    def addresses(self, words: list[int], place: Callable[[Place], int]) -> Addresses:
        """Where a plan's words and places lie, as this rank sees them."""

    def kernels(self, dtype: np.dtype[Any], op: Op | None, average: bool = False) -> PassKernels:
        """The executor for a type and an operation, compiled once.

        ``average``: every sum is divided by the number of what was added.
        """


def adds_all_at_once(graph: DependenceGraph) -> bool:
    """Whether every pass that adds takes all ranks' contributions, so that its sum is final.

    It has as many sources as there are ranks, and each contribution is counted once in a result.
    """
    nranks = len(graph.works)
    sources = {len(work.sources) for works in graph.works for work in works}
    return nranks > 1 and sources <= {1, nranks}


class PeerBinding:
    """``calls`` enqueue an iteration on the current stream; ``kept``: what must live meanwhile."""

    def __init__(self, transport: Peers, dtype: np.dtype[Any]) -> None:
        self._transport, self._dtype = transport, dtype
        self._at: list[dict[int, int]] = []
        self.kept: list[object] = []
        self.calls: list[Call] = []

    @classmethod
    def plan(
        cls, transport: Peers, program: Program, buffers: Buffers, op: Op | None
    ) -> PeerBinding:
        """A rank's program, of all ranks together. An average's division is the last call."""

        def found(everyone: list[Json]) -> DependenceGraph:
            return dependence_graph(ordered(list(map(heard, everyone))), transport.world.size)

        return cls._bound(transport, buffers, op, lambda places: told(program, places), found)

    @classmethod
    def worksharing(
        cls, transport: Peers, call: LibraryCall
    ) -> tuple[PeerBinding, DependenceGraph]:
        """A collective whose work belongs to no rank, and who does what of it."""
        buffers, dealt = call.buffers, list[DependenceGraph]()

        def found(everyone: list[Json]) -> DependenceGraph:
            itemsize = buffers[Buffer.OUT].dtype.itemsize
            dealt.append(shared_out(call, everyone, itemsize))
            return dealt[0]

        bound = cls._bound(transport, buffers, call.op, ends, found)
        return bound, dealt[0]

    @classmethod
    def _bound(
        cls,
        transport: Peers,
        buffers: Mapping[Buffer, Any],
        op: Op | None,
        tell: Callable[[Mapping[Buffer, tuple[int, int]]], Json],
        made: Callable[[list[Json]], DependenceGraph],
    ) -> PeerBinding:
        """``tell``: what other ranks must know, from where the buffers lie.

        ``made``: what all do.
        """
        transport.device.use()
        bound, world = cls(transport, buffers[Buffer.OUT].dtype), transport.world
        bound.kept.append(dict(buffers))
        transport.memory.unmap()
        everyone = transport.gather(*bound._describe(tell, buffers), bound.kept)
        # All ranks have arrived, so they have closed their older memory.
        transport.memory.forget()
        bound._at = [bound._map(rank, one["segments"]) for rank, one in enumerate(everyone)]
        found = made([one["told"] for one in everyone])
        mean = op is not None and op.mean
        folds = mean and adds_all_at_once(found)
        bound.calls = bound._build(found, op, average=folds)
        if mean and not folds and buffers[Buffer.OUT].size:
            out: Any = buffers[Buffer.OUT]
            bound.calls.append(transport.lane.kernels.divide(out, world.size))
        # Allocating and loading may wait for the device, so no rank may run a plan until all are
        # done.
        world.barrier()
        return bound

    @classmethod
    def meeting(cls, transport: Peers, dtype: np.dtype[Any], op: Op | None) -> PeerBinding:
        """Where no rank's stream goes on before all have come; by the kernels of a type.

        One launch of one block, with nothing between entering and leaving.
        """
        bound, world = cls(transport, dtype), transport.world
        ranks = range(world.size)
        exits = tuple(tuple((peer, ENTRY) for peer in ranks if peer != rank) for rank in ranks)
        none = DependenceGraph(((),) * world.size, exits, (0,) * world.size, True, ())
        bound.calls = bound._build(none, op) if world.size > 1 else []
        world.barrier()
        return bound

    def _describe(
        self,
        tell: Callable[[Mapping[Buffer, tuple[int, int]]], Json],
        buffers: Mapping[Buffer, Any],
    ) -> tuple[Json, set[int]]:
        """What other ranks must know, and the keys of the allocations that it names."""
        memory = self._transport.memory
        places = places_of(memory.locate, buffers, self._dtype.itemsize)
        shared = self._transport.shared
        keys = {key for key, _ in places.values()} - {EMPTY}
        segments = {key: memory.describe(key, shared) for key in keys}
        return {"told": tell(places), "segments": segments}, keys

    def _map(self, rank: int, segments: Mapping[str, Json]) -> dict[int, int]:
        """Where a rank's allocations lie here."""
        memory, found = self._transport.memory, {}
        for key, where in segments.items():
            if rank == self._transport.world.rank:
                found[int(key)] = memory.own(int(key))
            else:
                found[int(key)], held = memory.attach(rank, int(key), where)
                self.kept.append(held)
        return found

    def _build(self, found: DependenceGraph, op: Op | None, average: bool = False) -> list[Call]:
        """The calls that enqueue one iteration; ``average``: its passes divide what they add."""
        transport, size = self._transport, self._dtype.itemsize
        world, rank = transport.world, transport.world.rank
        nteams = teams(found, size, transport.most_teams)
        control = self._zeroed(control_bytes(world.size, nteams))
        stage = StagingArea.of(found.works[rank], found.slots[rank], nteams, size)
        staged = transport.allocate(stage.nbytes)
        to = transport.addresses(self._exchange(control), self._address)
        words = table(
            found,
            rank,
            nteams,
            stage,
            to,
            staged.address,
            transport.deadline,
            rotated=transport.rotated,
        )
        plan = self._written(words)
        self.kept += [control, staged, plan]
        return program(transport.kernels(self._dtype, op, average), plan, nteams)

    def _zeroed(self, nbytes: int) -> DeviceArray:
        array: DeviceArray = self._transport.memory.allocate(nbytes)
        array[:] = 0
        return array

    def _exchange(self, control: DeviceArray) -> list[int]:
        """Where every rank's words lie here."""
        transport = self._transport
        key, _ = transport.memory.locate(control)
        mine = {key: transport.memory.describe(key, transport.shared)}
        everyone = transport.gather(mine, {key}, self.kept)
        return [next(iter(self._map(rank, one).values())) for rank, one in enumerate(everyone)]

    def _written(self, words: NDArray[np.uint64]) -> DeviceArray:
        array: DeviceArray = self._transport.memory.allocate(words.nbytes)
        array.view(np.uint64)[:] = words
        return array

    def _address(self, place: Place) -> int:
        return self._at[place.rank][place.segment] + place.start * self._dtype.itemsize
