"""GPUs of one host that use each other's memory: `shm` for GPUs, with our own kernels.

`collectives.execution.shm` computes the dependence graph. The passes run in the CUDA executor
(``native/cuda``), which reads and writes every rank's buffers in place and waits on flags in
memory. Ranks are processes that map each other's memory by CUDA IPC, or threads of one process.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from busbar.errors import Unsupported
from collectives.execution.gpu.action import StreamAction
from collectives.execution.gpu.device import Call, DeviceArray, GpuDevice
from collectives.execution.gpu.transport import GpuTransport
from collectives.execution.inproc.world import InprocWorld
from collectives.execution.ipc.memory import PAGE, PeerMemory
from collectives.execution.ipc.plan import (
    BLOCKS,
    STATUS,
    THREADS,
    WORD,
    Addresses,
    PassKernels,
    PeerWatch,
    StagingArea,
    WatchedLane,
    compile_kernels,
    control_bytes,
    program,
    table,
    teams,
)
from collectives.execution.program import Program
from collectives.execution.shm.dependences import ENTRY, DependenceGraph, dependence_graph
from collectives.execution.shm.tasks import (
    EMPTY,
    Place,
    ordered,
    placed_program_json,
    places_of,
    read_placed_program,
)
from collectives.execution.shm.worksharing import ends, shared_out, traffic
from collectives.execution.transport import Action, Buffers, LibraryCall
from collectives.execution.world import Json, World
from collectives.schedule.moves import Buffer
from collectives.schedule.ops import Op, op

# Most ranks of one host: more than any host has GPUs, and a block's threads can wait for all.
MOST_RANKS = 64


class IpcTransport(GpuTransport):
    """The transport for GPUs of one node that access each other's memory (`shm` for GPUs).

    See `Transport` for the methods; `prepare` is called by all ranks together. ``graph``: launch
    captured graphs. ``cold``: see `GpuTransport`. ``blocks``: most blocks of a rank, 0 for as many
    as are resident. ``rotated``: a reduction reads the next rank's data first, so that ranks read
    from different GPUs; otherwise rank 0's first, so that sums of floats have the same bits on all
    ranks. ``deadline``: seconds that a rank waits for another before it gives up.

    Memory is allocated while no rank runs a plan. Threads that share a GPU need hardware queues of
    their own (CUDA_DEVICE_MAX_CONNECTIONS), so that a launch is not queued behind the one that
    waits for it. Raises Unsupported if the ranks are on several nodes, Unavailable if a rank cannot
    map another's memory.
    """

    name = "ipc"
    shares_memory = True
    granule = PAGE

    def __init__(
        self,
        world: World,
        device: GpuDevice,
        *,
        graph: bool = True,
        cold: bool = False,
        blocks: int = 0,
        rotated: bool = True,
        deadline: float = 60.0,
    ) -> None:
        if len(set(world.nodes)) > 1:
            raise Unsupported(
                f"the ipc transport serves one node, not {len(set(world.nodes))};"
                " use --transport nccl"
            )
        if world.size > MOST_RANKS:
            raise Unsupported(f"the ipc transport serves {MOST_RANKS} ranks, not {world.size}")
        super().__init__(world, device, {"graph": graph}, cold=cold)
        self.deadline, self.graph = deadline, graph
        self.blocks, self.rotated = blocks, rotated
        self.memory = PeerMemory(device)
        self._kernels: dict[tuple[str, str, bool], PassKernels] = {}
        # One word per rank: whether it has left; and one word that the first failure claims.
        self._life = self.memory.allocate(WORD * (world.size + 1))
        self._life[:] = 0
        self._status = device.pinned(WORD * len(STATUS)).view(np.uint64)
        self._status[:] = 0
        device.synchronize()
        everyone = world.gather(
            {
                "pid": os.getpid(),
                "uuid": self.device_uuid,
                "multiprocessors": device.multiprocessors,
            }
        )
        self.shared = len({one["pid"] for one in everyone}) > 1
        resident = min(_resident(everyone, one["uuid"]) for one in everyone)
        self.most_teams = min(resident, blocks or resident)
        self._watch = PeerWatch(
            world.rank, [int(one["pid"]) for one in everyone], self._status, deadline
        )
        self.lane = WatchedLane(device, world, self._watch, deadline)
        self._tell, self._held = self._map_life_words()
        self._closed = False
        # For the most common type and operation, so that nothing more is compiled for them later.
        self._meeting = PeerBinding.meeting(self, np.dtype(np.float32), op("sum"))

    def _map_life_words(self) -> tuple[list[int], list[object]]:
        """The address of each rank's word for "this rank has left", and what keeps it mapped."""
        world, tell, held = self.world, [0] * self.world.size, list[object]()
        key, _ = self.memory.locate(self._life)
        everyone = self.gather(self.memory.describe(key, self.shared), {key}, held)
        for rank, where in enumerate(everyone):
            if rank != world.rank:
                at, kept = self.memory.attach(rank, key, where)
                tell[rank] = at + WORD * world.rank
                held.append(kept)
        return tell, held

    def gather(self, value: Json, keys: Iterable[int], kept: list[object]) -> list[Json]:
        """Every rank's value; ``kept`` gains the objects that keep the named allocations alive.

        For other processes' memory that is the mapping itself.
        """
        if not self.shared and isinstance(self.world, InprocWorld):
            kept.append(self.world.exchange([self.memory.keeper(key) for key in keys]))
        return self.world.gather(value)

    def addresses(self, words: list[int], place: Callable[[Place], int]) -> Addresses:
        """The addresses in a plan of this rank; ``words``: the plan's words on every rank."""
        life = self._life.address
        claim = life + WORD * self.world.size
        return Addresses(words, self._tell, life, claim, int(self._status.ctypes.data), place)

    def allocate(self, nbytes: int) -> Any:
        """Allocate GPU memory that all ranks of the node can use; returns a `DeviceArray`."""
        if not nbytes:
            return self.device.wrap(0, 0, None)
        return self.memory.allocate(nbytes)

    def written(self, words: NDArray[np.uint64]) -> DeviceArray:
        """A plan's table in memory of this rank's GPU."""
        array: DeviceArray = self.memory.allocate(words.nbytes)
        array.view(np.uint64)[:] = words
        return array

    def trim(self) -> None:
        """Free memory that no rank uses. All ranks call this together, while no plan runs."""
        self.memory.unmap()
        self.world.barrier()  # all ranks have unmapped this rank's memory
        self.memory.forget()
        self.device.sweep()

    def staging(self, program: Program, itemsize: int) -> int:
        """Bytes for staged messages, for a plan's control words, and for rounding to pages.

        Messages are staged if their target is still read by a send of the same step.
        """
        buffers = sum(program.elements.values()) * itemsize
        each = program.late() * itemsize + 6 * PAGE
        return self.rotation(buffers) + self.turns(buffers) * each

    def prepare(self, program: Program, buffers: Buffers, op: Op | None) -> Action:
        """Bind one rank's program to its buffers; all ranks call this together.

        The action divides averages itself. See `Transport.prepare`.
        """
        device_buffers: Any = buffers
        sets: list[Any] = self.sets(device_buffers)
        bound = [PeerBinding.plan(self, program, each, op) for each in sets]
        itemsize = buffers[Buffer.OUT].dtype.itemsize
        moved = program.sent() * itemsize, program.received() * itemsize
        return self._action(bound, moved)

    def _action(self, bound: Sequence[PeerBinding], moved: tuple[int, int]) -> StreamAction:
        return StreamAction(
            self.lane,
            [binding.calls for binding in bound],
            moved,
            meet=self.meet,
            graph=self.graph,
            held=[binding.kept for binding in bound],
        )

    def worksharing(self, call: LibraryCall) -> Action:
        """Bind a collective whose work all ranks share; all ranks call this together.

        The action divides averages itself. See `Transport.worksharing`.
        """
        device_buffers: Any = call.buffers
        bound, graphs = zip(
            *(
                PeerBinding.worksharing(self, replace(call, buffers=each))
                for each in self.sets(device_buffers)
            ),
            strict=True,
        )
        itemsize = call.buffers[Buffer.OUT].dtype.itemsize
        out, into = (n * itemsize for n in traffic(graphs[0], self.world.rank))
        return self._action(bound, (out, into))

    @property
    def meet(self) -> list[Call]:
        """Calls that let all ranks' streams wait for each other: one launch of one block."""
        return self._meeting.calls

    def kernels(self, dtype: np.dtype[Any], op: Op | None, average: bool = False) -> PassKernels:
        """The executor for a type and an operation, compiled and launched once at its first use."""
        key = dtype.name, "" if op is None else op.ufunc.__name__, average
        if key not in self._kernels:
            kernels = self._kernels[key] = compile_kernels(self.device, dtype, op, average=average)
            self._warm(kernels, dtype)
            if kernels.threads < THREADS:
                self.remarks.append(
                    f"ipc: {dtype.name}: blocks of {kernels.threads} threads, not"
                    f" {THREADS}: no {BLOCKS} of those are resident at once"
                )
        return self._kernels[key]

    def _warm(self, kernels: PassKernels, dtype: np.dtype[Any]) -> None:
        """Launch each kernel once with an empty plan.

        A kernel's first launch may have to load it, which waits until the device is idle. It never
        would be while another rank's kernel waits for this one.
        """
        control = self.allocate(control_bytes(1, 1))
        control[:] = 0
        alone = replace(self.addresses([control.address], _nowhere), tell=[0])
        none = StagingArea.of((), 0, 1, dtype.itemsize)
        words = table(dependence_graph([], 1), 0, 1, none, alone, 0, self.deadline)
        plan = self.written(words)
        self.lane.enqueue(
            [
                *program(kernels, plan, 1),
                self.lane.kernels.divide(control[:0].view(dtype), 1),
            ]
        )
        self.lane.wait()

    def split(self, group: World) -> IpcTransport:
        """A transport for the ranks of ``group``. All ranks of the group call this together."""
        return IpcTransport(
            group,
            self.device,
            graph=self.graph,
            cold=self.cold,
            blocks=self.blocks,
            rotated=self.rotated,
            deadline=self.deadline,
        )

    @property
    def library_version(self) -> str:
        """The name of this implementation, where other transports give their library's version."""
        return "our own CUDA kernels over peer memory"

    def give_up(self) -> None:
        """End every wait of this rank on the GPU, so that no rank hangs."""
        self._watch.stop()

    def close(self) -> None:
        """Leave: ranks that still wait for this one end with an error.

        Each rank marks in all others' memory that it has left, so none exits before all close.
        """
        if self._closed:
            return
        self._closed = True
        self.lane.stream.synchronize()
        left = np.ones(1, np.uint64)
        for at in filter(None, self._tell):
            self.device.wrap(at, WORD, None).view(np.uint64)[:] = left
        self._watch.close()
        self._held.clear()
        self._meeting.kept.clear()
        self.memory.unmap()
        self.device.sweep()


