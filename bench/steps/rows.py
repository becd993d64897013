"""What is shown of a run of steps: what is measured, a line an update, and what its columns are."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, NamedTuple

from bench.steps.options import StepOptions
from busbar.sizes import short
from busbar.statistics import interval
from reports.records.cores import Load
from reports.records.record import Result
from reports.records.shown import interval_text, percent, seconds
from reports.statistics.order import center

__all__ = ["StepFigures", "best_fusion", "figures", "header", "row"]

_NAME = 22
# Columns that are there however narrow the terminal is.
_ALWAYS = 6


@dataclass(frozen=True)
class StepFigures:
    """What is derived from a record of steps; seconds, None where a part was not measured.

    ``low``, ``high``: the 95 % interval of the median step, of a server's pace of the mean.
    ``rate``: samples/s of all ranks. ``exposed``: T_step - T_compute alone. ``hidden``: the share
    of the exchange, as long as it takes alone, that is not exposed; below 0 where overlap costs
    more.
    ``speedup``: over one rank, that is samples/s over what one rank's compute alone allows;
    ``efficiency``: that over the ranks.
    """

    step: float
    low: float | None
    high: float | None
    rate: float
    compute: float | None
    exposed: float | None
    hidden: float | None
    speedup: float | None
    efficiency: float | None


def figures(result: Result) -> StepFigures | None:
    """The figures of a record; None where there are no steps."""
    sample, step = result.out, result.step
    middle = None if sample is None else center(sample)
    if sample is None or not middle:
        return None
    # Back to back, times are of one pace: their mean is the time, and has an interval of its own.
    between = step.get("interval_s") if sample.timing == "loop" else interval(sample.times)
    low, high = between or (None, None)
    rate = float(step.get("gradients", 1)) * int(step.get("batch", 1)) / middle
    compute, exchange = _middle(step.get("compute_s")), _middle(step.get("exchange_s"))
    exposed = None if compute is None else middle - compute
    hidden = None
    if exposed is not None and exchange:
        hidden = min(1.0, 1 - exposed / exchange)
    alone = step.get("one_rank_s")
    speedup = None
    if isinstance(alone, int | float) and alone > 0 and compute:
        speedup = float(step.get("gradients", 1)) * alone / middle
    efficiency = None if speedup is None else speedup / result.ranks
    return StepFigures(middle, low, high, rate, compute, exposed, hidden, speedup, efficiency)


def _middle(times: object) -> float | None:
    return median(times) if isinstance(times, list | tuple) and times else None


def header(options: StepOptions, nranks: int, crowd: Load | None) -> list[str]:
    """The lines above the rows."""
    workload = options.workload
    slow = "".join(f", rank {rank} x{factor:g}" for rank, factor in options.compute.slow.items())
    lines = [
        f"# training step of {workload.name}: {workload.elements:,} parameters in"
        f" {len(workload.tensors)} tensors, {nranks} rank{'s' if nranks > 1 else ''}",
        f"# compute {options.compute.label}{slow}, {'burning' if options.burn else 'asleep'};"
        f" batch {options.batch} a rank; exchange"
        f" {'overlaps the backward pass' if options.overlap else 'after the backward pass'}",
    ]
    if crowd is not None and crowd.per_core > 1:
        lines.append(f"# {crowd.remark(nranks)}")
    names = "".join(f"{one.head:>{one.width}}" for one in _columns())
    return [*lines, f"# {'update':<{_NAME}}{names}"]


def row(result: Result) -> list[str]:
    """The line of an update."""
    found, sample = figures(result), result.out
    if found is None or sample is None:
        return [
            f"  {result.algorithm:<{_NAME}} skipped: {'' if sample is None else sample.skipped}"
        ]
    cells = "".join(f"{one.text(result, found):>{one.width}}" for one in _columns())
    lines = [f"  {result.algorithm:<{_NAME}}{cells}"]
    if sample.wrong:
        lines.append(f"# {result.algorithm}: {sample.wrong} gradients are not the ranks' average")
    return lines


def best_fusion(results: Sequence[Result]) -> list[str]:
    """For each update the fusion whose steps are shortest, and those not told from it.

    Two are told apart where the 95 % intervals of their medians do not meet.
    """
    lines: list[str] = []
    for name in dict.fromkeys(str(result.step.get("update", "")) for result in results):
        found = [
            (one, result)
            for result in results
            if result.step.get("update") == name and (one := figures(result)) is not None
        ]
        if len(found) < 2:
            continue
        found.sort(key=lambda pair: pair[0].step)
        best, at = found[0]
        meets = [
            str(result.step.get("fusion"))
            for one, result in found[1:]
            if best.high is None or one.low is None or one.low <= best.high
        ]
        last, worst = found[-1]
        lines.append(
            f"# best fusion of {name}: {at.step.get('fusion')}, {seconds(best.step)}"
            + (f" (not told from {', '.join(meets)})" if meets else "")
            + f"; worst: {worst.step.get('fusion')}, {last.step / best.step:.2f} times as long"
        )
    return lines


class _StepColumn(NamedTuple):
    """A column of the table: its head, its width, and what makes a cell."""

    head: str
    width: int
    text: Callable[[Result, StepFigures], str]


_COLUMNS = (
    _StepColumn("step", 9, lambda r, f: seconds(f.step)),
    _StepColumn("95 %", 14, lambda r, f: interval_text(f.low, f.high, f.step)),
    _StepColumn("exposed", 9, lambda r, f: _or(f.exposed, _signed)),
    _StepColumn("hidden", 8, lambda r, f: _or(f.hidden, percent)),
    _StepColumn("samples/s", 10, lambda r, f: f"{f.rate:.4g}"),
    _StepColumn("eff.", 7, lambda r, f: _or(f.efficiency, percent)),
    # Where the terminal is wide enough.
    _StepColumn("predicted", 10, lambda r, f: _or(r.step.get("predicted_s"), seconds)),
    _StepColumn("speed-up", 9, lambda r, f: _or(f.speedup, lambda x: f"{x:.2f}")),
    _StepColumn("messages", 9, lambda r, f: _or(r.step.get("messages"), str)),
    _StepColumn("sent", 8, lambda r, f: _or(r.out.sent if r.out else None, short)),
    _StepColumn("buckets", 8, lambda r, f: _or(r.step.get("buckets"), lambda x: f"{x:g}")),
)


def _columns() -> list[_StepColumn]:
    """As many columns as fit the terminal; all where there is none."""
    width = shutil.get_terminal_size((160, 24)).columns
    found: list[_StepColumn] = []
    left = width - 2 - _NAME
    for one in _COLUMNS:
        left -= one.width
        if left >= 0 or len(found) < _ALWAYS:
            found.append(one)
    return found


def _or(value: Any, text: Callable[[Any], str]) -> str:
    return "-" if value is None else text(value)


def _signed(value: float) -> str:
    return seconds(value) if value >= 0 else f"-{seconds(-value)}"
