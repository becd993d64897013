"""One rank's step: compute, and exchange gradients meanwhile or afterwards.

A second thread exchanges while the first one sleeps or computes without the interpreter's lock.
During a step only the second thread uses the ranks' communicators.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from bench.steps import buckets
from bench.steps.buckets import Fusion, GradientLayout, Gradients, TensorRange
from bench.steps.compute import spend_until
from bench.steps.exchange import Exchange
from bench.steps.job import StepJob
from bench.steps.sync_training import RankTraining
from bench.steps.trace import MESSAGES
from busbar.errors import Unsupported
from collectives.execution.transport import Action, TracedMessage

# MPI's thread levels at which a second thread may send while the first one does not.
_THREADED = ("serialized", "multiple")


class TrainingStep(Action):
    """A training step.

    The first of ``exchanges`` exchanges every bucket as soon as it is ready, the others exchange
    all buckets at the end. ``messages``: sent by this rank so far; ``buckets``: exchanged so far.
    Raises Unsupported if exchanging needs a thread and MPI allows none.
    """

    def __init__(
        self,
        job: StepJob,
        fusion: Fusion,
        layout: GradientLayout,
        gradients: Gradients,
        exchanges: Sequence[Exchange],
        training: RankTraining,
    ) -> None:
        self._job, self._fusion, self._layout, self._gradients = job, fusion, layout, gradients
        self._first, *self._rest = exchanges
        self._training = training
        self._number = -job.options.warmup
        self._shares, self._count = job.workload.shares(), len(layout.kinds)
        self.messages = self.buckets = 0
        self._spans = (
            []
            if fusion.cycle
            else buckets.assign_buckets(layout.sizes, fusion.limits, layout.kinds)
        )
        # The tensors after which the exchanging thread is woken: at the end of buckets, or all.
        stops = [stop for _, stop in self._spans] or list(range(1, self._count + 1))
        self._stops = np.array(stops)
        self._ready = ReadyCount()
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
        self._ready.set(0)
        ready = start + job.compute.ready(job.world.rank, self._number, self._shares)
        if self._thread is None:
            self._compute(start, ready)
            self._exchange(start, ready)
        else:
            self._thread.begin(lambda: self._exchange(start, ready))
            self._compute(start, ready)
            self._thread.wait()
        self._training.update(self._gradients.view((0, self._count)))
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
            self._ready.set(stop)

    # -- the exchanging thread

    def _exchange(self, start: float, ready: NDArray[np.float64]) -> None:
        """Exchange all gradients, each bucket when it is ready."""
        if self._fusion.cycle is not None and self._thread is not None:
            spans = self._exchange_in_cycles(start, self._fusion.cycle, ready)
        else:
            spans = self._spans or self._fill_buffers(0, self._count)
            for span in spans:
                self._ready.wait_for(span[1])
                self._exchange_bucket(self._first, span, float(ready[span[0]]))
        for exchange in self._rest:
            now = time.perf_counter()
            for span in spans:
                self._exchange_bucket(exchange, span, now)

    def _fill_buffers(self, begin: int, end: int) -> list[TensorRange]:
        layout = self._layout
        return list(
            buckets.fill_buffers(layout.sizes, begin, end, self._fusion.buffer, layout.kinds)
        )

    def _exchange_in_cycles(
        self, start: float, cycle: float, ready: NDArray[np.float64]
    ) -> list[TensorRange]:
        """Exchange every cycle what is ready on all ranks, as Horovod does."""
        spans: list[TensorRange] = []
        done, tick = 0, start
        while done < self._count:
            tick = max(tick + cycle, time.perf_counter())
            spend_until(tick)
            began = time.perf_counter()
            count = np.array([float(self._ready.count)])
            agreed = int(self._job.world.combine(count, "min")[0])
            self._job.trace.add("agree", "exchange", began, time.perf_counter(), ready=agreed)
            for span in self._fill_buffers(done, agreed):
                self._exchange_bucket(self._first, span, float(ready[span[0]]))
                spans.append(span)
            done = max(done, agreed)
        return spans

    def _exchange_bucket(self, exchange: Exchange, span: TensorRange, ready: float) -> None:
        plan = exchange.plan(self._gradients, span)
        trace, begun = self._job.trace, time.perf_counter()
        if trace.on:
            plan.traced(self._trace_message)
        else:
            plan()
        self.messages += exchange.messages(span)
        self.buckets += exchange is self._first
        if trace.on:
            nbytes = self._layout.nbytes_of(span)
            facts = {"step": self._number, "tensors": span[1] - span[0], "bytes": nbytes}
            trace.add("fusion wait", "fusion", min(ready, begun), begun, **facts)
            trace.add(exchange.name, "exchange", begun, time.perf_counter(), **facts)

    def _trace_message(self, message: TracedMessage) -> None:
        direction, peer, nbytes, schedule_step, start, end = message
        facts = {"step": self._number, "bytes": nbytes, "schedule step": schedule_step}
        self._job.trace.add(f"{direction} {peer}", MESSAGES, start, end, **facts)

    @property
    def sent(self) -> int:
        """See `Action.sent`."""
        return sum(exchange.sent for exchange in (self._first, *self._rest))

    @property
    def received(self) -> int:
        """See `Action.received`."""
        return sum(exchange.received for exchange in (self._first, *self._rest))

    def close(self) -> None:
        """End the thread. Exchanges free their plans themselves."""
        if self._thread is not None:
            self._thread.close()


class ReadyCount:
    """The number of gradients that are ready. One thread sets it, another waits for it."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._count = 0

    @property
    def count(self) -> int:
        """The number of gradients that are ready now."""
        return self._count

    def set(self, count: int) -> None:
        """Set the number of gradients that are ready."""
        with self._changed:
            self._count = count
            self._changed.notify_all()

    def wait_for(self, count: int) -> None:
        """Return when at least so many gradients are ready."""
        with self._changed:
            self._changed.wait_for(lambda: self._count >= count)


class Exchanger:
    """Runs one function at a time in a thread of its own. `wait` raises what it has raised."""

    def __init__(self) -> None:
        self._job: Callable[[], None] | None = None
        self._begun, self._done = threading.Semaphore(0), threading.Semaphore(0)
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="exchange", daemon=True)
        self._thread.start()

    def begin(self, job: Callable[[], None]) -> None:
        """Start a function, after `wait` has returned for the one before."""
        self._job = job
        self._begun.release()

    def wait(self) -> None:
        """Return when the function has returned; raises what it has raised."""
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