def _nowhere(place: Place) -> int:
    raise AssertionError(f"a plan of nothing names {place}")


def _resident(everyone: list[Json], uuid: str) -> int:
    """Blocks that each rank on a GPU can have resident at once (`BLOCKS` per multiprocessor)."""
    ranks = [one for one in everyone if one["uuid"] == uuid]
    room = BLOCKS * min(int(one["multiprocessors"]) for one in ranks)
    if room < len(ranks):
        raise Unsupported(f"{len(ranks)} ranks on one GPU that has room for {room} blocks")
    return room // len(ranks)


def adds_all_at_once(graph: DependenceGraph) -> bool:
    """True if each reduction has all ranks' contributions as sources, so that its sum is final."""
    nranks = len(graph.works)
    sources = {len(work.sources) for works in graph.works for work in works}
    return nranks > 1 and sources <= {1, nranks}


class PeerBinding:
    """One rank's program bound to GPU memory.

    ``calls`` enqueue an iteration on the current stream. ``kept``: objects to be kept alive.
    """

    def __init__(self, transport: IpcTransport, dtype: np.dtype[Any]) -> None:
        self._transport, self._dtype = transport, dtype
        self._at: list[dict[int, int]] = []
        self.kept: list[object] = []
        self.calls: list[Call] = []

    @classmethod
    def plan(
        cls, transport: IpcTransport, program: Program, buffers: Buffers, op: Op | None
    ) -> PeerBinding:
        """Bind a rank's program to buffers. A last call divides an average unless reductions do."""

        def graph_of(everyone: list[Json]) -> DependenceGraph:
            programs = [read_placed_program(one) for one in everyone]
            return dependence_graph(ordered(programs), transport.world.size)

        return cls._bound(transport, buffers, op, partial(placed_program_json, program), graph_of)

    @classmethod
    def worksharing(
        cls, transport: IpcTransport, call: LibraryCall
    ) -> tuple[PeerBinding, DependenceGraph]:
        """Bind a work-sharing collective. Also returns which rank does which part."""
        buffers, dealt = call.buffers, list[DependenceGraph]()

        def graph_of(everyone: list[Json]) -> DependenceGraph:
            itemsize = buffers[Buffer.OUT].dtype.itemsize
            dealt.append(shared_out(call, everyone, itemsize))
            return dealt[0]

        bound = cls._bound(transport, buffers, call.op, ends, graph_of)
        return bound, dealt[0]

    @classmethod
    def _bound(
        cls,
        transport: IpcTransport,
        buffers: Mapping[Buffer, Any],
        op: Op | None,
        tell: Callable[[Mapping[Buffer, tuple[int, int]]], Json],
        graph_of: Callable[[list[Json]], DependenceGraph],
    ) -> PeerBinding:
        """Bind the graph that follows from all ranks' messages.

        ``tell``: makes this rank's message, from where its buffers lie. ``graph_of``: makes the
        graph.
        """
        transport.device.use()
        bound, world = cls(transport, buffers[Buffer.OUT].dtype), transport.world
        bound.kept.append(dict(buffers))
        memory = transport.memory
        memory.unmap()
        places = places_of(memory.locate, buffers, bound._dtype.itemsize)
        keys = {key for key, _ in places.values()} - {EMPTY}
        segments = {key: memory.describe(key, transport.shared) for key in keys}
        message = {"message": tell(places), "segments": segments}
        everyone = transport.gather(message, keys, bound.kept)
        # All ranks have arrived, so they have unmapped their older memory.
        memory.forget()
        bound._at = [bound._map(rank, one["segments"]) for rank, one in enumerate(everyone)]
        graph = graph_of([one["message"] for one in everyone])
        mean = op is not None and op.mean
        folds = mean and adds_all_at_once(graph)
        bound.calls = bound._build(graph, op, average=folds)
        if mean and not folds and buffers[Buffer.OUT].size:
            out: Any = buffers[Buffer.OUT]
            bound.calls.append(transport.lane.kernels.divide(out, world.size))
        # Allocating and loading may wait for the device, so no rank may run a plan until all are
        # done.
        world.barrier()
        return bound

    @classmethod
    def meeting(cls, transport: IpcTransport, dtype: np.dtype[Any], op: Op | None) -> PeerBinding:
        """Bind a meeting: no rank's stream continues before all ranks' streams have arrived.

        One launch of one block, by the kernels of the type and operation.
        """
        bound, world = cls(transport, dtype), transport.world
        ranks = range(world.size)
        exits = tuple(tuple((peer, ENTRY) for peer in ranks if peer != rank) for rank in ranks)
        none = DependenceGraph(((),) * world.size, exits, (0,) * world.size, True, ())
        bound.calls = bound._build(none, op) if world.size > 1 else []
        world.barrier()
        return bound

    def _map(self, rank: int, segments: Mapping[str, Json]) -> dict[int, int]:
        """Addresses on this rank of a rank's allocations, by key."""
        memory, addresses = self._transport.memory, {}
        for key, where in segments.items():
            if rank == self._transport.world.rank:
                addresses[int(key)] = memory.own(int(key))
            else:
                addresses[int(key)], held = memory.attach(rank, int(key), where)
                self.kept.append(held)
        return addresses

    def _build(self, graph: DependenceGraph, op: Op | None, average: bool = False) -> list[Call]:
        """The calls that enqueue one iteration; ``average``: its reductions divide their sums."""
        transport, size = self._transport, self._dtype.itemsize
        world, rank = transport.world, transport.world.rank
        nteams = teams(graph, size, transport.most_teams)
        control = transport.memory.allocate(control_bytes(world.size, nteams))
        control[:] = 0
        stage = StagingArea.of(graph.works[rank], graph.slots[rank], nteams, size)
        staged = transport.allocate(stage.nbytes)
        to = transport.addresses(self._exchange(control), self._address)
        words = table(
            graph,
            rank,
            nteams,
            stage,
            to,
            staged.address,
            transport.deadline,
            rotated=transport.rotated,
        )
        plan = transport.written(words)
        self.kept += [control, staged, plan]
        return program(transport.kernels(self._dtype, op, average), plan, nteams)

    def _exchange(self, control: DeviceArray) -> list[int]:
        """Addresses on this rank of the signal words of every rank."""
        transport = self._transport
        key, _ = transport.memory.locate(control)
        segments = {key: transport.memory.describe(key, transport.shared)}
        everyone = transport.gather(segments, {key}, self.kept)
        return [next(iter(self._map(rank, one).values())) for rank, one in enumerate(everyone)]

    def _address(self, place: Place) -> int:
        return self._at[place.rank][place.segment] + place.start * self._dtype.itemsize
