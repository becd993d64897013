"""The record of training steps, for show, compare and history."""

from __future__ import annotations

import json
from typing import Any

import msgspec
from msgspec.structs import replace

from bench.steps.buckets import GradientLayout
from bench.steps.job import StepJob
from reports.records.measurement import STEP, Record
from reports.records.steps import Step


class _Facts(Step, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Steps as this version writes them: a fact that has no field would be lost."""


def step_record(
    job: StepJob,
    record: Record,
    kind: str,
    *,
    gradients: float = 1.0,
    transport: str = "",
    **facts: Any,
) -> Record:
    """The record of one update, the same on every rank.

    ``record``: seconds of each step (with servers: of each update), and bytes of one. ``kind``:
    synchronous, or the protocol's name. ``gradients``: how many ranks' gradients a step uses.
    ``transport``: what exchanged them, if it is not the job's. ``facts``: further fields of
    `reports.records.steps.Step`.

    ``collective`` is ``step:MODEL`` with the law of its compute, ``algorithm`` the update and its
    fusion (``ring/ddp``): rows are compared if both are equal. If an update takes fewer gradients
    than there are learners, ``collective`` names their number (``/4 gradients``), since its time
    means something else. ``size``: the gradients' bytes.
    """
    options, workload = job.options, job.workload
    named = f"{STEP}{workload.name}" + (
        "" if options.compute.label == "none" else f"/{options.compute.label}"
    )
    if record.times_s and gradients != facts.get("learners", job.ranks):
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
        **options.training.facts,
        **facts,
    }
    known = {name: value for name, value in step.items() if value not in (None, "", [], ())}
    return replace(
        record,
        collective=named,
        algorithm=_label(job, facts.get("fusion")),
        transport=transport
        or (job.baseline if job.choice.name == "library" else job.transport).name,
        ranks=job.ranks,
        size=GradientLayout.of(workload, options.dtype).nbytes,
        count=workload.elements,
        dtype=options.dtype,
        op="sum",
        root=-1,
        bus_factor=0.0,  # a step has no busbw
        step=msgspec.json.decode(json.dumps(known), type=_Facts),
    )


def _label(job: StepJob, fusion: object) -> str:
    """The update, its fusion, and ``after`` if it was exchanged after the backward pass."""
    after = [] if job.options.overlap else ["after"]
    return "/".join([job.choice.label, *([str(fusion), *after] if fusion else [])])
