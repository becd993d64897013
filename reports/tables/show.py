"""Terminal tables of a run: one a measured thing, sizes down, statistics across."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from busbar.terminal import terminal
from reports.analysis.compare import CANNOT_TELL, WORDS, Comparison
from reports.analysis.launches import LaunchedRow
from reports.records.cores import SHARED, marked, oversubscription
from reports.records.record import STEP
from reports.records.rows import Expected, Row
from reports.records.shown import (
    interval_text,
    percent,
    rate,
    seconds,
    setting,
    size_text,
    sparkline,
)
from reports.statistics.quantities import joules_per_gb, of_limit
from reports.tables.pairs import TESTS

if TYPE_CHECKING:
    from rich.table import Table

_WIDE = 110
_GAP = 2  # between columns
_FEWEST_MARKS, _MOST_MARKS = 6, 24
#: Columns that are given up where there is no room, the first first; names wrap only after that.
_SPARE = ("stopped", "transport", "cv", "min", "algbw", "max", "p99", "links", "port in",
    "port out",
          "J/GB", "J")  # fmt: skip


def grouped(rows: Iterable[Row]) -> dict[tuple[object, ...], list[Row]]:
    """Rows by what a table has in common: source, run, collective, type, operation, placement."""
    groups: dict[tuple[object, ...], list[Row]] = {}
    for r in rows:
        what = (r.collective, r.dtype, r.op, r.ranks, r.placement, r.reading)
        key = (r.run.source, r.run.number, *what)
        groups.setdefault(key, []).append(r)
    return groups


def heading(row: Row) -> str:
    """What a table measures, in one line."""
    words = [setting(row), oversubscription([row])]
    if len(row.run.hosts) > 1:
        words.append(f"{len(row.run.hosts)} nodes")
    words.append(row.run.library)
    return ", ".join(w for w in words if w) + "; busbw in GB/s"


@dataclass(frozen=True)
class Shown:
    """A table with the line above it and, where cells need a reason, the one below."""

    heading: str
    table: Table
    footnote: str = ""


_Column = tuple[str, str, list[str]]


def tables(
    rows: Sequence[Row],
    width: int,
    ascii_only: bool = False,
    expected: Callable[[Row], Expected] = lambda row: Expected(),
) -> list[Shown]:
    """A table a group. Columns that no row fills, or that ``width`` has no room for, are left out.

    ``expected``: what a row should take, to stand beside what it took.
    """
    return [_table(group, width, ascii_only, expected) for group in grouped(rows).values()]


def _table(
    rows: Sequence[Row], width: int, ascii_only: bool, expected: Callable[[Row], Expected]
) -> Shown:
    wide = width >= _WIDE
    models = [expected(r) for r in rows]
    columns: list[_Column] = [
        ("size", "right", [size_text(r.size if r.size is not None else r.message) for r in rows]),
        ("algorithm", "left", [marked(r) for r in rows]),
        ("transport", "left", [r.transport if wide else "" for r in rows]),
        ("time", "right", [seconds(r.time_s) for r in rows]),
        ("95 %", "right", [interval_text(r.low_s, r.high_s, r.time_s) for r in rows]),
        ("predicted", "right", [_optional(m.predicted) for m in models]),
        ("bound", "right", [_optional(m.bound) for m in models]),
        ("min", "right", [_optional(r.min_s) if wide else "" for r in rows]),
        ("p99", "right", [_optional(r.p99_s) if wide else "" for r in rows]),
        ("max", "right", [_optional(r.max_s) if wide else "" for r in rows]),
        ("algbw", "right", [rate(r.algbw_bytes_per_s) if wide else "" for r in rows]),
        ("busbw", "right", [rate(r.busbw_bytes_per_s) for r in rows]),
        ("limit", "right", [percent(share_of_limit(r)) for r in rows]),
        ("port out", "right", [_of_size(r.sent_bytes, r) for r in rows]),
        ("port in", "right", [_of_size(r.received_bytes, r) for r in rows]),
        ("links", "right", [_of_size(r.total_bytes, r) for r in rows]),
        ("J", "right", [_known(r.energy_per_op_j, ".3g") if wide else "" for r in rows]),
        ("J/GB", "right", [_known(_energy(r), ".3g") if wide else "" for r in rows]),
        ("cv", "right", [percent(r.cv) if wide else "" for r in rows]),
        ("n", "right", [str(r.iterations or "") for r in rows]),
        ("wrong", "right", [str(r.wrong) if r.wrong else "" for r in rows]),
        ("stopped", "left", [r.stopped if wide else "" for r in rows]),
    ]
    several = any(len(r.times_s) > 1 for r in rows)
    kept, room = _fitting(columns, width, _FEWEST_MARKS if several else 0, _SPARE)
    modelled = any(m != Expected() for m in models)
    if modelled and room < _FEWEST_MARKS:  # a model is asked for by name; iterations stand back
        return _of_rows(rows, kept, ascii_only)
    marks = max(_FEWEST_MARKS, min(_MOST_MARKS, room))
    title = "distribution" if marks >= len("distribution") else "spread"
    kept.append((title, "left", [sparkline(r.times_s, marks, ascii_only) for r in rows]))
    return _of_rows(rows, kept, ascii_only)


def _of_rows(rows: Sequence[Row], columns: Sequence[_Column], ascii_only: bool) -> Shown:
    """A table of a group, with what its marks mean below."""
    shown = _rich(heading(rows[0]), columns, [r.skipped for r in rows], ascii_only)
    notes = [shown.footnote] if shown.footnote else []
    notes += [SHARED] * any(marked(r) != r.algorithm for r in rows)
    counts = sorted({len(r.launches_s) for r in rows if isinstance(r, LaunchedRow)})
    if counts:
        several = " or ".join(map(str, counts))
        notes.append(f"time: the middle of {several} launches' medians; 95 %: over launches")
    return replace(shown, footnote="; ".join(notes))


def texts(rows: Sequence[Row], width: int, ascii_only: bool = False) -> list[str]:
    """`tables` as lines of text."""
    out = io.StringIO()
    screen = terminal(file=out, width=width, color_system=None, highlight=False, emoji=False)
    for shown in tables(rows, width, ascii_only):
        screen.print(shown.heading, markup=False, soft_wrap=True)
        screen.print(shown.table)
        if shown.footnote:
            screen.print(shown.footnote, markup=False)
    return out.getvalue().splitlines()


def _fitting(
    columns: Sequence[_Column], width: int, least: int, spare: Sequence[str]
) -> tuple[list[_Column], int]:
    """The columns that leave at least so much room beside them, and how much they leave."""
    kept = [c for c in columns if any(c[2])]

    def room() -> int:
        used = sum(max(len(name), *map(len, cells)) + _GAP for name, _, cells in kept)
        return width - used - _GAP - 1

    for name in spare:
        if room() >= least:
            break
        kept = [c for c in kept if c[0] != name]
    return kept, room()


def share_of_limit(row: Row) -> float | None:
    """Limit over time: the share that was reached of what the memory roofline of the run allows."""
    return of_limit(row.time_s, row.limit_s) if row.limit_s and row.time_s else None


def _of_size(nbytes: int | None, row: Row) -> str:
    """Bytes in units of the size, as in the closing table of a run: ``1.5n``."""
    return "" if nbytes is None or not row.size else f"{nbytes / row.size:.4g}n"


def _energy(row: Row) -> float | None:
    """Joules per GB of the size."""
    if row.energy_per_op_j is None or not row.size:
        return None
    return joules_per_gb(row.energy_per_op_j, row.size)


def _optional(value: float | None) -> str:
    return "" if value is None else seconds(value)


def _rich(
    heading: str,
    columns: Sequence[tuple[str, str, list[str]]],
    skipped: Sequence[str],
    ascii_only: bool,
) -> Shown:
    """A table from columns (name, side, cells), without the empty ones; skipped rows are dim."""
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    style = box.ASCII if ascii_only else box.SIMPLE_HEAD
    table = Table(box=style, pad_edge=False, padding=(0, 1, 0, 0))
    kept = [c for c in columns if any(c[2])]
    for name, justify, _ in kept:
        words = name in ("algorithm", "transport", "collective")
        side: Literal["left", "right"] = "right" if justify == "right" else "left"
        table.add_column(name, justify=side, no_wrap=not words, overflow="fold")
    for n, reason in enumerate(skipped):
        cells = [escape(values[n]) for _, _, values in kept]
        table.add_row(*cells, style="dim" if reason else "")
    reasons = dict.fromkeys(reason for reason in skipped if reason)
    return Shown(heading, table, "; ".join(f"N/A: {reason}" for reason in reasons))


def plain_table(
    heading: str,
    columns: Sequence[tuple[str, str, list[str]]],
    ascii_only: bool = False,
    width: int | None = None,
    spare: Sequence[str] = (),
) -> Shown:
    """A table of texts under a heading; columns are (name, side, texts), empty ones left out.

    Where it is wider than ``width``, the columns of ``spare`` are given up, the first first.
    """
    kept = list(columns) if width is None else _fitting(columns, width, 0, spare)[0]
    return _rich(heading, kept, [""] * len(columns[0][2]), ascii_only)


def import_table(rows: Sequence[Row], width: int, ascii_only: bool = False) -> Shown:
    """All rows of an import in one table; what is the same in all of them stands in the title."""
    same = (
        ("run", [str(r.run.number) for r in rows]),
        ("collective", [r.collective for r in rows]),
        ("ranks", [str(r.ranks or "") for r in rows]),
        ("type", [r.dtype for r in rows]),
        ("op", [r.op for r in rows]),
        ("algorithm", [r.algorithm for r in rows]),
        ("transport", [r.transport for r in rows]),
    )
    columns: list[tuple[str, str, list[str]]] = [
        ("line", "right", [str(r.line or "") for r in rows]),
        *((name, "left", texts) for name, texts in same if len(set(texts)) > 1),
        ("size", "right", [size_text(r.size if r.size is not None else r.message) for r in rows]),
        ("place", "left", [r.placement for r in rows]),
        ("time", "right", [seconds(r.time_s) for r in rows]),
        ("algbw", "right", [rate(r.algbw_bytes_per_s) if width >= _WIDE else "" for r in rows]),
        ("busbw", "right", [rate(r.busbw_bytes_per_s) for r in rows]),
        ("wrong", "right", ["" if r.wrong is None else str(r.wrong) for r in rows]),
    ]
    one = [
        t[0] + (" ranks" if n == "ranks" else "") for n, t in same[1:] if len(set(t)) == 1 and t[0]
    ]
    title = ", ".join([f"{rows[0].run.source}: {rows[0].run.format}, {len(rows)} rows", *one])
    return _rich(title, columns, [r.skipped for r in rows], ascii_only)


def comparison_tables(
    comparisons: Sequence[Comparison], width: int, ascii_only: bool = False
) -> list[Shown]:
    """A comparison, a table a measured thing; the change is that of the time: more is slower."""
    groups: dict[str, list[Comparison]] = {}
    for c in comparisons:
        groups.setdefault(setting(c.row.base), []).append(c)
    return [_compared(name, group, width, ascii_only) for name, group in groups.items()]


def _compared(name: str, comparisons: Sequence[Comparison], width: int, ascii_only: bool) -> Shown:
    wide = width >= _WIDE
    rows = [c.row.base for c in comparisons]
    new = [seconds(c.row.new_s) if wide else "" for c in comparisons]
    columns: list[tuple[str, str, list[str]]] = [
        ("size", "right", [size_text(r.size if r.size is not None else r.message) for r in rows]),
        ("algorithm", "left", [r.algorithm for r in rows]),
        ("base", "right", [seconds(c.row.base_s) for c in comparisons]),
        ("new", "right", new),
        ("change", "right", [f"{100 * (c.ratio - 1):+.1f}%" for c in comparisons]),
        ("95 %", "right", [bounds_text(c) for c in comparisons]),
        ("p", "right", [_known(c.p, ".2g") if wide else "" for c in comparisons]),
        ("effect", "right", [_known(c.effect, "+.2f") if wide else "" for c in comparisons]),
        ("NEW is", "left", [c.word for c in comparisons]),
    ]
    return plain_table(f"{name}: time of NEW against BASE", columns, ascii_only)


def counts_of(comparisons: Sequence[Comparison]) -> str:
    """How many rows got which word: ``2 slower, 30 indistinguishable``."""
    words = [c.word for c in comparisons]
    counts = ", ".join(f"{words.count(k)} {k}" for k in WORDS if k in words)
    return counts + ": one launch a side" * (CANNOT_TELL in words)


def remedy(comparisons: Sequence[Comparison]) -> str:
    """The commands that can tell what one launch a side cannot; empty where that is not so."""
    row = next((c.row.new for c in comparisons if c.word == CANNOT_TELL), None)
    if row is None:
        return ""
    door = "pt2pt" if row.collective in TESTS else row.collective
    # bench.step has no --launches.
    ours = row.run.format.startswith("busbar") and not row.collective.startswith(STEP)
    once = f"python -m bench.{door} --ranks {row.ranks} --launches 5" if ours else ""
    several = f"launch both several times ({once})" if once else "launch both several times"
    return (
        f"What differs from launch to launch is in no iteration of one: {several} and compare"
        " a*.jsonl -- b*.jsonl, or have them take turns: python -m bench.ab -- A -- B"
    )


def _known(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def bounds_text(c: Comparison) -> str:
    """The interval of a change in per cent; empty when nothing could be tested."""
    if c.low is None or c.high is None:
        return ""
    return f"{100 * (c.low - 1):+.1f} {100 * (c.high - 1):+.1f}"
