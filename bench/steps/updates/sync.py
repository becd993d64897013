"""Synchronous updates: gradients are averaged over all ranks, and all ranks use the average.

A step is a forward pass and a backward pass, which computes gradients from the last tensor to the
first. A second thread exchanges buckets of gradients during the backward pass, or they are
exchanged after it (``--overlap off``).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import count, product
from typing import Any

import numpy as np
from msgspec import structs

from bench.options.options import parse_choice
from bench.run.memory import Need, Room
from bench.run.tuning_file import load
from bench.steps import buckets
from bench.steps.buckets import GradientLayout, Gradients, TensorRange
from bench.steps.compute import spend_until
from bench.steps.exchange import REDUCE_BROADCAST, Exchange, stages
from bench.steps.expected import expected
from bench.steps.job import UPDATES, StepJob
from bench.steps.options import StepOptions, UpdateChoice
from bench.steps.record import step_record
from bench.steps.step_action import TrainingStep
from bench.steps.sync_training import RankTraining
from bench.steps.training.codecs import suits
from bench.steps.training.report import Facts, Lines
from bench.timing.measure import Timing, measure
from busbar.arguments import unknown
from busbar.errors import Unsupported
from busbar.units import format_bytes, format_seconds
from collectives.execution.transport import Action, Array
from collectives.formats.load import build, is_file
from collectives.schedule import catalogue
from reports.records.measurement import Record
from reports.statistics.uncertain import mean_of, median_of

# Algorithms whose schedules cannot be built before the ranks have started.
_LATER = ("library", "auto")
# Steps in which all buckets are exchanged with nothing to compute.
_ALONE = 10


def check(choice: UpdateChoice, nranks: int, options: StepOptions) -> None:
    """Raise Unsupported if the update cannot run on so many ranks."""
    if options.learners:
        raise Unsupported(f"{choice.label} has no server that --learners could call")
    known = catalogue.algorithms("allreduce")
    plain = choice.name in (*known, *_LATER, REDUCE_BROADCAST)
    if not plain and "+" not in choice.name and not is_file(choice.name):
        raise unknown("update", choice.name, (*UPDATES, *_LATER, *known))
    suits(options.training.codec, choice.name)
    if choice.name == "auto":
        load(options.tuning)  # refuses a file that cannot be read before ranks start
    for collective, label in stages(choice):
        if label not in _LATER:
            parsed = parse_choice(label)
            parameters: dict[str, Any] = dict(parsed.parameters)
            build(collective, parsed.name, nranks, **parameters)


def run(job: StepJob) -> tuple[Record, Lines]:
    """Measure the steps of one update, their compute alone, and their exchange alone.

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
    """One update on one rank: its memory, its exchanges, its measurements."""

    def __init__(self, job: StepJob) -> None:
        self._job = job
        self._layout = GradientLayout.of(job.workload, job.options.dtype)
        self._fusion = job.options.fusion
        self._training = RankTraining(job)
        self._exchanges = [Exchange(job, *stage, self._training) for stage in stages(job.choice)]
        self._first = self._exchanges[0]
        self._spans = self._buckets()
        self._check_memory()
        self._gradients = Gradients(self._layout, job.transport)
        self._gradients.fill(job.world.rank + 1)
        self._steps = count()
        for exchange, span in product(self._exchanges, self._spans):
            exchange.plan(self._gradients, span)

    def _buckets(self) -> list[TensorRange]:
        """The buckets; with a cycle, the buffers if all gradients are ready at once."""
        sizes, kinds = self._layout.sizes, self._layout.kinds
        if self._fusion.cycle is None:
            return buckets.assign_buckets(sizes, self._fusion.limits, kinds)
        return list(buckets.fill_buffers(sizes, 0, len(sizes), self._fusion.buffer, kinds))

    def _check_memory(self) -> None:
        """Raise Unsupported on all ranks if one lacks memory for gradients and plans."""
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
        """See `run`; the same on every rank."""
        job, options = self._job, self._job.options
        rules = Timing(options.warmup, options.iterations, options.budget, per_rank=True)
        if self._training.real:  # it is trained on when the time of a step is known precisely
            rules = replace(rules, precise=0.0)
        step = TrainingStep(
            job, self._fusion, self._layout, self._gradients, self._exchanges, self._training
        )
        before, plans_before = self._bytes_moved(), self._first.plans_made
        try:
            timed = self._timed(step, rules)
        finally:
            step.close()
        moved = np.array(self._bytes_moved()) - before
        plans_made_late = self._first.plans_made - plans_before
        n, runs = len(timed.times_s), timed.runs or 1
        facts, lines = self._report(timed, int(moved[0]))
        alone = self._timed(_Alone(self._compute), Timing(0, n, per_rank=True))
        exchange = self._timed(_Alone(self._exchange_all), Timing(1, min(n, _ALONE)))
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

    def _report(self, timed: Record, sent: int) -> tuple[Facts, Lines]:
        """Facts and lines of the training and of compression."""
        facts, lines = self._training.report(timed.times_s)
        coding_facts, coding_lines = self._training.compression(
            timed.runs or 1, sent, self._first.times, self._exchange_afresh
        )
        return facts | coding_facts, lines + coding_lines

    def _exchange_afresh(self) -> Array:
        """Exchange the gradients once more without error feedback; returns their mean."""
        self._first.forget()
        self._exchange_all()
        return self._gradients.view((0, len(self._layout.kinds)))

    def _timed(self, action: Action, rules: Timing) -> Record:
        job = self._job
        return measure(action, job.world, rules, arrived=job.watch.arrived)

    def _bytes_moved(self) -> tuple[int, int]:
        """Bytes that this rank has sent and received."""
        exchanges = self._exchanges
        return sum(one.sent for one in exchanges), sum(one.received for one in exchanges)

    def _exchange_all(self) -> None:
        """Exchange all buckets back to back."""
        for exchange, span in product(self._exchanges, self._spans):
            exchange.plan(self._gradients, span)()

    def _count_wrong(self) -> int:
        """Exchange once more, untimed; returns how many gradients are not the average then.

        The ranks' gradients are set to different values first, since a step leaves equal ones.
        """
        world = self._job.world
        self._gradients.fill(world.rank + 1)
        world.barrier()
        self._exchange_all()
        world.barrier()
        return self._gradients.wrong((world.size + 1) / 2, world.size)

    def _compute(self) -> None:
        """Compute the next step without an exchange."""
        job, number = self._job, next(self._steps)
        end = time.perf_counter() + job.compute.seconds(job.world.rank, number)
        self._training.compute(number)
        spend_until(end, job.options.burn)

    def close(self) -> None:
        """Free all plans."""
        for exchange in self._exchanges:
            exchange.close()


class _Alone(Action):
    """The computing or the exchanging part of a step, to be timed by itself."""

    sent = received = 0

    def __init__(self, part: Callable[[], None]) -> None:
        self._part = part

    def __call__(self) -> None:
        self._part()

    def close(self) -> None:
        """See `Action.close`."""
