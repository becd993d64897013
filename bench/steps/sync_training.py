"""The gradients of a rank in synchronous steps, and what it does with their mean.

With ``--problem`` gradients are real, and every rank makes every update itself. Otherwise they are
random numbers if they are compressed, so that the error can be measured, and else ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import sha256
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.steps.compressed import ExchangeTimes
from bench.steps.job import StepJob
from bench.steps.training.report import (
    MOST_CHECKED,
    Facts,
    Lines,
    compression,
    relative_error,
    report_training,
)
from bench.steps.training.rules import ReceivedGradient
from bench.steps.training.samples import SharedProblem, WeightHistory

Vector = NDArray[Any]


class RankTraining:
    """One rank's training. ``source``: this step's gradient, float32; None if it is ones."""

    def __init__(self, job: StepJob) -> None:
        training, world = job.options.training, job.world
        self._world, self.codec, n = world, training.codec, job.workload.elements
        self.compressed = training.compress != "none"
        self._shared = training.shared(world.size, job.options.seed)
        self.source: Vector | None = None
        if self._shared is not None:
            self.source = np.zeros(n, np.float32)
        elif self.compressed:
            random = np.random.default_rng((job.options.seed, world.rank))
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
        """Whether a problem is trained."""
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
        with np.errstate(all="ignore"):  # divergence is seen in the loss
            self._rule(self._weights, [ReceivedGradient(mean, 0, self._weights)])
        self._updates += 1
        self._history.add(self._updates, self._weights)

    def report(self, times: Sequence[float]) -> tuple[Facts, Lines]:
        """The training's facts for the record, and its printed lines.

        All ranks call this together. ``times``: seconds of each step.
        """
        if self._shared is None:
            return {}, []
        facts, lines = self._world.broadcast(self._report(self._shared, times))
        return facts, lines

    def compression(
        self, runs: int, sent: int, times: ExchangeTimes, exchange: Callable[[], Vector]
    ) -> tuple[Facts, Lines]:
        """Costs and error of compression over so many steps. All ranks call this together.

        ``sent``: bytes of this rank. ``exchange``: exchanges this step's gradients once more,
        without error feedback from other steps, and returns their mean, whose error is measured.
        """
        if not self.compressed:
            return {}, []
        per_step = np.array([sent, times.encode, times.decode]) / runs
        sent_bytes, encode_s, decode_s = self._world.combine(per_step, "avg").tolist()
        n, error = max(1, len(self._source)), self._error(exchange)
        facts, lines = compression(self.codec, n, "sum", error, encode_s, decode_s)
        return {**facts, "sent_bytes_per_rank": sent_bytes}, lines

    def _report(self, shared: SharedProblem, times: Sequence[float]) -> tuple[Facts, Lines]:
        """Rank 0's report of the training; the other ranks' weights are compared with its."""
        same = len(set(self._world.gather(sha256(self._weights.tobytes()).hexdigest()))) == 1
        if self._world.rank:
            return {}, []
        moments = [0.0, *accumulate(times)]
        where = f": {'' if same else 'not '}the same bits on all ranks"
        facts, lines = report_training(
            shared, self._history.entries, lambda n: moments[n], compare=True, where=where
        )
        return {**facts, "ranks_agree": same}, lines

    def _error(self, exchange: Callable[[], Vector]) -> float:
        """The relative error of the mean that an exchange returns, the largest of all ranks."""
        few = slice(0, MOST_CHECKED)
        exact = self._world.combine(self._source[few].astype(np.float64), "avg")
        self._world.barrier()
        error = relative_error(exchange()[few].astype(np.float64), exact)
        return float(self._world.combine(np.array([error]), "max")[0])
