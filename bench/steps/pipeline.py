"""The expected time of a step, from when gradients are ready and the time of each exchange. Pure.

Exchanges follow one another in the order of readiness. Each begins when its last gradient is ready
on all ranks. Without overlap all gradients are ready when the backward pass ends.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from bench.steps.fusion import TensorRange, filled

Seconds = Callable[[TensorRange], float]
"""The seconds of a range's exchange."""


def in_turn(ready: NDArray[np.float64], spans: Sequence[TensorRange], seconds: Seconds) -> float:
    """Seconds from the step's start until the last of fixed buckets is exchanged.

    ``ready``: when each tensor's gradient is there on the last rank.
    """
    free = 0.0
    for span in spans:
        free = max(free, float(ready[span[1] - 1])) + seconds(span)
    return max(free, float(ready[-1]))


def cycles(
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
