"""Synchronous updates: gradients are averaged over all ranks, and all ranks use the average.

A step is a forward pass and a backward pass, which computes gradients from the last tensor to the
first. A second thread exchanges buckets of gradients during the backward pass, while the first one
sleeps or computes without the interpreter's lock. During a step only the second thread uses the
ranks' communicators. With ``--overlap off`` buckets are exchanged after the backward pass instead.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from hashlib import sha256
from itertools import accumulate, count, product
from math import ceil
from statistics import median
from typing import Any

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from bench.options.options import parse_choice
from bench.run.memory import Need, Room
from bench.run.noise import NoiseCounters, disturbances
from bench.run.tuning_file import load
from bench.steps.buckets import GradientLayout, Gradients, TensorRange, assign_buckets, fill_buffers
from bench.steps.compute import spend_until
from bench.steps.exchange import REDUCE_BROADCAST, CodingTimes, Exchange, stages
from bench.steps.job import UPDATES, StepJob, step_record
from bench.steps.options import StepOptions, UpdateChoice
from bench.steps.trace import MESSAGES
from bench.steps.training.codecs import suits
from bench.steps.training.problem import (
    MOST_CHECKED,
    Facts,
    Lines,
    ReceivedGradient,
    WeightHistory,
    compression,
    relative_error,
    report_training,
)
from bench.timing.measure import FunctionAction, Timing, measure
from busbar.arguments import unknown
from busbar.errors import Unsupported
from busbar.units import format_bytes, format_seconds
from collectives.execution.transport import Action, Array, TracedMessage
from collectives.formats.load import build, is_file
from collectives.predict.compare import port_volume
from collectives.predict.interface import Operation
from collectives.predict.maps import load_machine
from collectives.predict.predictor import choose_predictor
from collectives.schedule import catalogue
from reports.records.measurement import Record
from reports.statistics.uncertain import mean_of, median_of

# MPI's thread levels at which a second thread may call MPI while the first one does not.
_THREADED = ("serialized", "multiple")


class TrainingStep(Action):
    """One training step, as an action that can be repeated.

    The first of ``exchanges`` exchanges every bucket as soon as it is ready, the others exchange
    all buckets at the end. ``spans``: the buckets; with a cycle, those of a step without overlap.
    ``messages``: sent by this rank so far; ``buckets``: exchanged so far. Raises Unsupported with
    overlapped exchange if MPI's thread level allows no second thread.
    """

    def __init__(
        self,
        job: StepJob,
        gradients: Gradients,
        spans: Sequence[TensorRange],
        exchanges: Sequence[Exchange],
        training: RankTraining,
    ) -> None:
        self._job, self._gradients, self._spans = job, gradients, spans
        self._layout, self._cycle = gradients.layout, job.options.fusion.cycle
        self._first, *self._rest = exchanges
        self._training = training
        self._number = -job.options.warmup
        self._shares, self._count = job.workload.shares(), len(self._layout.kinds)
        self.messages = self.buckets = 0
        # The exchanging thread is woken after each bucket's last tensor; with a cycle, after each.
        each = range(1, self._count + 1)
        self._stops = each if self._cycle is not None else [stop for _, stop in spans]
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
        if self._number == 0:  # what warm-up steps lost by encoding is no part of the training
            self._first.forget()

    # -- the computing thread

    def _compute(self, start: float, ready: NDArray[np.float64]) -> None:
        job, begun = self._job, start
        for stop in self._stops:
            spend_until(float(ready[stop - 1]), job.options.burn)
            if job.trace.on:
                now = time.perf_counter()
                name = "forward, backward" if begun == start else "backward"
                job.trace.add(name, "compute", begun, now, step=self._number, ready=stop)
                begun = now
            self._ready.set(stop)

    # -- the exchanging thread

    def _exchange(self, start: float, ready: NDArray[np.float64]) -> None:
        """Exchange all gradients; each bucket as soon as it is ready."""
        spans = self._spans
        if self._cycle is not None and self._thread is not None:
            spans = self._exchange_in_cycles(start, self._cycle, ready)
        else:
            for span in spans:
                self._ready.wait_for(span[1])
                self._exchange_bucket(self._first, span, float(ready[span[0]]))
        for exchange in self._rest:
            now = time.perf_counter()
            for span in spans:
                self._exchange_bucket(exchange, span, now)

    def _exchange_in_cycles(
        self, start: float, cycle: float, ready: NDArray[np.float64]
    ) -> list[TensorRange]:
        """In each cycle exchange the gradients that are ready on all ranks, as Horovod does."""
        spans: list[TensorRange] = []
        layout, buffer = self._layout, self._job.options.fusion.buffer
        done, tick = 0, start
        while done < self._count:
            tick = max(tick + cycle, time.perf_counter())
            spend_until(tick)
            began = time.perf_counter()
            count = np.array([float(self._ready.count)])
            agreed = int(self._job.world.combine(count, "min")[0])
            self._job.trace.add("agree", "exchange", began, time.perf_counter(), ready=agreed)
            for span in fill_buffers(layout.sizes, done, agreed, buffer, layout.kinds):
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
        """Bytes that this rank has sent to other ranks so far."""
        return sum(exchange.sent for exchange in (self._first, *self._rest))

    @property
    def received(self) -> int:
        """Bytes that this rank has received so far."""
        return sum(exchange.received for exchange in (self._first, *self._rest))

    def close(self) -> None:
        """End the exchanging thread. The exchanges' plans stay open."""
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
        """Return when at least ``count`` gradients are ready."""
        with self._changed:
            self._changed.wait_for(lambda: self._count >= count)


