"""The executor in NumPy: the reference for the native executor, and its fallback.

It waits by polling and yielding. It relies on x86's order of writes; elsewhere it works for threads
of one interpreter only.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from busbar.errors import RankFailure
from collectives.execution.shm.dependences import ENTRY, STAGE, DependenceGraph, Work
from collectives.execution.shm.lines import ByteCounts
from collectives.execution.shm.tasks import Place
from collectives.execution.transport import Array, Spans
from collectives.schedule.ops import Op

Words = NDArray[np.uint64]
_PATIENCE = 0.02


class Lives:
    """Liveness of the ranks: a word for each rank, and their processes."""

    def __init__(self, rank: int, words: Words, pids: Sequence[int], deadline: float) -> None:
        self.rank, self._words, self._deadline = rank, words, deadline
        others = {r: pid for r, pid in enumerate(pids) if pid != os.getpid()}
        self._pidfds = {r: os.pidfd_open(pid) for r, pid in others.items()}

    def check(self, peer: int, waited: float, reached: Callable[[], bool]) -> None:
        """Raise RankFailure when the wait for a rank has become vain.

        ``reached``: asked once more, for the rank may have done its part just before it left.
        """
        me = self.rank
        for rank, fd in self._pidfds.items():
            if select.select([fd], [], [], 0)[0] and not self._words[rank]:
                raise RankFailure(f"rank {rank} died while rank {me} waited in a collective")
        if self._words[peer] and not reached():
            raise RankFailure(f"rank {peer} has left while rank {me} waited in a collective")
        if waited > self._deadline and not reached():
            raise RankFailure(
                f"rank {me} waited {self._deadline:g} s for rank {peer}, which did not arrive"
            )

    def close(self) -> None:
        """Stop watching."""
        for fd in self._pidfds.values():
            os.close(fd)
        self._pidfds = {}


class Reference:
    """Runs one rank's work window by window, as the native executor does.

    ``find(place)`` gives the elements from a place on; ``words`` is the progress of every rank, and
    ``counts`` what the plan's ranks count.
    """

    def __init__(
        self,
        flow: DependenceGraph,
        rank: int,
        find: Callable[[Place], Array],
        words: Words,
        lives: Lives,
        op: Op | None,
        dtype: np.dtype[Any],
        window: int,
        barrier: Callable[[], None],
        counts: ByteCounts,
    ) -> None:
        self._flow, self._rank, self._find = flow, rank, find
        self._words, self._lives, self._window = words, lives, window
        self._join = np.add if op is None else op.ufunc
        self._wide = np.dtype(np.float32) if dtype.itemsize == 2 else dtype
        sizes = [work.size for works in flow.works for work in works]
        self._nwindows = max(1, -(-max(sizes, default=0) // window))
        self._stage = np.empty((flow.slots[rank], window), dtype)
        self._itemsize = dtype.itemsize
        self._runs = 0
        self._barrier = barrier
        self._loads, self._stores = counts.loads[rank], counts.stores[rank]

    def _mark(self, rank: int, window: int, task: int) -> int:
        tasks = len(self._flow.works[rank])
        return self._runs * (1 + tasks * self._nwindows) + 2 + window * tasks + task

    def _wait(self, peer: int, window: int, task: int) -> None:
        mark = self._mark(peer, 0 if task == ENTRY else window, task)
        start = looked = time.monotonic()

        def reached() -> bool:
            return int(self._words[peer]) >= mark

        while not reached():
            os.sched_yield()
            now = time.monotonic()
            if now - looked > _PATIENCE:
                self._lives.check(peer, now - start, reached)
                looked = now

    def run(self) -> None:
        """Carry the collective out once. Raises RankFailure when another rank is lost."""
        me = self._rank
        self._words[me] = self._mark(me, 0, ENTRY)
        for window in range(self._nwindows):
            for number, work in enumerate(self._flow.works[me]):
                for peer, task in work.waits:
                    self._wait(peer, window, task)
                self._pass(work, window * self._window)
                if work.published:
                    self._words[me] = self._mark(me, window, number)
        for peer, task in self._flow.exits[me]:
            self._wait(peer, self._nwindows - 1, task)
        self._runs += 1

    def spans(self, n: int, starts: Sequence[float], slower: float) -> Spans:
        """When each of n iterations began and ended; see `Action.spans`."""
        begins, ends = [], []
        for i in range(n):
            if starts:
                while time.perf_counter() < starts[i]:
                    os.sched_yield()
            else:
                self._barrier()
            begins.append(time.perf_counter())
            self.run()
            ends.append(time.perf_counter())
            later = ends[-1] + slower * (ends[-1] - begins[-1])
            while ends[-1] < later:
                ends[-1] = time.perf_counter()
        return begins, ends

    def each(self, n: int) -> list[float]:
        """Seconds of each of n iterations, every one begun together."""
        return [end - begin for begin, end in zip(*self.spans(n, (), 0.0), strict=True)]

    def loop(self, n: int) -> float:
        """Seconds of n iterations one after the other."""
        self._barrier()
        start = time.perf_counter()
        for _ in range(n):
            self.run()
        return time.perf_counter() - start

    def _view(self, place: Place, start: int, size: int) -> Array:
        if place.segment == STAGE:
            return self._stage[place.start, :size]
        return self._find(place)[start : start + size]

    def _pass(self, work: Work, start: int) -> None:
        size = min(self._window, work.size - start)
        if size <= 0:
            return
        for places, moved in ((work.sources, self._loads), (work.targets, self._stores)):
            for place in places:
                moved[place.rank] += np.uint64((place.rank != self._rank) * size * self._itemsize)
        first, *rest = (self._view(place, start, size) for place in work.sources)
        value = first
        if rest:
            value = first.astype(self._wide)
            for source in rest:
                self._join(value, source.astype(self._wide, copy=False), out=value)
        for place in work.targets:
            self._view(place, start, size)[...] = value
