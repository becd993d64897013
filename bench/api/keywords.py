"""The options of a benchmark as keywords of `busbar.run`: ``make docs``."""

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
    transport: Value
    tuning: Value
    wait_quiet: Value
    warmup_iters: Value
