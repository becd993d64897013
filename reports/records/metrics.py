"""The quantities that a row may have: name, unit and text of each, and what a row is, in words.

A row of a bandwidth test has no time: the metric that it is compared, ranked and followed by is its
bandwidth. `metric_of` says which one that is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from busbar.units import format_digits, format_percent, format_seconds, format_size
from reports.records.measurement import Measurement

#: What the time of a row is of, where it is not of the operation.
CPU, PURE = "CPU time until the calls returned", "pure communication"


@dataclass(frozen=True)
class Metric:
    """A quantity of a row.

    ``column``: the field of a `Measurement`; ``unit``: what a table's heading says of its
    figures, empty where the text says it; ``scale``: that unit in the field's; ``more``:
    whether more is better.
    """

    name: str
    column: str
    unit: str = ""
    scale: float = 1.0
    more: bool = False
    form: Callable[[float], str] = format_digits

    def of(self, row: Measurement) -> float | None:
        """The row's value in seconds, bytes per second and the like; None where it has none."""
        value: float | None = getattr(row, self.column)
        return value

    def of_cost(self, cost: float | None) -> float | None:
        """A value from its cost, of which more is worse, or the cost of a value: 1 over a rate."""
        if cost is None or not self.more:
            return cost or None
        return 1 / cost if cost else None

    def text(self, value: float | None) -> str:
        """A value without its unit (`unit`); empty where there is none."""
        return "" if value is None else self.form(value / self.scale)

    def words(self, value: float | None) -> str:
        """A value with its unit; ``N/A`` where there is none."""
        return "N/A" if value is None else f"{self.text(value)} {self.unit}".rstrip()


TIME = Metric("time", "time_s", form=format_seconds)
BUSBW = Metric("busbw", "busbw_bytes_per_s", "GB/s", 1e9, more=True)
ALGBW = Metric("algbw", "algbw_bytes_per_s", "GB/s", 1e9, more=True)
BANDWIDTH = Metric("bandwidth", "bandwidth_bytes_per_s", "MB/s", 1e6, more=True)
MESSAGE_RATE = Metric("message rate", "messages_per_s", "messages/s", more=True)
OVERALL = Metric("overall", "overall_s", form=format_seconds)
COMPUTE = Metric("compute", "compute_s", form=format_seconds)
OVERLAP = Metric("overlap", "overlap", more=True, form=format_percent)
ERROR = Metric("error", "error", form=lambda value: f"{value:.1g}")

#: What other benchmarks measure beside time, algbw and busbw, in the order of columns.
BESIDE = (BANDWIDTH, MESSAGE_RATE, OVERALL, COMPUTE, OVERLAP)
# What a row is compared by, the first that it has.
_CHIEF = (TIME, BANDWIDTH, MESSAGE_RATE)


def metric_of(row: Measurement) -> Metric:
    """The metric that a row is compared by: its time, else its bandwidth or its message rate."""
    return next((metric for metric in _CHIEF if metric.of(row)), TIME)


def is_measured(row: Measurement) -> bool:
    """Whether a row has any figure to show."""
    return any(metric.of(row) for metric in (*_CHIEF, ALGBW))


def present(rows: Iterable[Measurement], metrics: Iterable[Metric]) -> list[Metric]:
    """Those metrics that some row has."""
    rows = list(rows)
    return [metric for metric in metrics if any(metric.of(row) is not None for row in rows)]


PLACEMENT = {"out": "out-of-place", "in": "in-place"}


def setting(row: Measurement) -> str:
    """The group of a row in words: everything but size and algorithm."""
    ranks = f"{row.ranks} ranks" if row.ranks else ""
    words = (row.collective or "unnamed collective", row.dtype, row.op, ranks, row.reading)
    return ", ".join(w for w in (*words, PLACEMENT[row.placement]) if w)


def named(row: Measurement) -> str:
    """A row in a few words: ``allreduce ring 64M out``."""
    words = (row.collective, row.algorithm, format_size(row.nbytes), row.placement)
    return " ".join(w for w in words if w)
