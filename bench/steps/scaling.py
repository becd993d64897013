"""``--sweep ranks``: scaling of steps against one rank, measured in the same run."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from busbar.errors import ReportError
from busbar.units import format_percent, format_seconds
from reports.analysis.steps import StepFigures, figures
from reports.readers.codec import measurements
from reports.records.measurement import Measurement

_BAR = 20


def scaling_lines(rows: Path) -> list[str]:
    """The closing table of a file of records; nothing where it has none."""
    try:
        steps = measurements(rows.read_text())
    except (OSError, ValueError, ReportError):
        return []
    return list(_table(steps))


def _table(steps: Iterable[Measurement]) -> Iterable[str]:
    groups: dict[tuple[str, str], dict[int, tuple[Measurement, StepFigures]]] = {}
    for row in steps:
        one = figures(row)
        if one is not None:
            groups.setdefault((row.collective, row.algorithm), {})[row.ranks or 0] = row, one
    for (model, update), by_ranks in groups.items():
        base, against = by_ranks.get(1), ": scaling against 1 rank"
        if base is not None and base[0].step and base[0].step.stragglers:
            base, against = None, ": no speed-up, for the 1 rank measured is a straggler"
        yield "#"
        yield f"# {model}, {update}" + (against if 1 in by_ranks else "")
        yield f"# {'ranks':>5}{'step':>10}{'samples/s':>11}{'speed-up':>9}{'efficiency':>15}"
        for ranks, (_, one) in sorted(by_ranks.items()):
            line = f"# {ranks:>5}{format_seconds(one.step.value):>10}{one.rate.value:>11.4g}"
            if base is None:
                yield line
                continue
            speedup = one.rate.over(base[1].rate)
            share = speedup.times(1 / ranks)
            bar = "█" * round(_BAR * min(1.0, share.value))
            wide = "" if share.half is None else f" ±{100 * share.half:.1f}"
            yield f"{line}{speedup.value:>9.2f}{format_percent(share.value) + wide:>15}  {bar}"
