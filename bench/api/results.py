"""Results with one dataclass per line: printed as a table, and a DataFrame for pandas."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from html import escape
from typing import TYPE_CHECKING, Generic, TypeVar, overload

from bench.api.public import public
from busbar.errors import MissingLibrary
from busbar.units import format_count
from reports.analysis.answer import Verdict

if TYPE_CHECKING:
    from pandas import DataFrame

# Endings of column names, and their units. The first match counts.
_UNITS = (
    ("_bytes_per_s", "bytes/s"), ("_per_s", "1/s"), ("_bytes", "bytes"), ("_hz", "Hz"),
    ("_j", "J"), ("_s", "s"),
)  # fmt: skip
# The units of columns whose names have none.
_UNIT = {
    "size": "bytes", "algbw": "GB/s", "busbw": "GB/s", "time_us": "us", "change": "share of base",
    "change_low": "share of base", "change_high": "share of base",
}  # fmt: skip
# The first and the last columns of a frame: pandas prints only three or four of each in 80
# characters, so that time and busbw are on either side.
_FIRST = ("algorithm", "size", "busbw", "base", "ranks", "collective", "algbw")
_LAST = (
    "op",
    "placement",
    "wrong",
    "time_s",
    "time_us",
    "next",
    "ratio",
    "new",
    "change",
    "best",
    "verdict",
)
# The types of columns by the fields' annotations; a text or a truth is as pandas takes it.
_TYPES = {"float": "float64", "float | None": "float64", "int": "int64", "int | None": "Int64"}


@dataclass(frozen=True)
class BestAlgorithm:
    """The fastest algorithm at one size, from `MeasuredRows.best`.

    ``verdict``: ``fastest``; ``may be no faster`` if the interval of ``ratio`` reaches 1; ``cannot
    tell`` if it is too wide to say anything; ``no interval`` if there is none; ``alone`` without a
    competitor. ``ratio``: time of the second, ``next``, over the fastest one's; ``ratio_low``,
    ``ratio_high``: its 95 % interval. ``library_ratio``: time of the library over the fastest
    one's, with ``library_ratio_low`` and ``library_ratio_high``; None if the library is the
    fastest, or was not measured. ``answer``: the algorithm that `MeasuredRows.answer` names for the
    range of this size; it is another one only where the verdict is not ``fastest``. ``transport``,
    ``next_transport``, ``answer_transport``: what moved the bytes of these three; with two
    transports, ``next`` may be the same algorithm over the other one. ``arrival``: the pattern in
    which ranks arrived, without its delay, such as ``late:0``. ``across``: what the times are
    (docs/record.md).
    ``busbw_bytes_per_s``: NaN for a collective that moves no data.
    """

    size: int
    ranks: int
    placement: str
    algorithm: str
    transport: str
    verdict: Verdict
    time_s: float
    busbw_bytes_per_s: float
    next: str
    next_transport: str
    ratio: float | None
    ratio_low: float | None
    ratio_high: float | None
    library_ratio: float | None
    library_ratio_low: float | None
    library_ratio_high: float | None
    answer: str
    answer_transport: str
    collective: str
    dtype: str
    op: str
    root: int | None
    arrival: str
    across: str


L = TypeVar("L")


def item(items: Sequence[L], at: int | slice, what: str, instead: str) -> L | Sequence[L]:
    """An item or a slice of ``what``.

    Raises IndexError, which says how many there are, and TypeError, which says ``instead``.
    """
    try:
        return items[at]
    except TypeError:
        raise TypeError(f"{what}s have numbers from 0, not {at!r}; {instead}") from None
    except IndexError:
        raise IndexError(f"no {what} {at}: there are {format_count(len(items), what)}") from None


class ResultTable(Sequence[L], Generic[L]):
    """Lines of one dataclass, in order. ``str()`` gives a table, ``frame()`` a DataFrame."""

    def __init__(self, kind: type[L], lines: Iterable[L], text: str) -> None:
        """``kind``: the lines' class; ``text``: the table."""
        self._kind, self._lines, self._text = kind, tuple(lines), text

    @overload
    def __getitem__(self, at: int) -> L: ...

    @overload
    def __getitem__(self, at: slice) -> Sequence[L]: ...

    def __getitem__(self, at: int | slice) -> L | Sequence[L]:
        """A line; a slice gives a tuple of lines. Raises IndexError with the number of lines."""
        return item(self._lines, at, "line", "frame() has a column for each field")

    def __len__(self) -> int:
        """The number of lines."""
        return len(self._lines)

    def __eq__(self, other: object) -> bool:
        """True for the same lines in the same order."""
        return self._lines == other._lines if isinstance(other, ResultTable) else NotImplemented

    @public
    def frame(self) -> DataFrame:
        """The lines as a pandas DataFrame with a column for each field. Raises MissingLibrary.

        A rate in bytes per second stands in GB/s (10^9 bytes) as well, ``time_s`` in microseconds
        as ``time_us``. ``attrs["units"]`` maps columns to units. The columns that are read first
        come first and last, where pandas prints them.
        """
        try:
            import pandas as pd
        except ImportError:
            raise MissingLibrary("pandas") from None
        known = {one.name: str(one.type) for one in fields(self._kind)}  # type: ignore[arg-type]
        table = pd.DataFrame([asdict(one) for one in self._lines], columns=list(known))  # type: ignore[call-overload]
        table = table.astype({name: _TYPES[kind] for name, kind in known.items() if kind in _TYPES})
        return finished(table)

    def __repr__(self) -> str:
        return self._text

    def __str__(self) -> str:
        return self._text

    def _repr_html_(self) -> str:
        return f"<pre>{escape(self._text)}</pre>"


def unit_of(column: str) -> str:
    """The unit of a column by the ending of its name; empty without one."""
    return next((unit for end, unit in _UNITS if column.endswith(end)), "")


def finished(table: DataFrame) -> DataFrame:
    """A table with algbw and busbw in GB/s, time_us, and its units in ``attrs["units"]``.

    The columns that are read first come first and last.
    """
    for name in ("algbw", "busbw"):
        if (exact := f"{name}_bytes_per_s") in table:
            table[name] = table[exact] / 1e9
    if "time_s" in table:
        table["time_us"] = table["time_s"] * 1e6
    first, last = ([name for name in names if name in table] for names in (_FIRST, _LAST))
    between = (name for name in table if name not in first + last)
    ordered: DataFrame = table[[*first, *between, *last]]
    units = {name: _UNIT.get(name) or unit_of(name) for name in map(str, ordered)}
    ordered.attrs["units"] = {name: unit for name, unit in units.items() if unit}
    return ordered
