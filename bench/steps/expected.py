"""The expected time of a synchronous step, by the cost model with a fit of this machine."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

import numpy as np

from bench.steps import pipeline
from bench.steps.exchange import Exchange
from bench.steps.fusion import TensorRange
from bench.steps.gradients import GradientLayout
from bench.steps.job import StepJob
from collectives.model.given import given
from collectives.model.predict import seconds
from collectives.schedule.catalogue import spec


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
    priced, _ = given(options.topology or None, options.fit, job.world.size)
    known: dict[tuple[int, int], float] = {}

    def one(number: int, span: TensorRange) -> float:
        """Seconds of a range's exchange: the same for all ranges of as many bytes."""
        nbytes = layout.starts[span[1]] - layout.starts[span[0]]
        if (number, nbytes) not in known:
            exchange = exchanges[number]
            known[number, nbytes] = sum(
                float(
                    seconds(
                        schedule,
                        spec(leg.collective),
                        priced,
                        [leg.nbytes],
                        itemsize=leg.itemsize,
                        in_place=not exchange.coded,
                    )[0]
                )
                for schedule, leg in exchange.legs(layout, span)
            )
        return known[number, nbytes]

    shares, found = job.workload.shares(), []
    after = sum(one(n, span) for n in range(1, len(exchanges)) for span in spans)
    for step in range(steps):
        every = (job.compute.ready(rank, step, shares) for rank in range(job.world.size))
        ready = np.max(list(every), axis=0)
        if not options.overlap:
            ready = np.full(len(ready), ready[-1])
        if options.fusion.cycle is None or not options.overlap:
            end = pipeline.in_turn(ready, spans, lambda span: one(0, span))
        else:
            end = pipeline.cycles(
                ready,
                layout.sizes,
                options.fusion.buffer,
                options.fusion.cycle,
                lambda span: one(0, span),
                layout.kinds,
            )
        found.append(end + after)
    return median(found), "fit" if options.fit is not None else "topology"