class Exchanger:
    """A thread that runs one function at a time. `wait` raises the function's exception."""

    def __init__(self) -> None:
        self._job: Callable[[], None] | None = None
        self._begun, self._done = threading.Semaphore(0), threading.Semaphore(0)
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="exchange", daemon=True)
        self._thread.start()

    def begin(self, job: Callable[[], None]) -> None:
        """Start a function. `wait` must have returned for the function before it."""
        self._job = job
        self._begun.release()

    def wait(self) -> None:
        """Return when the function has returned. Raises the exception that it raised."""
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


Vector = NDArray[Any]


class RankTraining:
    """One rank's training. ``source``: this step's gradient, float32; None: constant values."""

    def __init__(self, job: StepJob) -> None:
        options, world = job.options, job.world
        self._world, self.codec, n = world, options.codec, job.workload.elements
        self.compressed = options.compress != "none"
        self._shared = options.shared_problem(world.size)
        self.source: Vector | None = None
        if self._shared is not None:
            self.source = np.zeros(n, np.float32)
        elif self.compressed:
            random = np.random.default_rng((options.seed, world.rank))
            self.source = random.standard_normal(n, np.float32)
        self._begin()

    def _begin(self) -> None:
        """Reset weights, rule and history, since warm-up steps are not part of the training."""
        if self._shared is not None:
            self._weights = self._shared.problem.start()
            self._rule, self._updates = self._shared.rule(), 0
            self._history = WeightHistory(self._weights)

    @property
    def real(self) -> bool:
        """True if a problem is trained (``--problem``)."""
        return self._shared is not None

    def compute(self, number: int) -> None:
        """Compute this rank's gradient of a step. Warm-up steps have negative numbers."""
        if self._shared is None:
            return
        if number <= 0:
            self._begin()
        gradient = self._shared.gradient(self._weights, self._world.rank, max(0, number))
        np.copyto(self._source, gradient)

    @property
    def _source(self) -> Vector:
        assert self.source is not None
        return self.source

    def update(self, buffer: Vector) -> None:
        """Update this rank's weights with the mean of all ranks' gradients."""
        if self._shared is None:
            return
        mean = buffer.astype(np.float32)
        with np.errstate(all="ignore"):  # the loss shows whether training diverges
            self._rule(self._weights, [ReceivedGradient(mean, 0, self._weights)])
        self._updates += 1
        self._history.add(self._updates, self._weights)

    def report(self, times: Sequence[float]) -> tuple[Facts, Lines]:
        """The training's facts for the record, and its printed lines.

        All ranks call this together. ``times``: seconds of each step.
        """
        world, shared = self._world, self._shared
        if shared is None:
            return {}, []
        same = len(set(world.gather(sha256(self._weights.tobytes()).hexdigest()))) == 1
        report: tuple[Facts, Lines] = {}, []
        if world.rank == 0:
            moments = [0.0, *accumulate(times)]
            where = f": {'' if same else 'not '}the same bits on all ranks"
            report = report_training(
                shared, self._history.entries, lambda n: moments[n], compare=True, where=where
            )
        facts, lines = world.broadcast(report)
        return {**facts, "ranks_agree": same}, lines

    def compression(
        self, runs: int, sent: int, times: CodingTimes, exchange: Callable[[], Vector]
    ) -> tuple[Facts, Lines]:
        """Costs and error of compression over ``runs`` steps. All ranks call this together.

        ``sent``: bytes that this rank sent. ``exchange``: exchanges this step's gradients again,
        without error feedback, and returns their mean, whose error is measured.
        """
        if not self.compressed:
            return {}, []
        per_step = np.array([sent, times.encode, times.decode]) / runs
        sent_bytes, encode_s, decode_s = self._world.combine(per_step, "avg").tolist()
        n, error = max(1, len(self._source)), self._error(exchange)
        facts, lines = compression(self.codec, n, "sum", error, encode_s, decode_s)
        return {**facts, "sent_bytes_per_rank": sent_bytes}, lines

    def _error(self, exchange: Callable[[], Vector]) -> float:
        """The relative error of the mean that ``exchange`` returns: the largest of all ranks."""
        few = slice(0, MOST_CHECKED)
        exact = self._world.combine(self._source[few].astype(np.float64), "avg")
        self._world.barrier()
        error = relative_error(exchange()[few].astype(np.float64), exact)
        return float(self._world.combine(np.array([error]), "max")[0])


