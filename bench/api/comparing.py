"""`compare`: two sets of runs row by row, as ``busbar reports compare``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import nan
from pathlib import Path

from bench.api.measured import MeasuredRows, doubts, load
from bench.api.public import public
from bench.api.remedies import in_keywords, written
from bench.api.results import ResultTable, unit_of
from busbar.arguments import each
from busbar.errors import Unsupported, rewording
from busbar.terminal import wrap_line
from reports.analysis.compare import Comparison, Ignored, Word, compare_runs, parse_ignored
from reports.records.measurement import Measurement
from reports.tables.comparison import asides, clocks, comparison_tables, verdict, warnings_by_side
from reports.tables.show import lines_of

_WIDTH = 100
_IGNORE = re.compile("--ignore ([a-z,]+)")
Rows = MeasuredRows | str | Path | Iterable[Measurement | MeasuredRows | str | Path]
"""Rows, or the files that `busbar.load` reads, or several of them."""


@dataclass(frozen=True)
class ComparedRow:
    """A row that both sides measured, from `busbar.compare`.

    ``verdict``: of NEW, ``faster``, ``slower``, ``indistinguishable``; ``cannot tell`` if a side
    has one launch; or if no difference was found, and the interval reaches a factor of 2 or lies on
    one side of 1 (``p`` is corrected for the number of rows, and the interval is not); ``untested``
    for single figures.
    ``metric``: what ``base`` and ``new`` are, such as ``time`` or ``busbw`` (NaN for a time of 0);
    ``unit``: theirs, ``s`` or ``bytes/s``. ``change``: of new, as a share of base, 0.05 where the
    text has +5.0%; ``change_low``, ``change_high``: its 95 % interval. ``p``: corrected for the
    number of rows. ``new_algorithm``, ``new_transport``: NEW's, which are others only with
    ``ignore``. ``across``: what the times are, such as an arrival pattern's.
    """

    size: int | None
    ranks: int | None
    placement: str
    algorithm: str
    verdict: Word
    metric: str
    unit: str
    base: float
    new: float
    change: float
    change_low: float | None
    change_high: float | None
    p: float | None
    collective: str
    dtype: str
    op: str
    root: int | None
    transport: str
    new_algorithm: str
    new_transport: str
    across: str


@public
def compare(
    base: Rows,
    new: Rows,
    *,
    noise: float = 0.01,
    anyway: bool = False,
    ignore: Ignored | Sequence[Ignored] = (),
) -> ResultTable[ComparedRow]:
    """NEW against BASE, row by row: faster, slower or indistinguishable.

    ``base``, ``new``: rows, files, or a list of both. Launches are the samples: several a side are
    needed for a verdict (``launches=7`` in `run`, or ``rows_a + rows_b``). ``noise``: the least
    relative difference that counts. ``anyway``: compare different machines or mappings, too.
    ``ignore``: ``"algorithm"``, ``"transport"`` or both, to compare two algorithms or transports:
    ``compare(rows.filter(algorithms="ring"), rows.filter(algorithms="ps"), ignore="algorithm")``.
    The text has the ``warnings`` of either side as well, such as that other programs disturbed it.

    Raises ReportError if they share no row, or differ in machine or mapping, and if a side has
    several values of what is ignored.
    """
    if not isinstance(noise, (int, float)) or not 0 <= noise < 1:
        raise Unsupported(f"busbar.compare: noise is a share from 0, such as 0.01, not {noise!r}")
    left, right = (_rows(side) for side in (base, new))
    texts: list[str] = []
    how = "" if anyway else "anyway=True"
    with rewording(_in_python):
        settings = parse_ignored(",".join(map(str, each(ignore)))) if ignore else ()
        compared, *_ = compare_runs(left, right, noise, how, texts.append, settings)
    texts += map(in_keywords, asides(compared, calls=True))
    texts += filter(None, [clocks(compared)])
    texts += warnings_by_side(doubts(left), doubts(right))
    lines = lines_of(comparison_tables(compared, _WIDTH), _WIDTH)
    lines += [line for text in texts for line in wrap_line(text, _WIDTH, 0)]
    lines += wrap_line(verdict(compared), _WIDTH, 2)
    return ResultTable(ComparedRow, map(_line, compared), "\n".join(lines))


def _in_python(text: str) -> str:
    """A message with the keyword ``ignore`` in place of the option."""
    text = _IGNORE.sub(lambda option: f"ignore={written(option[1])}", text)
    return text.replace("--ignore", "busbar.compare")


def _rows(side: Rows) -> MeasuredRows:
    """The rows of a side, each launch once. Raises Unsupported if it has anything but rows."""
    if isinstance(side, MeasuredRows):
        return MeasuredRows(()) + side
    if hasattr(side, "keys") or not isinstance(side, (str, Path, Iterable)):
        raise _not_rows(side)
    items = [side] if isinstance(side, (str, Path)) else list(side)
    if items and all(isinstance(one, (str, Path)) for one in items):
        return load(*items)
    return sum(map(_part, items), MeasuredRows(()))


def _part(one: object) -> MeasuredRows:
    if isinstance(one, (str, Path)):
        return load(one)
    if isinstance(one, (Measurement, MeasuredRows)):
        return one if isinstance(one, MeasuredRows) else MeasuredRows([one])
    raise _not_rows(one)


def _not_rows(value: object) -> Unsupported:
    kind = type(value).__name__
    return Unsupported(f"busbar.compare: rows or files are compared, not a value of type {kind}")


def _line(c: Comparison) -> ComparedRow:
    row, new = c.row.base, c.row.new
    low, high = (None, None) if c.bounds is None else (end - 1 for end in c.bounds)
    return ComparedRow(
        size=row.size,
        ranks=row.ranks,
        placement=row.placement,
        algorithm=row.algorithm or new.algorithm,
        verdict=c.word,
        metric=c.metric.name,
        unit=unit_of(c.metric.column),
        base=c.base or nan,
        new=c.new or nan,
        change=c.change - 1,
        change_low=low,
        change_high=high,
        p=c.p,
        collective=row.collective,
        dtype=row.dtype,
        op=row.op,
        root=row.root,
        transport=row.transport,
        new_algorithm=new.algorithm or row.algorithm,
        new_transport=new.transport,
        across=row.across,
    )
