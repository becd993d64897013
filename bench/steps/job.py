"""The kinds of gradient exchange that ``--update`` names, and input and record of measuring one.

Each is a way to combine the gradients of all ranks into one change of the weights, such as an
all-reduce or a parameter server. A name that is not in the table is an all-reduce of the catalogue,
``library`` or ``auto``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec.structs import replace

from bench.run.watchdog import Watchdog
from bench.steps.buckets import GradientLayout
from bench.steps.compute import Compute
from bench.steps.options import StepOptions, UpdateChoice
from bench.steps.trace import Trace
from bench.steps.workloads import Workload
from collectives.execution.transport import Transport
from collectives.execution.world import World
from reports.records.measurement import STEP, Record
from reports.records.steps import Step


@dataclass(frozen=True)
class StepJob:
    """What is needed to measure one kind of gradient exchange on one rank.

    Only ``world`` differs between ranks: the rank, and control messages between ranks.

    - ``baseline``: the transport that has the library's collectives.
    - ``choice``: the kind of exchange (``--update``).
    - ``watch``: the watchdog, notified of every row and iteration, so that it can explain a hang.
    - ``trace``: the spans that ``--trace`` draws. ``note``: prints a line on rank 0.
    - ``set_progress``: registers a function that returns the progress as JSON values, for the
      record of an exchange that hangs. Any thread may call that function.
    - ``oversubscribed``: True if ranks share cores; None if this is unknown.
    - ``port_rate``: bytes/s of each rank's own port, each way; None if ranks have no ports or their
      rate is not known (`busbar.host.emulated_port_rate`).
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
    oversubscribed: bool | None
    port_rate: float | None = None

    @property
    def ranks(self) -> int:
        """The number of ranks, including learners that are separate processes."""
        return self.world.size + self.options.learners

    @property
    def algorithm(self) -> str:
        """The row's name: the kind of exchange, then what else the exchange differs in.

        That is its fusion if it exchanges buckets (``ring/ddp``), ``after`` if these are exchanged
        after the backward pass, and the compression (``ps/ddp/int8``). Rows of one name are
        compared.
        """
        options, words = self.options, [self.choice.label]
        if update(self.choice.name).fused:
            words += [options.fusion.label, *([] if options.overlap else ["after"])]
        return "/".join(words + ([] if options.compress == "none" else [options.compress]))


@dataclass(frozen=True)
class Update:
    """A way to exchange gradients (``--update``): an all-reduce, a parameter server's protocol, ….

    ``module``: its ``run`` takes a `StepJob` and returns the record (`step_record`) and the lines
    below its row, the same on every rank. Its ``check`` is called before ranks start, with the
    choice, the number of ranks and the options, and raises Unsupported if they do not fit.
    ``about``: a line for ``--update list``. ``fused``: True if it exchanges buckets (``--fusion``).
    """

    module: str
    about: str
    fused: bool = False


_SYNCHRONOUS, _SERVERS = "bench.steps.sync", "bench.steps.server.run"
#: The update for any name that is not in the table.
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
    "k-batch-async": Update(_SERVERS, "k-batch-async:K: with K gradients; no learner waits"),
}
#: Updates that continue when a learner is lost.
ASYNCHRONOUS = ("async", "k-async", "k-batch-async")


def update(name: str) -> Update:
    """The way to exchange gradients called ``name``; an all-reduce if the table lacks the name."""
    return UPDATES.get(name, ALLREDUCE)


class _Facts(Step, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The fields of a step. A fact without a field is an error here, so that none is lost."""


# Made at import: ranks that are threads may crash msgspec if they are the first to use a type.
_FACTS = msgspec.json.Decoder(_Facts)


def step_record(
    job: StepJob,
    record: Record,
    kind: str,
    *,
    gradients: float = 1.0,
    transport: str = "",
    **facts: Any,
) -> Record:
    """The record of training steps with one kind of gradient exchange, the same on every rank.

    ``record``: seconds of each step (with servers: of each update of the weights), and the bytes of
    one step. ``kind``: synchronous, or the protocol's name. ``gradients``: how many ranks'
    gradients a step uses. ``transport``: the transport of the exchange, if it is not the job's.
    ``facts``: further fields of `reports.records.steps.Step`.

    In the result ``collective`` is ``step:MODEL/LAW`` (the distribution of compute times), and
    ``algorithm`` that of the job. Rows are compared if both are equal. If an update of the weights
    takes fewer gradients than there are ranks, ``collective`` also has their number (``/4
    gradients``), so that times of unequal work are not compared. ``size``: the gradients' bytes.
    """
    options, workload = job.options, job.workload
    named = f"{STEP}{workload.name}" + (
        "" if options.compute.label == "none" else f"/{options.compute.label}"
    )
    if record.times_s and gradients != job.ranks:
        named += f"/{gradients:g} gradients"
    step = {
        "kind": kind,
        "model": workload.name,
        "tensors": len(workload.tensors),
        "update": job.choice.label,
        "compute": options.compute.label,
        "compute_by": "burn" if options.burn else "sleep",
        "batch": options.batch,
        "seed": options.seed,
        "stragglers": {str(rank): x for rank, x in options.compute.slow.items()} or None,
        "gradients": gradients,
        **options.training_facts,
        **facts,
    }
    known = {name: value for name, value in step.items() if value not in (None, "", [], ())}
    return replace(
        record,
        collective=named,
        algorithm=job.algorithm,
        transport=transport
        or (job.baseline if job.choice.name == "library" else job.transport).name,
        ranks=job.ranks,
        size=GradientLayout.of(workload, options.dtype).nbytes,
        count=workload.elements,
        dtype=options.dtype,
        op="sum",
        root=-1,
        bus_factor=0.0,  # a step has no busbw
        step=_FACTS.decode(json.dumps(known)),
    )
