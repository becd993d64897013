"""The quantities that a row may have, with name, unit and text; and names of rows.

A row of a bandwidth test has no time, so it is compared and ranked by its bandwidth. `metric_of`
returns the metric by which a row is compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from busbar.units import format_digits, format_percent, format_ranks, format_seconds, format_size
from reports.records.measurement import Measurement

#: The point-to-point tests, and the units of the cells of their closing table.
TESTS: Mapping[str, str] = {
    "latency": "us, one way",
    "bandwidth": "MB/s of all pairs (messages/s)",
    "bidirectional_bandwidth": "MB/s of all pairs, both ways (messages/s)",
}

#: Values of `time_of`, for rows whose time is not that of the operation.
CPU, PURE = "CPU time until the calls returned", "pure communication"


@dataclass(frozen=True)
class Metric:
    """A quantity of a row.

    ``column``: the field of a `Measurement`; ``unit``: the unit in a table's heading, empty if
    the text of each value has one; ``scale``: that unit in units of the field; ``more``: True if
    more is better.
    """

    name: str
    column: str
    unit: str = ""
    scale: float = 1.0
    more: bool = False
    form: Callable[[float], str] = format_digits

    def of(self, row: Measurement) -> float | None:
        """The row's value in the field's unit, such as seconds or bytes per second, or None."""
        value: float | None = getattr(row, self.column)
        return value

    def of_cost(self, cost: float | None) -> float | None:
        """Convert a cost (more is worse) to a value, or back: 1 over it for rates, else itself."""
        if cost is None or not self.more:
            return cost or None
        return 1 / cost if cost else None

    def text(self, value: float | None) -> str:
        """A value as text without its unit (`unit`); empty for None."""
        return "" if value is None else self.form(value / self.scale)

    def words(self, value: float | None) -> str:
        """A value as text with its unit; ``N/A`` for None."""
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

#: Further quantities that other benchmarks measure, in the order of columns.
BESIDE = (BANDWIDTH, MESSAGE_RATE, OVERALL, COMPUTE, OVERLAP)
# The metrics by which rows are compared: the first that a row has.
_CHIEF = (TIME, BANDWIDTH, MESSAGE_RATE)


def metric_of(row: Measurement) -> Metric:
    """The metric by which a row is compared: time, otherwise bandwidth, otherwise message rate."""
    return next((metric for metric in _CHIEF if metric.of(row)), TIME)


def is_measured(row: Measurement) -> bool:
    """True if a row has a time or a rate."""
    return any(metric.of(row) for metric in (*_CHIEF, ALGBW))


def present(rows: Iterable[Measurement], metrics: Iterable[Metric]) -> list[Metric]:
    """The metrics that at least one row has."""
    rows = list(rows)
    return [metric for metric in metrics if any(metric.of(row) is not None for row in rows)]


PLACEMENT = {"out": "out-of-place", "in": "in-place"}


def setting(row: Measurement, placed: bool = True) -> str:
    """The settings of a row except size and algorithm, in words.

    ``placed``: with its placement.
    """
    what = (row.collective or "unnamed collective", row.dtype, row.op, format_ranks(row.ranks))
    where = PLACEMENT[row.placement] if placed else ""
    return ", ".join(w for w in (*what, row.reading, where) if w)


def named(row: Measurement) -> str:
    """What a row measures in a few words: ``allreduce ring 64M out``."""
    return row_name(row.collective, row.algorithm, row.nbytes, row.placement)


def row_name(collective: str, algorithm: str, nbytes: int | None, placement: str) -> str:
    """What a row measures in a few words: ``allreduce ring 64M out``."""
    return " ".join(w for w in (collective, algorithm, format_size(nbytes), placement) if w)
