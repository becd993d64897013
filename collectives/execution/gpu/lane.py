"""A rank's stream: enqueueing work, gates, timing, waiting, and aborting.

This module does not know what the work is. Waiting polls, so that a library's asynchronous error,
another rank's failure and the deadline are noticed while the GPU works. Between polls it sleeps:
ranks that are threads share one interpreter, and a rank that has still to launch needs it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, cast

import numpy as np
from numpy.typing import NDArray

from busbar.errors import RankFailure
from collectives.execution.gpu.device import Call, CudaEvent, CudaGraph, GpuDevice
from collectives.execution.gpu.kernels import Kernels
from collectives.execution.inproc.world import InprocWorld
from collectives.execution.world import World

# Seconds that a rank that gives up waits for the messages of other ranks that give up, too.
GRACE_S = 2.0
_NAP_S = 50e-6  # between two polls; no reported time depends on it
_PATIENCE = 3  # a wait is late after so many times the expected duration


@dataclass(frozen=True)
class QueuedCall:
    """A library call that puts more than one entry into a stream's queue.

    CUDA's launches and copies are plain callables with one entry each. ``entries``: entries of this
    call. ``around``: entries of a captured graph with such calls, in addition to its nodes.
    """

    call: Call
    entries: int
    around: int

    def __call__(self) -> None:
        """Call the library."""
        self.call()


def queue_entries(calls: Sequence[Call], *, graph: bool = False) -> int:
    """Entries in a stream's queue: of all calls, or of one launch of their graph."""
    library = [call for call in calls if isinstance(call, QueuedCall)]
    if graph:
        return len(calls) + max((call.around for call in library), default=0)
    return len(calls) - len(library) + sum(call.entries for call in library)


class Lane:
    """One rank's stream on its device. All ranks create theirs together, each in its own thread.

    ``check`` raises if the library has failed on this rank. ``give_up`` aborts the library's
    pending work, so that no rank hangs. ``deadline``: seconds that a wait may take.
    """

    def __init__(
        self,
        device: GpuDevice,
        world: World,
        *,
        check: Call = lambda: None,
        give_up: Call = lambda: None,
        deadline: float = 60.0,
    ) -> None:
        device.use()
        self.device, self.world, self.deadline = device, world, deadline
        self.kernels = Kernels(device)
        self.stream = device.stream()
        self._check, self._give_up = check, give_up
        words = device.pinned(8).view(np.uint32)
        words[:] = 0
        # Ranks that are threads share one word: the first that opens the gate opens it for all.
        self._word = words[:1]
        if isinstance(world, InprocWorld):
            self._word = cast("NDArray[np.uint32]", world.exchange(self._word)[0])
        self._expired = words[1:]
        self._gates = 0
        # Run the gate's kernel once now: a first launch may wait for the whole device.
        self.close_gate()
        self.open_gate()
        self.wait()

    def enqueue(self, calls: list[Call]) -> None:
        """Make the calls with this stream as the current one."""
        with self.stream:
            for call in calls:
                call()

    def capture(self, calls: list[Call]) -> CudaGraph:
        """Capture the calls as a graph."""
        return self.device.capture(self.stream, lambda: self.enqueue(calls))

    def event(self) -> CudaEvent:
        """An event recorded at this point of the stream."""
        event = self.device.event()
        event.record(self.stream)
        return event

    def close_gate(self) -> None:
        """Close the gate: work enqueued from now on waits for `open_gate`; all ranks close it."""
        self._gates += 1
        word, late = self._word.ctypes.data, self._expired.ctypes.data
        with self.stream:
            self.kernels.gate(word, self._gates, self.deadline, late)

    def open_gate(self) -> None:
        """Open the gate: work that was enqueued behind it may start."""
        if self._word[0] < self._gates:  # another thread may be further already
            self._word[0] = self._gates

    def wait(self, expected: float = 0.0) -> None:
        """Return when all work is done; ``expected``: seconds that it should take.

        Raises RankFailure, after giving up all work, if CUDA or the library reports an error,
        another rank has failed, the deadline has passed, or a gate opened by its time limit.
        """
        start = time.monotonic()
        while True:
            try:
                if self.device.idle(self.stream):
                    break
                self._check()
            except RuntimeError as error:  # CUDA's and NCCL's errors both are
                self.fail(str(error))
            for rank, message in self.world.alarms():
                self._raise_alarm(rank, message)
            waited = time.monotonic() - start
            if waited > self.deadline + _PATIENCE * expected:
                self._late()
            time.sleep(_NAP_S)
        if self._expired[0]:
            self._expired[0] = 0
            self.fail(
                f"a gate opened by itself after {self.deadline:g} s, before all ranks had enqueued:"
                " what was timed behind it is void"
            )

    def fail(self, reason: str) -> NoReturn:
        """Report the failure to the other ranks, abort pending work, and raise RankFailure."""
        self.world.alarm({"failed": reason})
        self._abort()
        raise RankFailure(f"rank {self.world.rank}: {reason}")

    def _raise_alarm(self, rank: int, message: Any) -> NoReturn:
        """Raise RankFailure for another rank's alarm."""
        if "failed" in message:
            self._abort()
            raise RankFailure(
                f"rank {self.world.rank} stopped because rank {rank} failed: {message['failed']}"
            )
        # Another rank has given up waiting, so this rank's deadline has passed as well.
        self._late({rank})

    def _late(self, late: set[int] | None = None) -> NoReturn:
        """The deadline has passed: raise RankFailure, naming ranks that do not even wait."""
        world, waiting = self.world, {self.world.rank} | (late or set())
        world.alarm({"late": True})
        stop = time.monotonic() + GRACE_S
        while len(waiting) < world.size and time.monotonic() < stop:
            for rank, message in world.alarms():
                if "failed" in message:
                    self._raise_alarm(rank, message)
                waiting.add(rank)
            time.sleep(_NAP_S)
        self._abort()
        missing = [rank for rank in range(world.size) if rank not in waiting]
        whom = ", ".join(map(str, missing))
        who = (
            f"for rank{'s' if len(missing) > 1 else ''} {whom}, which did not arrive"
            if missing
            else "while all ranks were inside; the exchange itself hangs"
        )
        raise RankFailure(f"rank {world.rank} waited {self.deadline:g} s {who}")

    def _abort(self) -> None:
        self.open_gate()
        self._give_up()