Seconds = Callable[[TensorRange], float]
"""Gives the seconds that the exchange of a range of tensors takes."""
Price = Callable[[Operation, int], float]
"""A function: a collective and its bytes -> its seconds."""


def by_port(rate: float) -> Price:
    """The law of `busbar cluster law`: the bytes through the busiest port over its bytes/s."""
    return lambda operation, nbytes: float(port_volume(operation)) * nbytes / rate


def port_seconds(
    job: StepJob,
    layout: GradientLayout,
    spans: Sequence[TensorRange],
    exchanges: Sequence[Exchange],
) -> float | None:
    """Seconds of the exchange alone by the law of the ports.

    None if ranks have no ports of a known rate, and for the library, which has no schedule.
    """
    known = all(exchange.has_schedules(layout, spans) for exchange in exchanges)
    if job.port_rate is None or not known:
        return None
    seconds = _priced(layout, exchanges, by_port(job.port_rate))
    return sum(seconds(number, span) for number in range(len(exchanges)) for span in spans)


def _priced(
    layout: GradientLayout, exchanges: Sequence[Exchange], price: Price
) -> Callable[[int, TensorRange], float]:
    """A function: number of an exchange, range of tensors -> seconds by ``price``.

    Ranges of equally many bytes take equally long.
    """
    cache: dict[tuple[int, int], float] = {}

    def seconds(number: int, span: TensorRange) -> float:
        key = number, layout.nbytes_of(span)
        if key not in cache:
            exchange, cache[key] = exchanges[number], 0.0
            for schedule, (collective, _, nbytes, itemsize) in exchange.calls(layout, span):
                in_place = not exchange.coded
                operation = Operation.of(schedule, collective, itemsize=itemsize, in_place=in_place)
                cache[key] += price(operation, nbytes)
        return cache[key]

    return seconds


