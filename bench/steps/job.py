"""The updates that ``--update`` names, and their interface: what one gets and what it returns.

An update is a way to make the gradients of all ranks one update. Any name that the table lacks is
an all-reduce of the catalogue, ``library`` or ``auto``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from bench.run.watchdog import Watchdog
from bench.steps.compute import Compute
from bench.steps.options import StepOptions, UpdateChoice
from bench.steps.trace import Trace
from bench.steps.workloads.workload import Workload
from collectives.execution.transport import Transport
from collectives.execution.world import World


@dataclass(frozen=True)
class StepJob:
    """The measurement of one update, on one rank. Only the world differs between ranks.

    ``baseline``: the transport that has the library's collectives. ``choice``: the update.
    ``watch``: is told of every row and iteration, so that it can explain a hang. ``trace``: the
    spans that ``--trace`` draws. ``note``: prints a line on rank 0. ``set_progress``: takes
    a function that any thread may call and that returns the progress of the update as JSON values,
    for the record of an update that hangs.
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
    set_progress: Callable[[Callable[[], Mapping[str, Any]]], None]

    @property
    def ranks(self) -> int:
        """The number of ranks, with learners that are separate processes."""
        return self.world.size + self.options.learners


@dataclass(frozen=True)
class Update:
    """A way to make ranks' gradients one update.

    ``module``: its ``run`` takes a `StepJob` and returns the record (`bench.steps.record`) and the
    lines below its row, the same on every rank. Its ``check`` takes the choice, the number of ranks
    and the options before ranks start, and raises Unsupported.
    ``about``: a line for ``--update list``. ``fused``: it exchanges buckets (``--fusion``).
    """

    module: str
    about: str
    fused: bool = False


_SYNCHRONOUS, _SERVERS = "bench.steps.updates.sync", "bench.steps.updates.servers"
#: The update of a name that the table lacks.
ALLREDUCE = Update(
    _SYNCHRONOUS,
    "an all-reduce by its name (ring, ps, hierarchical …), library or auto",
    fused=True,
)
UPDATES: Mapping[str, Update] = {
    "reduce+broadcast": Update(
        _SYNCHRONOUS,
        "gradients reduced to rank 0, parameters broadcast from it (as torch's DataParallel)",
        fused=True,
    ),
    "sync": Update(_SERVERS, "a server waits for every learner's gradient"),
    "k-sync": Update(_SERVERS, "k-sync:K: a server waits for K learners and cancels the others"),
    "k-batch-sync": Update(
        _SERVERS, "k-batch-sync:K: for K gradients, several of a learner, then cancels"
    ),
    "async": Update(_SERVERS, "a server updates with every gradient that comes"),
    "k-async": Update(_SERVERS, "k-async:K: with the gradients of K learners; the others go on"),
    "k-batch-async": Update(_SERVERS, "k-batch-async:K: with K gradients; nobody waits"),
}
#: Updates that continue when a learner is lost.
ASYNCHRONOUS = ("async", "k-async", "k-batch-async")


def update(name: str) -> Update:
    """The update of that name."""
    return UPDATES.get(name, ALLREDUCE)
