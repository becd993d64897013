"""Something enqueued on a stream that runs again and again, timed by events behind a gate.

The operation is bound to several sets of buffers before the clock starts. Iterations rotate through
them, so that no iteration finds its operands in the cache; nccl-tests shifts its buffers for the
same reason. A captured graph launches a whole iteration at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from collectives.execution.gpu.device import Call, CudaEvent, CudaGraph, DeviceArray, GpuDevice
from collectives.execution.gpu.lane import Lane, queue_entries
from collectives.execution.transport import Counted, Spans, Start
from collectives.schedule.moves import Buffer

DeviceBuffers = Mapping[Buffer, DeviceArray]
TURNS = 16
# A stream's queue takes about a thousand entries before enqueueing blocks, which it must not behind
# a gate. benchmarks/gpu_one.py finds the number on a GPU.
QUEUE = 512


def turns(nbytes: int, cache: int) -> int:
    """The number of sets of buffers that together fill the cache twice; at most TURNS."""
    return max(1, min(TURNS, -(-2 * cache // nbytes))) if nbytes and cache else 1


def copied(
    device: GpuDevice, buffers: DeviceBuffers, allocate: Callable[[int], DeviceArray]
) -> dict[Buffer, DeviceArray]:
    """Copies of buffers, content included; what shares memory does so in the copies."""
    result: dict[Buffer, DeviceArray] = {}
    for block in _blocks(buffers):
        low = min(array.address for _, array in block)
        high = max(array.address + array.nbytes for _, array in block)
        # Aligned within 256 bytes as the original is.
        lead = low % 256
        memory = allocate(lead + high - low)
        memory[lead:] = device.wrap(low, high - low, block).host()
        for buffer, array in block:
            start = lead + array.address - low
            result[buffer] = memory[start : start + array.nbytes].view(array.dtype)
    return result


def _blocks(buffers: DeviceBuffers) -> list[list[tuple[Buffer, DeviceArray]]]:
    """Group buffers that overlap in memory."""
    blocks: list[list[tuple[Buffer, DeviceArray]]] = []
    end = -1
    for item in sorted(buffers.items(), key=lambda item: (item[1].address, -item[1].nbytes)):
        start, stop = item[1].address, item[1].address + item[1].nbytes
        if blocks and start < end:
            blocks[-1].append(item)
        else:
            blocks.append([item])
        end = max(end, stop)
    return blocks


class StreamAction(Counted):
    """One rank's operation on a stream; methods: see `collectives.execution.transport.Action`.

    ``bound``: for each set of buffers the calls that enqueue one iteration; the first set is the
    caller's. ``bytes_``: bytes sent and received by an iteration. ``meet``: calls that make the
    ranks' streams wait for each other, before each timed iteration. ``graph``: replay captured
    graphs from the second iteration on. ``held`` is kept alive. ``connected`` is called with this
    action after the first iteration. ``refused`` is called with the name of what is not possible
    and the reason: ``eager`` if graphs were requested but cannot be captured, and ``unheld`` if one
    iteration has more launches than fit into the queue behind a gate.
    """

    divides = True  # an average is divided here, on the device

    def __init__(
        self,
        lane: Lane,
        bound: Sequence[list[Call]],
        bytes_: tuple[int, int],
        *,
        meet: list[Call],
        graph: bool,
        held: object = None,
        connected: Callable[[StreamAction], None] = lambda action: None,
        refused: Callable[[str, str], None] = lambda what, why: None,
    ) -> None:
        super().__init__(*bytes_)
        self._lane, self._bound, self._meet, self._held = lane, list(bound), meet, held
        self._graph = graph
        self._connected, self._refused = connected, refused
        self._graphs: list[CudaGraph] | None = None
        self._eager = False  # True while iterations run without their graphs
        self._entries = 0  # entries in the stream's queue per iteration; 0: not known yet
        self._each = 0.0  # seconds per iteration, so that a wait for many is not taken for a hang

    def __call__(self) -> None:
        """Run once, and wait. The first run never replays a graph: libraries connect in it."""
        if self._runs:
            self._ready()
        start = time.perf_counter()
        self._lane.enqueue(self._iteration(0))
        self._lane.wait()
        if self._runs:  # what connecting took says nothing of later iterations
            self._each = time.perf_counter() - start
        self._runs += 1
        if self._runs == 1:
            self._connected(self)

    def _ready(self) -> None:
        """Capture the graphs, once. All ranks call this at the same iteration.

        Either all ranks replay graphs or none does, as NCCL's documentation requires. If capturing
        fails on one rank, no rank uses graphs.
        """
        if self._entries:
            return
        # Capturing may wait for the device, so no kernel on it may be waiting for another rank.
        self._lane.world.barrier()
        problem, graphs = "", list[CudaGraph]()
        try:
            if self._graph:
                graphs = [self._lane.capture(calls) for calls in self._bound]
        except RuntimeError as error:  # CUDA's and NCCL's errors both are
            problem = f"rank {self._lane.world.rank} cannot capture: {error}"
        own = [max(queue_entries(c, graph=graph) for c in self._bound) for graph in (False, True)]
        everyone = self._lane.world.gather([problem, *own])
        problems = [one for one, _, _ in everyone if one]
        if self._graph and not problems:
            self._graphs = graphs
        if problems:
            self._refused("eager", problems[0])
        # The rank with the most entries limits how many iterations all ranks enqueue at a time.
        column = 1 if self._graphs is None else 2
        self._entries = max(1, *(rank[column] for rank in everyone))
        if not self._room():
            self._refused(
                "unheld",
                f"an iteration takes {self._entries} entries of a stream's queue, and {QUEUE} may"
                " stand behind a gate: enqueueing is in the times",
            )

    def _room(self) -> int:
        """Iterations that fit into the queue behind a gate, each with a meeting and two events."""
        return QUEUE // (self._entries + queue_entries(self._meet) + 2)

    def _iteration(self, i: int) -> list[Call]:
        """The calls that enqueue iteration number i."""
        turn = i % len(self._bound)
        if self._graphs is None or self._eager:
            return self._bound[turn]
        graph, stream = self._graphs[turn], self._lane.stream
        return [lambda: graph.launch(stream)]

    def _begun(self) -> None:
        """Run twice before anything is timed.

        The first iteration connects, loads and captures, which must not happen behind a gate. The
        second measures how long an iteration takes, for time limits.
        """
        while self._runs < 2:
            self()

    def spans(self, n: int, start: Start) -> Spans:
        """Run n iterations; returns how long each took, by events on the stream.

        Only iterations that begin behind a barrier are timed so, others as by `Action.spans`. Each
        iteration begins when all ranks' streams have met. All iterations are enqueued before the
        first may begin. With ``loop`` they run back to back. Only durations are known: CUDA gives
        float32 milliseconds between two events.
        """
        if start.at or start.slower:
            return super().spans(n, start)
        self._begun()
        if start.loop:
            seconds = [self._back_to_back(n)]
        else:
            batch, seconds = max(1, self._room()), []
            for first in range(0, n, batch):
                seconds += self._batch(range(first, min(n, first + batch)))
        return Spans(np.zeros(len(seconds)), np.array(seconds), absolute=False)

    def _batch(self, iterations: range) -> list[float]:
        lane = self._lane
        held = self._room() > 0
        if held:
            lane.close_gate()
        events = []
        for i in iterations:
            lane.enqueue(self._meet)
            begin = lane.event()
            lane.enqueue(self._iteration(i))
            events.append((begin, lane.event()))
        if held:
            self._open()
        self._finish(len(iterations))
        return [lane.device.elapsed(begin, end) for begin, end in events]

    def _back_to_back(self, n: int) -> float:
        """Seconds from the first iteration's start to the last one's end.

        Only the first iterations are enqueued behind the gate, because a stream's queue is limited.
        """
        lane = self._lane
        held = (QUEUE - queue_entries(self._meet) - 2) // self._entries
        lane.close_gate()
        lane.enqueue(self._meet)
        begin = lane.event()
        for i in range(n):
            if i == held:
                self._open()
            lane.enqueue(self._iteration(i))
        end = lane.event()
        if n <= held:
            self._open()
        return self._elapsed(begin, end, n)

    def _open(self) -> None:
        """Wait until all ranks have enqueued, then open the gates."""
        self._lane.world.barrier()
        self._lane.open_gate()

    def _finish(self, n: int) -> None:
        """Wait for n iterations."""
        self._lane.wait(n * self._each)
        self._runs += n

    def _elapsed(self, begin: CudaEvent, end: CudaEvent, n: int) -> float:
        """Wait for n iterations. Returns the seconds between the events before and after them."""
        self._finish(n)
        return self._lane.device.elapsed(begin, end)

    def overhead(self, n: int = 20) -> dict[str, float]:
        """Seconds per iteration without a gate: ``eager``, and ``graph`` if graphs were captured.

        This is the cost in a program that enqueues while the GPU runs, where graphs help. Ranks
        that are threads share one interpreter and enqueue in turns, so ``eager`` grows with their
        number.
        """
        self._begun()
        seconds = {}
        # A flag, and no second name for the graphs: a failure keeps this frame, and a communicator
        # is not aborted while graphs of it are kept.
        self._eager = True
        try:
            seconds["eager"] = self._unheld(n)
        finally:
            self._eager = False
        if self._graphs is not None:
            seconds["graph"] = self._unheld(n)
        return seconds

    def _unheld(self, n: int) -> float:
        lane = self._lane
        lane.world.barrier()
        lane.enqueue(self._meet)
        begin = lane.event()
        for i in range(n):
            lane.enqueue(self._iteration(i))
        return self._elapsed(begin, lane.event(), n) / n

    def close(self) -> None:
        """Release graphs and buffers; the action cannot run again."""
        self._graphs, self._bound, self._held = None, [], None
