"""Launches one iteration over peer memory, and watches the other ranks meanwhile."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from busbar.errors import RankFailure
from collectives.execution.gpu.array import DeviceArray
from collectives.execution.gpu.device import GpuDevice
from collectives.execution.gpu.lane import Lane
from collectives.execution.ipc.kernels import PassKernels
from collectives.execution.ipc.table import STATUS, WORD
from collectives.execution.world import DIED, LATE, LEFT, World, lost

# Seconds between two looks at the other ranks' processes.
PATIENCE = 0.02
_REASON, _PEER, _STOP = (STATUS.index(name) for name in ("Reason", "Peer", "Stop"))
_FAILED = 4  # plan.cuh's Reason

Call = Callable[[], object]


def program(kernels: PassKernels, plan: DeviceArray, nteams: int) -> list[Call]:
    """One launch, which does the whole plan and waits on the GPU.

    ``plan``: the table in device memory.
    """
    args = np.uint64(plan.address), np.uint64(plan.nbytes // WORD)
    return [lambda: kernels.program((nteams,), (kernels.threads,), args)]


class _Process:
    """Another process of this host, watched by a pidfd where Python and the kernel have it."""

    def __init__(self, pid: int) -> None:
        self._pid, self._fd = pid, -1
        with suppress(AttributeError, OSError):
            self._fd = os.pidfd_open(pid)

    def ended(self) -> bool:
        """Whether it has ended. Without a pidfd a process that took its number stands for it."""
        if self._fd >= 0:
            return bool(select.select([self._fd], [], [], 0)[0])
        try:
            os.kill(self._pid, 0)
        except ProcessLookupError:
            return True
        except OSError:  # it lives, and is somebody else's
            return False
        return False

    def close(self) -> None:
        """Watch no more."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class PeerWatch:
    """The words shared by the executor and the host, and the processes of the other ranks.

    ``status``: the pinned words of plan.cuh's Status, all 0. Ranks that are threads of this process
    are not watched.
    """

    def __init__(
        self, rank: int, pids: Sequence[int], status: NDArray[np.uint64], deadline: float
    ) -> None:
        self._rank, self.status, self._deadline = rank, status, deadline
        self._processes = {r: _Process(pid) for r, pid in enumerate(pids) if pid != os.getpid()}
        self._dead: list[int] = []
        self._looked = 0.0

    def look(self) -> None:
        """Stop the executor when a rank's process has ended; asked again and again, cheap."""
        now = time.monotonic()
        if now - self._looked < PATIENCE:
            return
        self._looked = now
        if not self._dead:
            self._dead = [rank for rank, one in self._processes.items() if one.ended()]
        if self._dead:
            # Also where it left in good order: who needs nothing of it any more runs on.
            self.stop()

    def stop(self) -> None:
        """Let every wait on the GPU end as vain."""
        self.status[_STOP] = 1

    def settle(self) -> None:
        """Raise RankFailure where the executor gave up, naming whom it waited for, and why."""
        reason, peer, me = int(self.status[_REASON]), int(self.status[_PEER]), self._rank
        if not reason:
            return
        if reason == _FAILED:
            raise RankFailure(f"rank {me} stopped because rank {peer} failed in a collective")
        if reason not in (LEFT, LATE):
            peer, reason = self._dead[0] if self._dead else peer, DIED
        raise lost(me, peer, reason, self._deadline)

    def close(self) -> None:
        """Stop watching."""
        for process in self._processes.values():
            process.close()
        self._processes = {}


class WatchedLane(Lane):
    """A lane whose work may have ended because another rank was lost."""

    def __init__(self, device: GpuDevice, world: World, watch: PeerWatch, deadline: float) -> None:
        self._watched = watch
        # The executor's own deadline ends a wait first, and it knows whom it was for.
        super().__init__(device, world, check=watch.look, give_up=watch.stop, deadline=2 * deadline)

    def wait(self, expected: float = 0.0) -> None:
        """See `Lane.wait`; a plan that gave up raises too."""
        super().wait(expected)
        self._watched.settle()
