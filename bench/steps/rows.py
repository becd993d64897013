"""The table of a run of steps: a heading, a row for each update, and its columns."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from bench.steps.options import StepOptions
from busbar.sizes import short
from reports.analysis.step_figures import StepFigures, figures
from reports.records.cores import Load
from reports.records.record import Result
from reports.records.shown import interval_text, percent, seconds

_NAME = 22
# Columns that are there however narrow the terminal is.
_ALWAYS = 6


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
    _StepColumn("exposed 95 %", 20, lambda r, f: _or(f.between_exposed, _ends)),
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


def _ends(ends: tuple[float, float]) -> str:
    return " .. ".join(map(_signed, ends))


def _signed(value: float) -> str:
    return seconds(value) if value >= 0 else f"-{seconds(-value)}"
