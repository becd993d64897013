"""The training that the options ask for: a problem, or arrays of the model's size."""

from __future__ import annotations

from bench.steps.options import StepOptions
from bench.steps.server.hooks import PlainTraining, Training
from bench.steps.training.served import NoiseTraining, ProblemTraining
from collectives.schedule.dtypes import dtype


def training(options: StepOptions, learners: int) -> Training:
    """The same on every rank, and in every process that joins. Raises Unsupported."""
    asked = options.training
    shared = asked.shared(learners, options.seed)
    return exchanged(options) if shared is None else ProblemTraining(shared, asked.codec)


def exchanged(options: StepOptions) -> Training:
    """Arrays of the same size that are only exchanged, in the same code."""
    asked = options.training
    if asked.compress != "none":
        return NoiseTraining(options.workload.elements, asked.codec, options.seed)
    return PlainTraining(options.workload.elements, dtype(options.dtype))