def expected(
    job: StepJob,
    layout: GradientLayout,
    spans: Sequence[TensorRange],
    exchanges: Sequence[Exchange],
    steps: int,
) -> tuple[float | None, str]:
    """The predicted median seconds of the steps, and the source: fit, topology or port.

    Each step has the compute times of the measured step. Without costs of links the law of the
    ports predicts, if their rate is known. Returns None without either, and for the library's
    collective, which has no schedule. The time to encode and decode is left out.
    """
    options = job.options
    if not all(exchange.has_schedules(layout, spans) for exchange in exchanges):
        return None, ""
    if options.fit is not None or options.topology:
        machine = load_machine(options.topology or None, options.fit, job.world.size)
        predictor = choose_predictor(machine)
        source = "topology" if options.fit is None else "fit"
        seconds = _priced(
            layout, exchanges, lambda operation, n: float(predictor.seconds(operation, [n])[0])
        )
    elif job.port_rate is not None:
        source, seconds = "port", _priced(layout, exchanges, by_port(job.port_rate))
    else:
        return None, ""
    shares, ends = job.workload.shares(), []
    after = sum(seconds(n, span) for n in range(1, len(exchanges)) for span in spans)
    for step in range(steps):
        by_rank = [job.compute.ready(rank, step, shares) for rank in range(job.world.size)]
        ready = np.max(by_rank, axis=0)
        if not options.overlap:
            ready = np.full(len(ready), ready[-1])
        if options.fusion.cycle is None or not options.overlap:
            end = time_buckets(ready, spans, partial(seconds, 0))
        else:
            buffer, cycle = options.fusion.buffer, options.fusion.cycle
            end = time_cycles(ready, layout.sizes, buffer, cycle, partial(seconds, 0), layout.kinds)
        ends.append(end + after)
    return median(ends), source


def time_buckets(
    ready: NDArray[np.float64], spans: Sequence[TensorRange], seconds: Seconds
) -> float:
    """Seconds from a step's start until all buckets are exchanged one after the other.

    ``spans``: the tensors of each bucket, known before the step. A bucket begins when the last of
    its tensors is ready and the bucket before is done. ``ready``: seconds until each tensor's
    gradient is ready on all ranks. ``seconds``: gives the time to exchange a range of tensors.
    """
    free = 0.0
    for span in spans:
        free = max(free, float(ready[span[1] - 1])) + seconds(span)
    return max(free, float(ready[-1]))


def time_cycles(
    ready: NDArray[np.float64],
    sizes: Sequence[int],
    buffer: int,
    cycle: float,
    seconds: Seconds,
    kinds: Sequence[str] = (),
) -> float:
    """Seconds until all gradients are exchanged, if each cycle exchanges those that are ready.

    Exchanges begin every ``cycle`` seconds, in buffers of ``buffer`` bytes. After an exchange that
    takes longer than ``cycle`` the next one begins at once, and later cycles count from there.
    """
    done, begun = 0, cycle
    while True:
        count = int(np.searchsorted(ready, begun, side="right"))
        if count <= done:  # the next cycle at which a gradient is ready
            begun += cycle * max(1, ceil((float(ready[done]) - begun) / cycle))
            continue
        now = begun
        for span in fill_buffers(sizes, done, count, buffer, kinds):
            now += seconds(span)
        if count == len(sizes):
            return now
        done, begun = count, max(now, begun + cycle)


# Algorithms whose schedules cannot be built before the ranks have started.
_LATER = ("library", "auto")
# The number of timed steps in which buckets are exchanged without computing.
_ALONE = 10


def check(choice: UpdateChoice, nranks: int, options: StepOptions) -> None:
    """Raise Unsupported if a kind of exchange cannot run on ``nranks`` ranks with these options."""
    if options.learners:
        raise Unsupported(f"{choice.label} has no server that --learners could call")
    known = catalogue.algorithms("allreduce")
    plain = choice.name in (*known, *_LATER, REDUCE_BROADCAST)
    if not plain and "+" not in choice.name and not is_file(choice.name):
        raise unknown("update", choice.name, (*UPDATES, *_LATER, *known))
    suits(options.codec, choice.name)
    if choice.name == "auto":
        load(options.tuning)  # raises before ranks start if the file cannot be read
    for collective, label in stages(choice):
        if label not in _LATER:
            parsed = parse_choice(label)
            parameters: dict[str, Any] = dict(parsed.parameters)
            build(collective, parsed.name, nranks, **parameters)


