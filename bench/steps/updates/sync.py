"""Synchronous updates: gradients are averaged over all ranks, and all use the average.

A step is a forward pass and a backward pass, in which gradients become ready from the last tensor
to the first. Buckets of them are exchanged by a separate thread during the backward pass, or after
it (``--overlap off``).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from typing import Any

import numpy as np

from bench.options.options import parse_choice
from bench.run.memory import Need, Room
from bench.run.tuning_file import load
from bench.steps import fusion
from bench.steps.compute import spend_until
from bench.steps.exchange import REDUCE_BROADCAST, Exchange, stages
from bench.steps.expected import expected
from bench.steps.fusion import TensorRange
from bench.steps.gradients import GradientLayout, Gradients
from bench.steps.job import StepJob, StepOutcome
from bench.steps.options import StepOptions, UpdateChoice
from bench.steps.stepping import TrainingStep
from bench.steps.table import UPDATES
from bench.steps.trained import RankTraining
from bench.steps.training.codecs import suits
from bench.steps.training.telling import Facts, Lines
from bench.timing.measure import Timed, Timing, measure
from busbar.arguments import unknown
from busbar.errors import Unsupported
from busbar.units import format_bytes, format_seconds
from collectives.execution.transport import Action, Array
from collectives.formats.load import build, from_file
from collectives.schedule import catalogue
from reports.records.measurement import Record
from reports.statistics.uncertain import mean_of, median_of

# Names whose schedules cannot be built before the ranks are there.
_LATER = ("library", "auto")
# All buckets are exchanged so often with nothing to compute.
_ALONE = 10


def check(choice: UpdateChoice, nranks: int, options: StepOptions) -> None:
    """Raise Unsupported for an update that cannot be on so many ranks."""
    if options.learners:
        raise Unsupported(f"{choice.label} has no server that --learners could call")
    known = catalogue.algorithms("allreduce")
    plain = choice.name in (*known, *_LATER, REDUCE_BROADCAST)
    if not plain and "+" not in choice.name and not from_file(choice.name):
        raise unknown("update", choice.name, (*UPDATES, *_LATER, *known))
    suits(options.training.codec, choice.name)
    if choice.name == "auto":
        load(options.tuning)  # what cannot be read is said now
    for collective, label in stages(choice):
        if label not in _LATER:
            parsed = parse_choice(label)
            given: dict[str, Any] = dict(parsed.parameters)
            build(collective, parsed.name, nranks, **given)


def run(job: StepJob) -> StepOutcome:
    """Measure the steps of one update, their compute alone, and their exchange alone.

    All ranks call this together.
    """
    try:
        mine = _Update(job)
    except Unsupported as error:  # the same on every rank
        skipped = Record(skipped=str(error))
        return StepOutcome(skipped, "synchronous", facts={"fusion": job.options.fusion.label})
    try:
        return mine.outcome()
    finally:
        mine.close()


class _Update:
    """One update on one rank: its memory, its exchanges, its measurements."""

    def __init__(self, job: StepJob) -> None:
        self._job = job
        self._layout = GradientLayout.of(job.workload, job.options.dtype)
        self._fusion = job.options.fusion
        self._training = RankTraining(job)
        self._exchanges = [Exchange(job, *one, self._training) for one in stages(job.choice)]
        self._first = self._exchanges[0]
        self._spans = self._fixed()
        self._check_memory()
        self._gradients = Gradients(self._layout, job.transport)
        self._gradients.fill(job.world.rank + 1)
        self._computed = count()
        for one in self._exchanges:
            for span in self._spans:
                one.plan(self._gradients, span)

    def _fixed(self) -> list[TensorRange]:
        """The buckets; with a cycle, the buffers of gradients that are all ready at once."""
        sizes, kinds = self._layout.sizes, self._layout.kinds
        if self._fusion.cycle is None:
            return fusion.buckets(sizes, self._fusion.limits, kinds)
        return list(fusion.filled(sizes, 0, len(sizes), self._fusion.buffer, kinds))

    def _check_memory(self) -> None:
        """Raise Unsupported on all ranks where one lacks memory for gradients and staging."""
        job, layout = self._job, self._layout
        staging = sum(one.need(layout, span) for one in self._exchanges for span in self._spans)
        need = Need(layout.nbytes + staging, mapped=job.transport.shares_memory)
        lack = Room(job.world, job.transport).lack(need)
        if lack is not None:
            raise Unsupported(
                f"{lack.ranks} ranks need {format_bytes(lack.need)} {lack.name}, which has"
                f" {format_bytes(lack.free)} to give; --scale {max(2, -(-lack.need // lack.free))}"
                " may fit"
            )

    def outcome(self) -> StepOutcome:
        """Measure, and say what was found; the same on every rank."""
        job, options = self._job, self._job.options
        rules = Timing(options.warmup, options.iterations, options.budget, per_rank=True)
        if self._training.real:  # it goes on however well the time of a step is known
            rules = replace(rules, precise=0.0)
        step = TrainingStep(
            job, self._fusion, self._layout, self._gradients, self._exchanges, self._training
        )
        before = self._moved()
        made = self._first.made
        try:
            timed = self._timed(step, rules)
        finally:
            step.close()
        moved = np.array(self._moved()) - before
        made = self._first.made - made
        n = len(timed.times)
        facts, lines = self._told(timed, int(moved[0]))
        alone = self._timed(_Alone(self._compute), Timing(0, n, per_rank=True))
        exchange = self._timed(_Alone(self._exchange_all), Timing(1, min(n, _ALONE)))
        wrong = self._proven() if self._training.source is None else 0
        everyone = job.world.gather(
            [*(moved / timed.runs).tolist(), step.messages / timed.runs, wrong]
        )
        sent, received, messages, wrongs = zip(*everyone, strict=True)
        ours = all(one.ours(self._layout, self._spans) for one in self._exchanges)
        predicted, model = expected(job, self._layout, self._spans, self._exchanges, n)
        if predicted is not None and self._training.compressed:
            coding = facts["encode_s"] + facts["decode_s"]
            lines = [*lines, f"    predicted without coding, {format_seconds(coding)} of a step"]
        # A straggler is no base: one rank alone would be faster than it.
        base = job.compute.fastest(range(job.world.size))
        own = mean_of([median_of(alone.per_rank[rank]) for rank in base])
        carriers = sum((one.carriers for one in self._exchanges), Counter[str]())
        return StepOutcome(
            Record(
                times_s=timed.times,
                iterations=timed.iterations,
                timing="each",
                across="max",
                stopped=timed.stopped,
                wrong=sum(wrongs) if self._training.source is None else None,
                sent_bytes=round(max(sent)) if ours else None,
                received_bytes=round(max(received)) if ours else None,
                total_bytes=round(sum(sent)) if ours else None,
                per_rank_s=timed.per_rank if options.per_rank else (),
            ),
            "synchronous",
            compute=alone.times,
            messages=round(sum(messages)) if ours else None,
            predicted=predicted,
            model=model,
            gradients=job.world.size,
            facts={
                "fusion": self._fusion.label,
                "overlap": job.options.overlap,
                "buckets": round(step.buckets / timed.runs, 2),
                "plans_made_late": made,
                "one_rank_s": own.value,
                "one_rank_interval_s": own.ends and list(own.ends),
                "exchange_s": list(exchange.times),
                **facts,
                **({"transports": dict(carriers)} if len(carriers) > 1 else {}),
            },
            lines=lines,
            transport="+".join(sorted(carriers, key=lambda name: name != job.transport.name)),
        )

    def _told(self, timed: Timed, sent: int) -> tuple[Facts, Lines]:
        """The outcome of the training and of compression."""
        facts, lines = self._training.told(timed.times)
        more, line = self._training.compression(
            timed.runs, sent, self._first.spent, self._exchanged_afresh
        )
        return facts | more, lines + line

    def _exchanged_afresh(self) -> Array:
        """The mean of the gradients as they are, exchanged once more without error feedback."""
        self._first.forget()
        self._exchange_all()
        return self._gradients.view((0, len(self._layout.kinds)))

    def _timed(self, action: Action, rules: Timing) -> Timed:
        job = self._job
        return measure(action, job.world, rules, arrived=job.watch.arrived)

    def _moved(self) -> tuple[int, int]:
        every = self._exchanges
        return sum(one.sent for one in every), sum(one.received for one in every)

    def _exchange_all(self) -> None:
        """All buckets back to back."""
        for one in self._exchanges:
            for span in self._spans:
                one.plan(self._gradients, span)()

    def _proven(self) -> int:
        """Exchange once more, outside the clock; gives how many gradients are no average then.

        Ranks begin anew with gradients of their own: those of the last step are equal already.
        """
        world = self._job.world
        self._gradients.fill(world.rank + 1)
        world.barrier()
        self._exchange_all()
        world.barrier()
        return self._gradients.wrong((world.size + 1) / 2, world.size)

    def _compute(self) -> None:
        """The next step with nothing to exchange."""
        job, number = self._job, next(self._computed)
        end = time.perf_counter() + job.compute.seconds(job.world.rank, number)
        self._training.compute(number)
        spend_until(end, job.options.burn)

    def close(self) -> None:
        """Free all plans."""
        for one in self._exchanges:
            one.close()


class _Alone(Action):
    """A part of steps, timed without the other."""

    sent = received = 0

    def __init__(self, part: Callable[[], None]) -> None:
        self._part = part

    def __call__(self) -> None:
        self._part()

    def close(self) -> None:
        """See `Action.close`."""
