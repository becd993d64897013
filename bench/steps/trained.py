"""A rank's gradients in synchronous steps: their source, and the use of their mean.

With ``--problem`` gradients are real, and every rank computes every update itself. Without it they
are random numbers if they are compressed, so that the error can be measured, and else ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import sha256
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.steps.compressed import Spent
from bench.steps.job import StepJob
from bench.steps.training.rates import Arrived
from bench.steps.training.shared import WeightHistory, apart, losses
from bench.steps.training.telling import (
    MOST_CHECKED,
    Facts,
    Lines,
    compression,
    curve_facts,
    curve_lines,
    relative_error,
)

Vector = NDArray[Any]


class RankTraining:
    """One rank's. ``source``: this step's gradient, float32; None where all are ones."""

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
        """Start from the first weights: warm-ups train nothing."""
        if self._shared is not None:
            self._weights = self._shared.problem.start()
            self._rule, self._updates = self._shared.rule(), 0
            self._history = WeightHistory(self._weights)

    @property
    def real(self) -> bool:
        """Whether something is trained."""
        return self._shared is not None

    def compute(self, number: int) -> None:
        """This rank's gradient of a step; those before step 0 are warm-ups."""
        if self._shared is None:
            return
        if number <= 0:
            self._begin()
        found = self._shared.gradient(self._weights, self._world.rank, max(0, number))
        np.copyto(self._source, found)

    @property
    def _source(self) -> Vector:
        assert self.source is not None
        return self.source

    def take(self, buffer: Vector) -> None:
        """Update this rank's weights from the mean of all ranks' gradients."""
        if self._shared is None:
            return
        mean = buffer.astype(np.float32)
        with np.errstate(all="ignore"):  # what diverges is seen in the loss
            self._rule(self._weights, [Arrived(mean, 0, self._weights)])
        self._updates += 1
        self._history.add(self._updates, self._weights)

    def told(self, times: Sequence[float]) -> tuple[Facts, Lines]:
        """The record's entry and the printed lines of a training. All ranks call this together."""
        if self._shared is None:
            return {}, []
        facts, lines = self._world.broadcast(self._trained(times))
        return facts, lines

    def compression(
        self, runs: int, sent: int, spent: Spent, once_more: Callable[[], Vector]
    ) -> tuple[Facts, Lines]:
        """Costs and savings of compression over so many steps. All ranks call this together.

        ``sent``: bytes of this rank. ``once_more`` exchanges this step's gradients again, without
        error feedback from other steps, and gives their mean: its error is measured.
        """
        if not self.compressed:
            return {}, []
        mine = np.array([sent, spent.encode, spent.decode]) / runs
        each, *coding = self._world.combine(mine, "avg").tolist()
        n, off = max(1, len(self._source)), self._error(once_more)
        facts, lines = compression(self.codec, n, "sum", off, *coding)
        return {**facts, "sent_bytes_per_rank": each}, lines

    def _trained(self, times: Sequence[float]) -> tuple[Facts, Lines]:
        """Rank 0's account of the training; the others' weights are compared."""
        assert self._shared is not None
        same = len(set(self._world.gather(sha256(self._weights.tobytes()).hexdigest()))) == 1
        if self._world.rank:
            return {}, []
        moments = [0.0, *accumulate(times)]
        points = losses(self._shared.problem, self._history.kept, lambda n: moments[n])
        found = apart(self._shared, self._history.kept)
        facts = {**curve_facts(points), "apart": found._asdict(), "ranks_agree": same}
        told = ": the same bits on all ranks" if same else ": not the same bits on all ranks"
        lines = [*curve_lines(points), *found.lines(told)]
        return facts, lines

    def _error(self, once_more: Callable[[], Vector]) -> float:
        """The relative error of a mean."""
        few = slice(0, MOST_CHECKED)
        exact = self._world.combine(self._source[few].astype(np.float64), "avg")
        self._world.barrier()
        off = relative_error(once_more()[few].astype(np.float64), exact)
        return float(self._world.combine(np.array([off]), "max")[0])
