"""What is shown of a run of steps: a header, a line an update."""

from __future__ import annotations

from bench.steps.options import StepOptions
from bench.steps.workloads.workload import Workload
from busbar.sizes import human
from busbar.statistics import interval
from collectives.schedule.dtypes import dtype
from reports.records.cores import Load
from reports.records.record import Result
from reports.records.shown import interval_text, seconds
from reports.statistics.order import center

__all__ = ["header", "row"]


def header(options: StepOptions, workload: Workload, nranks: int, crowd: Load | None) -> list[str]:
    """The lines above the rows."""
    kind = dtype(options.dtype)
    size = human(workload.elements * kind.itemsize)
    lines = [
        f"# step of {workload.name}: {workload.elements:,} parameters in"
        f" {len(workload.tensors)} tensors, {size} of {options.dtype}, {nranks} ranks,"
        f" compute {options.compute.label}"
    ]
    if crowd is not None and crowd.per_core > 1:
        lines.append(f"# {crowd.remark(nranks)}")
    return [*lines, f"# {'update':<24}{'step':>10}  {'95 %':<14}{'samples/s':>10}"]


def row(result: Result) -> list[str]:
    """The line of an update."""
    sample = result.out
    middle = None if sample is None else center(sample)
    if sample is None or middle is None:
        return [f"  {result.algorithm:<24}{'' if sample is None else sample.skipped}"]
    # Back to back, times are of one pace: the mean counts, of which that is no interval.
    low, high = (sample.timing != "loop" and interval(sample.times)) or (None, None)
    rate = result.step["gradients"] * result.step["batch"] / middle if middle else 0.0
    wide = interval_text(low, high, middle)
    return [f"  {result.algorithm:<24}{seconds(middle):>10}  {wide:<14}{rate:>10.4g}"]
