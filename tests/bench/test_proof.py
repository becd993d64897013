"""Every timed iteration compared: in batches that the transport times itself, and in windows."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from bench.run.data import Checked, Inputs, ResultCheck
from bench.timing.measure import Timing, measure
from bench.timing.starts import BarrierStart
from collectives.execution.inproc.world import InprocWorld, run
from collectives.execution.transport import Counted, Spans, Start
from collectives.schedule.catalogue import spec
from collectives.schedule.layout import Layout
from reports.records.measurement import OPERATION


class _Native(Counted):
    """An action that the transport times itself, as the extension does: n iterations a call."""

    def __init__(self, once: Callable[[], None], *, absolute: bool) -> None:
        super().__init__(0, 0)
        self._once, self._absolute, self.batches = once, absolute, list[int]()

    def __call__(self) -> None:
        self._once()

    def spans(self, n: int, start: Start) -> Spans:
        self.batches.append(n)
        for _ in range(n):
            self._once()
        return Spans(np.zeros(n), np.full(n, 1e-6), absolute=self._absolute)

    def close(self) -> None:
        """Nothing is held."""


@pytest.mark.parametrize("absolute", [False, True])
@pytest.mark.parametrize("spoiled", [None, 0, 3, 7, 11])
def test_each_of_a_batch_is_compared(spoiled: int | None, absolute: bool) -> None:
    """Rule: where one native call runs many iterations, each is a call of its own, and compared."""
    collective, n = spec("broadcast"), 50

    def body(world: InprocWorld) -> tuple[int, int, list[int]]:
        inputs = Inputs(Layout(collective, 1, 1), np.dtype("f4"), None, n)
        source, target = np.empty(n, np.float32), np.empty(n, np.float32)
        runs, told = list[int](), list[int]()

        def once() -> None:
            target[:] = source
            if len(runs) == spoiled:
                target[4] += 1
            runs.append(0)

        result = ResultCheck(inputs, 0, source, target, digests=True)
        result.fresh()
        native = _Native(once, absolute=absolute)
        action = Checked(native, result, world.barrier, told.append, reached=False)
        how = BarrierStart(world, clock=lambda: 0.0, one_clock=True)
        timed = measure(action, world, Timing(warmup=2, iterations=10), how)
        assert len(timed.times_s) == 10 and (OPERATION in timed.also) == absolute
        assert result.wrong is not None and told == list(range(1, 13))
        return result.wrong.count, result.iterations, native.batches

    ((wrong, iterations, batches),) = run(1, body)
    assert (wrong, iterations) == (spoiled is not None, 12) and set(batches) == {1}