def run(job: StepJob) -> tuple[Record, Lines]:
    """Measure steps with one kind of exchange, their compute alone, and the exchange alone.

    All ranks call this together. Returns the record, and the lines below its row.
    """
    try:
        update = _Update(job)
    except Unsupported as error:  # the same on every rank
        skipped, fusion = Record(skipped=str(error)), job.options.fusion.label
        return step_record(job, skipped, "synchronous", fusion=fusion), []
    try:
        return update.measure()
    finally:
        update.close()


class _Update:
    """One kind of gradient exchange on one rank: its memory, its collectives, its measurements."""

    def __init__(self, job: StepJob) -> None:
        self._job = job
        self._layout = GradientLayout.of(job.workload, job.options.dtype)
        self._fusion = job.options.fusion
        self._training = RankTraining(job)
        self._spans = self._buckets()
        self._exchanges = [
            Exchange(job, *stage, self._training.source, len(self._spans))
            for stage in stages(job.choice)
        ]
        self._first = self._exchanges[0]
        self._check_memory()
        self._gradients = Gradients(self._layout, job.transport)
        self._gradients.fill(job.world.rank + 1)
        self._steps = count()
        for exchange, span in product(self._exchanges, self._spans):
            exchange.plan(self._gradients, span)

    def _buckets(self) -> list[TensorRange]:
        """The buckets; with a cycle, the buffers that result if all gradients are ready at once.

        Buckets are those of the gradients before compression, as DDP's hook of communication
        compresses whole buckets. Horovod compresses before it fills a buffer.
        """
        sizes, kinds = self._layout.sizes, self._layout.kinds
        if self._fusion.cycle is None:
            if self._job.options.compress != "none":
                sizes = GradientLayout.of(self._job.workload, "float").sizes
            return assign_buckets(sizes, self._fusion.limits, kinds)
        return list(fill_buffers(sizes, 0, len(sizes), self._fusion.buffer, kinds))

    def _check_memory(self) -> None:
        """Raise Unsupported on all ranks if a rank lacks memory for gradients and plans."""
        job, layout = self._job, self._layout
        extra = sum(
            exchange.extra_bytes(layout, span)
            for exchange, span in product(self._exchanges, self._spans)
        )
        need = Need(layout.nbytes + extra, mapped=job.transport.shares_memory)
        lack = Room(job.world, job.transport).lack(need)
        if lack is not None:
            raise Unsupported(
                f"{lack.ranks} ranks need {format_bytes(lack.need)} {lack.name}, which has"
                f" {format_bytes(lack.free)} to give; --scale {max(2, -(-lack.need // lack.free))}"
                " may fit"
            )

    def measure(self) -> tuple[Record, Lines]:
        """Measure all steps, see `run`. The result is the same on every rank."""
        job, options = self._job, self._job.options
        rules = Timing(
            options.warmup,
            options.iterations,
            options.budget,
            per_rank=True,
            # Steps that train or have draws of their own are not left out, however short.
            keep_all=self._training.real or not job.compute.constant,
        )
        if self._training.real:  # training goes on even if the step's time is precise enough
            rules = replace(rules, precise=0.0)
        step = TrainingStep(job, self._gradients, self._spans, self._exchanges, self._training)
        before, plans_before = (step.sent, step.received), self._first.plans_made
        noise = NoiseCounters(job.world)
        try:
            timed = self._timed(step, rules)
            noise.stop()
        finally:
            step.close()
        moved = np.array([step.sent, step.received]) - before
        plans_made_late = self._first.plans_made - plans_before
        n, runs = len(timed.times_s), timed.runs or 1
        facts, lines = self._training.report(timed.times_s)
        coding_facts, coding_lines = self._training.compression(
            runs, int(moved[0]), self._first.times, self._exchange_afresh
        )
        facts, lines = facts | coding_facts, lines + coding_lines
        alone = self._timed(FunctionAction(self._compute), Timing(0, n, per_rank=True))
        # Exchanges that take longer than computing does are as many as the budget has room for.
        exposed = max(0.0, median(timed.times_s) - median(alone.times_s)) if n else 0.0
        times = min(n, _ALONE, max(1, int(options.budget / exposed) if exposed else n))
        exchange = self._timed(FunctionAction(self._exchange_all), Timing(1, times))
        others, waits = noise.gather()
        if disturbed := disturbances(waits, others):
            lines = [*lines, f"# {job.algorithm}: {disturbed}"]
        wrong = self._count_wrong() if self._training.source is None else 0
        by_rank = job.world.gather([*(moved / runs).tolist(), step.messages / runs, wrong])
        sent, received, messages, wrongs = zip(*by_rank, strict=True)
        counted = all(one.has_schedules(self._layout, self._spans) for one in self._exchanges)
        predicted, model = expected(job, self._layout, self._spans, self._exchanges, n)
        if predicted is not None and self._training.compressed:
            coding = facts["encode_s"] + facts["decode_s"]
            lines = [*lines, f"    predicted without coding, {format_seconds(coding)} of a step"]
        # Stragglers are left out: one rank alone would be faster.
        fastest = job.compute.fastest(range(job.world.size))
        one_rank = mean_of([median_of(alone.per_rank_s[rank]) for rank in fastest])
        carriers = sum((exchange.carriers for exchange in self._exchanges), Counter[str]())
        return step_record(
            job,
            structs.replace(
                timed,
                runs=None,
                noise=others,
                core_wait=waits,
                wrong=sum(wrongs) if self._training.source is None else None,
                sent_bytes=round(max(sent)) if counted else None,
                received_bytes=round(max(received)) if counted else None,
                total_bytes=round(sum(sent)) if counted else None,
                per_rank_s=timed.per_rank_s if options.per_rank else (),
            ),
            "synchronous",
            gradients=job.world.size,
            transport="+".join(sorted(carriers, key=lambda name: name != job.transport.name)),
            compute_s=alone.times_s,
            messages=round(sum(messages)) if counted else None,
            predicted_s=predicted,
            predicted_by=model,
            port_s=port_seconds(job, self._layout, self._spans, self._exchanges),
            port_rate=job.port_rate,
            fusion=self._fusion.label,
            overlap=job.options.overlap,
            buckets=round(step.buckets / runs, 2),
            plans_made_late=plans_made_late,
            one_rank_s=one_rank.value,
            one_rank_interval_s=one_rank.ends and list(one_rank.ends),
            exchange_s=exchange.times_s,
            transports=dict(carriers) if len(carriers) > 1 else None,
            **facts,
        ), lines

    def _exchange_afresh(self) -> Array:
        """Exchange the gradients once more without error feedback; returns their mean."""
        self._first.forget()
        self._exchange_all()
        return self._gradients.view((0, len(self._layout.kinds)))

    def _timed(self, action: Action, rules: Timing) -> Record:
        job = self._job
        return measure(action, job.world, rules, arrived=job.watch.arrived)

    def _exchange_all(self) -> None:
        """Exchange all buckets back to back."""
        for exchange, span in product(self._exchanges, self._spans):
            exchange.plan(self._gradients, span)()

    def _count_wrong(self) -> int:
        """Exchange once more, untimed; returns how many results are not the ranks' average.

        First each rank sets its gradients to its own value, since a step leaves equal values.
        """
        world = self._job.world
        self._gradients.fill(world.rank + 1)
        world.barrier()
        self._exchange_all()
        world.barrier()
        return self._gradients.wrong((world.size + 1) / 2, world.size)

    def _compute(self) -> None:
        """Compute the next step, without exchanging gradients."""
        job, number = self._job, next(self._steps)
        end = time.perf_counter() + job.compute.seconds(job.world.rank, number)
        self._training.compute(number)
        spend_until(end, job.options.burn)

    def close(self) -> None:
        """Free all plans."""
        for exchange in self._exchanges:
            exchange.close()
