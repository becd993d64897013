"""A run of steps as a measurement, for show, compare and history."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from bench.steps.buckets import GradientLayout
from bench.steps.job import StepJob, StepOutcome
from reports.readers.codec import run_of
from reports.records.cores import Load
from reports.records.measurement import STEP, Measurement
from reports.records.steps import Step
from reports.records.table import measured


class _Facts(Step, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Steps as this version writes them: a fact that has no field would be lost."""


def measurement(
    job: StepJob, outcome: StepOutcome, environment: Mapping[str, Any], crowd: Load | None
) -> Measurement:
    """The measurement of one update.

    ``collective`` is ``step:MODEL`` with the law of its compute, ``algorithm`` the update and its
    fusion (``ring/ddp``): rows are compared if both are equal. If an update takes fewer gradients
    than there are learners, ``collective`` names their number (``/4 gradients``), since its time
    means something else. ``size``: the gradients' bytes.
    """
    options, workload = job.options, job.workload
    named = f"{STEP}{workload.name}" + (
        "" if options.compute.label == "none" else f"/{options.compute.label}"
    )
    if outcome.record.times_s and outcome.gradients != outcome.facts.get("learners", job.ranks):
        named += f"/{outcome.gradients:g} gradients"
    step = {
        "kind": outcome.kind,
        "model": workload.name,
        "tensors": len(workload.tensors),
        "update": job.choice.label,
        "compute": options.compute.label,
        "compute_by": "burn" if options.burn else "sleep",
        "batch": options.batch,
        "seed": options.seed,
        "stragglers": {str(rank): x for rank, x in options.compute.slow.items()} or None,
        "gradients": outcome.gradients,
        "compute_s": list(outcome.compute),
        "messages": outcome.messages,
        "predicted_s": outcome.predicted,
        "predicted_by": outcome.model,
        **options.training.facts,
        **outcome.facts,
    }
    known = {name: value for name, value in step.items() if value not in (None, "", [])}
    record = replace(
        outcome.record,
        collective=named,
        algorithm=_label(job, outcome),
        transport=outcome.transport
        or (job.baseline if job.choice.name == "library" else job.transport).name,
        ranks=job.ranks,
        size=GradientLayout.of(workload, options.dtype).nbytes,
        count=workload.elements,
        dtype=options.dtype,
        op="sum",
        root=-1,
        bus_factor=0.0,  # a step has no busbw
        ranks_per_core=None if crowd is None else crowd.per_core,
        step=msgspec.json.decode(json.dumps(known), type=_Facts),
    )
    return measured(record, run_of(environment, named))


def _label(job: StepJob, outcome: StepOutcome) -> str:
    """The update, its fusion, and ``after`` if it was exchanged after the backward pass."""
    fused = outcome.facts.get("fusion")
    after = [] if job.options.overlap else ["after"]
    return "/".join([job.choice.label, *([str(fused), *after] if fused else [])])
