"""The expected time of a synchronous step, predicted from measured costs of this machine.

Buckets are exchanged one after the other. Each exchange begins when the bucket's last gradient is
ready on all ranks. Without overlap all gradients are ready when the backward pass ends.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from statistics import median

import numpy as np
from numpy.typing import NDArray

from bench.steps.buckets import GradientLayout, TensorRange, fill_buffers
from bench.steps.compressed import CollectiveCall
from bench.steps.exchange import Exchange
from bench.steps.job import StepJob
from collectives.predict.interface import CollectivePredictor, Operation
from collectives.predict.maps import load_machine
from collectives.predict.predictor import choose_predictor
from collectives.schedule.schedule import Schedule

Seconds = Callable[[TensorRange], float]
"""Gives the seconds that the exchange of a range of tensors takes."""


def expected(
    job: StepJob,
    layout: GradientLayout,
    spans: Sequence[TensorRange],
    exchanges: Sequence[Exchange],
    steps: int,
) -> tuple[float | None, str]:
    """The predicted median seconds of so many steps, and the source of costs; None without costs.

    Each step has the compute times of the measured step. A library's collective has no schedule, so
    that its time cannot be predicted. Encoding and decoding of compressed gradients is left out.
    """
    options = job.options
    if options.fit is None and not options.topology:
        return None, ""
    if not all(exchange.has_schedules(layout, spans) for exchange in exchanges):
        return None, ""
    machine = load_machine(options.topology or None, options.fit, job.world.size)
    predictor = choose_predictor(machine)
    cache: dict[tuple[int, int], float] = {}

    def seconds(number: int, span: TensorRange) -> float:
        """Seconds of a range's exchange, which are the same for all ranges of as many bytes."""
        nbytes = layout.nbytes_of(span)
        if (number, nbytes) not in cache:
            exchange = exchanges[number]
            cache[number, nbytes] = sum(
                _call_seconds(predictor, schedule, call, in_place=not exchange.coded)
                for schedule, call in exchange.calls(layout, span)
            )
        return cache[number, nbytes]

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
    return median(ends), "fit" if options.fit is not None else "topology"


def _call_seconds(
    predictor: CollectivePredictor, schedule: Schedule, call: CollectiveCall, *, in_place: bool
) -> float:
    """Seconds of one collective of an exchange."""
    operation = Operation.of(schedule, call.collective, itemsize=call.itemsize, in_place=in_place)
    return float(predictor.seconds(operation, [call.nbytes])[0])


def time_buckets(
    ready: NDArray[np.float64], spans: Sequence[TensorRange], seconds: Seconds
) -> float:
    """Seconds from a step's start until all fixed buckets are exchanged.

    ``ready``: seconds until each tensor's gradient is ready on all ranks.
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
    """The same if every ``cycle`` seconds the gradients that are ready are exchanged in buffers.

    An exchange that takes longer than ``cycle`` is followed by the next at once.
    """
    done, now = 0, 0.0
    while done < len(sizes):
        now = max(now, cycle)
        begun, count = now, int(np.searchsorted(ready, now, side="right"))
        for span in fill_buffers(sizes, done, count, buffer, kinds):
            now += seconds(span)
        if count <= done:
            # The cycle at which the next gradient is ready.
            now = max(now, cycle * np.ceil(float(ready[done]) / cycle))
            continue
        done, now = count, max(now, begun + cycle) if count < len(sizes) else now
    return now
