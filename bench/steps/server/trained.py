"""What the options ask to be trained: here, arrays of the model's size."""

from __future__ import annotations

from bench.steps.options import StepOptions
from bench.steps.server.hooks import PlainTraining, Training
from collectives.schedule.dtypes import dtype

__all__ = ["training"]


def training(options: StepOptions, learners: int) -> Training:
    """The same on every rank, and in every process that joins. Raises Unsupported."""
    return PlainTraining(options.workload.elements, dtype(options.dtype))
