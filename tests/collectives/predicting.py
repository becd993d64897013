"""Predictions of schedules on machines, by the predictor that suits the machine."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from collectives.predict.interface import Operation
from collectives.predict.machine import Machine
from collectives.predict.predictor import choose_predictor
from collectives.schedule.schedule import Schedule


def seconds(
    schedule: Schedule, collective: str, machine: Machine, sizes: Sequence[int], **options: int
) -> NDArray[np.float64]:
    """Seconds at each size; ``options``: further fields of `Operation`."""
    operation = Operation.of(schedule, collective, **options)  # type: ignore[arg-type]
    return choose_predictor(machine).seconds(operation, sizes)
