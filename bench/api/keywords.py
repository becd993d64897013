"""Options as keywords of `busbar.run` and `busbar.step`: ``make docs``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

Value = bool | str | int | float | Sequence[str | int | float]
"""As the command line has it: ``"64K"``, a number, or several of them."""


class Keywords(TypedDict, total=False):
    """Every option that `busbar.run` takes beside its own parameters; see docs/options.md."""

    add_order: Value
    affinity: Value
    append: bool
    arrival: Value
    average: Value
    blocks: Value
    budget: Value
    buffers: Value
    cache: Value
    check: Value
    counts: Value
    cudagraph: Value
    datatype: Value
    details: bool
    dry_run: bool
    energy: bool
    gpus: Value
    graph: Value
    grid: Value
    host: Value
    hostfile: Value
    in_flight: Value
    iters: Value
    launches: Value
    layout: Value
    limit: Value
    maxbytes: Value
    minbytes: Value
    mpi_threads: Value
    ngpus: Value
    nonblocking: bool
    nthreads: Value
    op: Value
    order: Value
    output_file: Value
    oversubscribe_gpu: bool
    overwrite: bool
    pattern: Value
    per_iter_timing: Value
    per_rank: bool
    placement: Value
    root: Value
    run_cycles: Value
    seed: Value
    segment: Value
    split: Value
    spread: Value
    statistic: Value
    stepbytes: Value
    stepfactor: Value
    sync: Value
    threads: Value
    timeout: Value
    timing: Value
    total: Value
    transport: Value
    tuning: Value
    wait_quiet: Value
    warmup_iters: Value


class StepKeywords(TypedDict, total=False):
    """Every option that `busbar.step` takes beside its own parameters; see docs/options.md."""

    affinity: Value
    append: bool
    batch: Value
    budget: Value
    compress: Value
    compute_by: Value
    cycle: Value
    fit: Value
    fusion: Value
    host: Value
    hostfile: Value
    iters: Value
    mpi_threads: Value
    overlap: Value
    overwrite: bool
    per_rank: bool
    precision: Value
    problem: Value
    rate: Value
    rule: Value
    scale: Value
    seed: Value
    servers: Value
    straggler: Value
    threads: Value
    timeout: Value
    topology: Value
    trace: Value
    transport: Value
    tuning: Value
    warmup_iters: Value
