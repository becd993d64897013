"""One rank's step: compute, and the exchange of gradients as they become ready or afterwards.

A second thread exchanges while the first one computes: it runs while that one sleeps or computes
without the interpreter's lock. During a step only the second one uses the ranks' communicators.
Between steps it waits for work.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from bench.steps import fusion
from bench.steps.compute import spend_until
from bench.steps.exchange import Exchange
from bench.steps.fusion import Fusion, TensorRange
from bench.steps.gradients import GradientLayout, Gradients
from bench.steps.job import StepJob
from bench.steps.trace import MESSAGES
from bench.steps.trained import RankTraining
from busbar.errors import Unsupported
from collectives.execution.transport import Action, TracedMessage

# What MPI promises to a program whose second thread sends while the first one does not.
_THREADED = ("serialized", "multiple")


class TrainingStep(Action):
    """Run with ``step()``.

    Of ``exchanges`` the first takes every bucket as soon as it is ready, the others take all of
    them at the end. ``messages``: sent by this rank so far; ``buckets``: exchanged so far. Raises
    Unsupported where exchanging needs a thread and MPI allows none.
    """

    def __init__(
        self,
        job: StepJob,
        how: Fusion,
        layout: GradientLayout,
        gradients: Gradients,
        exchanges: Sequence[Exchange],
        training: RankTraining,
    ) -> None:
        self._job, self._fusion, self._layout, self._gradients = job, how, layout, gradients
        self._first, *self._rest = exchanges
        self._training = training
        self._number = -job.options.warmup
        self._shares, self._count = job.workload.shares(), len(layout.kinds)
        self.messages = self.buckets = 0
        self._spans = [] if how.cycle else fusion.buckets(layout.sizes, how.limits, layout.kinds)
        # Where the backward pass tells what is ready: where a bucket ends, or after every tensor.
        stops = [stop for _, stop in self._spans] or list(range(1, self._count + 1))
        self._stops = np.array(stops)
        self._ready = Ready()
        self._thread: Exchanger | None = None
        if job.options.overlap:
            level = job.world.threads()
            if level is not None and level.name not in _THREADED:
                raise Unsupported(
                    f"MPI's thread level is {level.name} ({level.why}), and overlapped exchange"
                    " needs serialized; use --overlap off"
                )
            self._thread = Exchanger()

    def __call__(self) -> None:
        """Compute and exchange once."""
        job, start = self._job, time.perf_counter()
        self._training.compute(self._number)
        self._ready.mark(0)
        ready = start + job.compute.ready(job.world.rank, self._number, self._shares)
        if self._thread is None:
            self._compute(start, ready)
            self._exchange(start, ready)
        else:
            self._thread.begin(lambda: self._exchange(start, ready))
            self._compute(start, ready)
            self._thread.wait()
        self._training.take(self._gradients.view((0, self._count)))
        self._number += 1

    # -- the computing thread

    def _compute(self, start: float, ready: NDArray[np.float64]) -> None:
        job, begun = self._job, start
        for stop in self._stops.tolist():
            spend_until(float(ready[stop - 1]), job.options.burn)
            if job.trace.on:
                now = time.perf_counter()
                name = "forward, backward" if begun == start else "backward"
                job.trace.add(name, "compute", begun, now, step=self._number, ready=stop)
                begun = now
            self._ready.mark(stop)

    # -- the exchanging thread

    def _exchange(self, start: float, ready: NDArray[np.float64]) -> None:
        """All gradients, each bucket when it is ready."""
        if self._fusion.cycle is None:
            done = self._spans
            for span in done:
                self._ready.await_(span[1])
                self._bucket(self._first, span, float(ready[span[0]]))
        elif self._thread is None:
            done = self._filled(0, self._count)
            for span in done:
                self._bucket(self._first, span, float(ready[span[0]]))
        else:
            done = self._cycles(start, self._fusion.cycle, ready)
        for one in self._rest:
            now = time.perf_counter()
            for span in done:
                self._bucket(one, span, now)

    def _filled(self, begin: int, end: int) -> list[TensorRange]:
        layout = self._layout
        return list(fusion.filled(layout.sizes, begin, end, self._fusion.buffer, layout.kinds))

    def _cycles(self, start: float, cycle: float, ready: NDArray[np.float64]) -> list[TensorRange]:
        """As Horovod: every cycle ranks agree on what is ready on all of them, and exchange it."""
        found: list[TensorRange] = []
        done, tick = 0, start
        while done < self._count:
            tick = max(tick + cycle, time.perf_counter())
            spend_until(tick)
            began = time.perf_counter()
            mine = np.array([float(self._ready.count)])
            agreed = int(self._job.world.combine(mine, "min")[0])
            self._job.trace.add("agree", "exchange", began, time.perf_counter(), ready=agreed)
            for span in self._filled(done, agreed):
                self._bucket(self._first, span, float(ready[span[0]]))
                found.append(span)
            done = max(done, agreed)
        return found

    def _bucket(self, exchange: Exchange, span: TensorRange, ready: float) -> None:
        plan = exchange.plan(self._gradients, span)
        trace, begun = self._job.trace, time.perf_counter()
        if trace.on:
            plan.traced(self._told)
        else:
            plan()
        self.messages += exchange.messages(span)
        self.buckets += exchange is self._first
        if trace.on:
            named = {"step": self._number, "tensors": span[1] - span[0], "bytes": self._bytes(span)}
            trace.add("fusion wait", "fusion", min(ready, begun), begun, **named)
            trace.add(exchange.name, "exchange", begun, time.perf_counter(), **named)

    def _told(self, message: TracedMessage) -> None:
        way, peer, nbytes, within, start, end = message
        named = {"step": self._number, "bytes": nbytes, "schedule step": within}
        self._job.trace.add(f"{way} {peer}", MESSAGES, start, end, **named)

    def _bytes(self, span: TensorRange) -> int:
        return self._layout.starts[span[1]] - self._layout.starts[span[0]]

    @property
    def sent(self) -> int:
        """See `Action.sent`."""
        return sum(one.sent for one in (self._first, *self._rest))

    @property
    def received(self) -> int:
        """See `Action.received`."""
        return sum(one.received for one in (self._first, *self._rest))

    def close(self) -> None:
        """End the thread; plans are their exchanges' to free."""
        if self._thread is not None:
            self._thread.close()


class Ready:
    """A count of the gradients that are ready: one thread sets it, another waits for it."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._count = 0

    @property
    def count(self) -> int:
        """The count now."""
        return self._count

    def mark(self, count: int) -> None:
        """So many are there."""
        with self._changed:
            self._count = count
            self._changed.notify_all()

    def await_(self, count: int) -> None:
        """Return when so many are there."""
        with self._changed:
            self._changed.wait_for(lambda: self._count >= count)


class Exchanger:
    """Runs one job at a time on a thread of its own; what it raises is raised by `wait`."""

    def __init__(self) -> None:
        self._job: Callable[[], None] | None = None
        self._begun, self._done = threading.Semaphore(0), threading.Semaphore(0)
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="exchange", daemon=True)
        self._thread.start()

    def begin(self, job: Callable[[], None]) -> None:
        """Start a job; the one before must have been waited for."""
        self._job = job
        self._begun.release()

    def wait(self) -> None:
        """Return when the job is done; raises what it has raised."""
        self._done.acquire()
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        while True:
            self._begun.acquire()
            if self._job is None:
                return
            try:
                self._job()
            except BaseException as error:  # noqa: BLE001  (carried to the waiting thread)
                self._error = error
            self._done.release()

    def close(self) -> None:
        """End the thread."""
        self._job = None
        self._begun.release()
