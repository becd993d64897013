"""The expected time of a synchronous step, by the cost model with a fit of this machine.

Exchanges follow one another in the order of readiness. Each begins when its last gradient is ready
on all ranks. Without overlap all gradients are ready when the backward pass ends.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from statistics import median

import numpy as np
from numpy.typing import NDArray

from bench.steps.compressed import Leg
from bench.steps.exchange import Exchange
from bench.steps.fusion import TensorRange, filled
from bench.steps.gradients import GradientLayout
from bench.steps.job import StepJob
from collectives.predict.interface import CollectivePredictor, Operation
from collectives.predict.maps import load_machine
from collectives.predict.predictor import choose_predictor
from collectives.schedule.schedule import Schedule

Seconds = Callable[[TensorRange], float]
"""The seconds of a range's exchange."""


def expected(
    job: StepJob,
    layout: GradientLayout,
    spans: Sequence[TensorRange],
    exchanges: Sequence[Exchange],
    steps: int,
) -> tuple[float | None, str]:
    """The median predicted seconds of so many steps, and by what; None without ``--fit``.

    Each step has the compute times that it was run with. A library's collective has no schedule,
    so nothing is predicted of it. Of compressed gradients it is the messages' time alone, without
    that of encoding and decoding.
    """
    options = job.options
    if options.fit is None and not options.topology:
        return None, ""
    if not all(one.ours(layout, spans) for one in exchanges):
        return None, ""
    machine = load_machine(options.topology or None, options.fit, job.world.size)
    predictor = choose_predictor(machine)
    known: dict[tuple[int, int], float] = {}

    def one(number: int, span: TensorRange) -> float:
        """Seconds of a range's exchange: the same for all ranges of as many bytes."""
        nbytes = layout.starts[span[1]] - layout.starts[span[0]]
        if (number, nbytes) not in known:
            exchange = exchanges[number]
            known[number, nbytes] = sum(
                _call_seconds(predictor, schedule, leg, in_place=not exchange.coded)
                for schedule, leg in exchange.legs(layout, span)
            )
        return known[number, nbytes]

    shares, ends = job.workload.shares(), []
    after = sum(one(n, span) for n in range(1, len(exchanges)) for span in spans)
    for step in range(steps):
        every = (job.compute.ready(rank, step, shares) for rank in range(job.world.size))
        ready = np.max(list(every), axis=0)
        if not options.overlap:
            ready = np.full(len(ready), ready[-1])
        if options.fusion.cycle is None or not options.overlap:
            end = time_buckets(ready, spans, partial(one, 0))
        else:
            buffer, cycle = options.fusion.buffer, options.fusion.cycle
            end = time_cycles(ready, layout.sizes, buffer, cycle, partial(one, 0), layout.kinds)
        ends.append(end + after)
    return median(ends), "fit" if options.fit is not None else "topology"


def _call_seconds(
    predictor: CollectivePredictor, schedule: Schedule, leg: Leg, *, in_place: bool
) -> float:
    """Seconds of one collective of an exchange."""
    operation = Operation.of(schedule, leg.collective, itemsize=leg.itemsize, in_place=in_place)
    return float(predictor.seconds(operation, [leg.nbytes])[0])


def time_buckets(
    ready: NDArray[np.float64], spans: Sequence[TensorRange], seconds: Seconds
) -> float:
    """Seconds from the step's start until the last of fixed buckets is exchanged.

    ``ready``: when each tensor's gradient is there on the last rank.
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
    """The same where every ``cycle`` seconds the gradients that are ready fill buffers.

    A cycle that takes longer than ``cycle`` is followed by the next at once.
    """
    done, now = 0, 0.0
    while done < len(sizes):
        now = max(now, cycle)
        begun, count = now, int(np.searchsorted(ready, now, side="right"))
        for span in filled(sizes, done, count, buffer, kinds):
            now += seconds(span)
        if count <= done:
            # The cycle in which the next one is there.
            now = max(now, cycle * np.ceil(float(ready[done]) / cycle))
            continue
        done, now = count, max(now, begun + cycle) if count < len(sizes) else now
    return now
