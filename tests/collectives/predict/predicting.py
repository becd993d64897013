"""Predictions of schedules on machines, by the predictor that suits the machine."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from collectives.predict.interface import Operation
from collectives.predict.machine import Machine, Network
from collectives.predict.predictor import choose_predictor
from collectives.predict.simulation import Simulation, SimulationResult
from collectives.schedule.schedule import Schedule
from collectives.schedule.spec import Collective


def seconds(
    schedule: Schedule, collective: str, machine: Machine, sizes: Sequence[int], **options: int
) -> NDArray[np.float64]:
    """Seconds at each size; ``options``: further fields of `Operation`."""
    operation = Operation.of(schedule, collective, **options)  # type: ignore[arg-type]
    return choose_predictor(machine).seconds(operation, sizes)


def simulate(
    schedule: Schedule, spec: Collective, network: Network, nbytes: float
) -> SimulationResult:
    """Simulate one size of a schedule on a network, rank i in place i."""
    return Simulation(schedule, spec, network).run(nbytes)
