"""The interface of an update: what it is given on its rank, and what it returns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bench.run.watchdog import Watchdog
from bench.steps.compute import Compute
from bench.steps.options import StepOptions, UpdateChoice
from bench.steps.trace import Trace
from bench.steps.workloads.workload import Workload
from collectives.execution.transport import Transport
from collectives.execution.world import World
from reports.records.measurement import Record


@dataclass(frozen=True)
class StepJob:
    """One choice's run on one rank. All ranks are given the same, but for their world.

    ``baseline``: the transport that has the library's collectives. ``choice``: the update, and its
    text after the colon. ``watch`` is told of every row and iteration, so that it can explain what
    hangs. ``trace`` keeps what ``--trace`` draws, and nothing otherwise. ``note`` says on rank 0
    what is no result. ``far`` is given a function that any thread may call: how far the update is,
    as JSON values, for the record of one that hangs.
    """

    world: World
    transport: Transport
    baseline: Transport
    workload: Workload
    compute: Compute
    options: StepOptions
    choice: UpdateChoice
    watch: Watchdog
    trace: Trace
    note: Callable[[str], None]
    far: Callable[[Callable[[], Mapping[str, Any]]], None]

    @property
    def ranks(self) -> int:
        """The number of ranks, with learners that are processes of their own."""
        return self.world.size + self.options.learners


@dataclass(frozen=True)
class StepOutcome:
    """The result of an update's steps, the same on every rank.

    ``record``: raw seconds of each step (of each update, where a server sets the pace), and bytes
    of one. ``compute``: measured seconds of the same steps without any exchange; empty where they
    cannot be run so. ``kind``: synchronous, or the protocol's name. ``messages``: of one step, over
    all ranks. ``predicted``: the expected seconds of a step, None where nothing predicts them;
    ``model``: the fit, topology, formula or simulation that does. ``gradients``: how many ranks'
    gradients a step of `record` takes in, for samples/s. ``facts``: more for the record, as JSON
    values under the update's own names. ``lines``: shown below the row. ``transport``: what carried
    it, where that is none of the job's.
    """

    record: Record
    kind: str
    compute: tuple[float, ...] = ()
    messages: int | None = None
    predicted: float | None = None
    model: str = ""
    gradients: float = 1.0
    facts: Mapping[str, Any] = field(default_factory=dict)
    lines: Sequence[str] = ()
    transport: str = ""


@dataclass(frozen=True)
class Update:
    """A way to make ranks' gradients one update.

    ``module``: loaded when it is chosen. Its ``run`` takes a `StepJob` and gives a `StepOutcome`.
    Its ``check`` is given the choice, the number of ranks and the options before anything starts,
    and raises Unsupported with one line. ``about``: a line for ``--update list``. ``fused``: it
    exchanges buckets (``--fusion``).
    """

    module: str
    about: str
    fused: bool = False
