"""Tables for terminals, for pages in Markdown and as CSV, and distributions as a line of blocks.

A table is a sequence of columns of texts. Terminals get it drawn by rich (`render_rich`) or as
plain lines, which are also comments of nccl-tests' table (`render_lines`).
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeVar

if TYPE_CHECKING:
    from rich.table import Table

K = TypeVar("K")
#: From this terminal width on, optional columns are shown.
WIDE = 110
#: Blanks between columns.
GAP = 2
#: Name, side and cells.
Column = tuple[str, Literal["left", "right"], list[str]]

# A spreadsheet takes a text that begins so for a formula: OWASP, "CSV injection".
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
_BLOCKS = "▁▂▃▄▅▆▇█"
_ASCII = ".:-=+*#@"
_MANY = 200


@dataclass(frozen=True)
class RenderedTable:
    """A table with the line above it and, where cells need a reason, the one below."""

    heading: str
    table: Table
    footnote: str = ""


def split_columns(widths: Mapping[K, int], room: int) -> Iterator[list[K]]:
    """Yield columns, given their widths with gaps, in blocks of as many as fit, at least one."""
    block, used = list[K](), 0
    for column, width in widths.items():
        if block and used + width > room:
            yield block
            block, used = [], 0
        block.append(column)
        used += width
    yield block


def fit_columns(
    columns: Sequence[Column], width: int, spare: Sequence[str], least: int = 0
) -> tuple[list[Column], int]:
    """Return the columns that fit into ``width``, and the characters that are left beside them.

    At least ``least`` are left where possible: the columns of ``spare`` are dropped for that, in
    this order. Empty columns are always dropped.
    """
    remaining = [c for c in columns if any(c[2])]

    def room() -> int:
        used = sum(max(len(name), *map(len, cells)) + GAP for name, _, cells in remaining)
        return width - used - GAP - 1

    for name in spare:
        if room() >= least:
            break
        remaining = [c for c in remaining if c[0] != name]
    return remaining, room()


def new_table(title: str, *columns: str, text: int = 1, **options: Any) -> Table:
    """Return rich's table; its first ``text`` columns are words, the others numbers.

    Rich draws it in ASCII where the terminal has no UTF-8.
    """
    from rich import box
    from rich.table import Table

    options = {"title": title or None, "title_justify": "left", **options}
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, **options)
    for i, column in enumerate(columns):
        table.add_column(column, justify="left" if i < text else "right", overflow="fold")
    return table


def render_rich(
    heading: str,
    columns: Sequence[Column],
    width: int | None = None,
    spare: Sequence[str] = (),
    skipped: Sequence[str] = (),
) -> RenderedTable:
    """Draw the columns that are not empty and, where it has a ``width``, that fit.

    ``spare``: see `fit_columns`. ``skipped``: why a line has no figures, for each line; such lines
    are dim, and the footnote has the reasons.
    """
    from rich.markup import escape

    table = new_table("", padding=(0, 1, 0, 0))
    shown = [c for c in columns if any(c[2])]
    shown = shown if width is None else fit_columns(shown, width, spare)[0]
    for name, side, _ in shown:
        words = name in ("algorithm", "transport", "collective")
        table.add_column(name, justify=side, no_wrap=not words, overflow="fold")
    for n in range(len(columns[0][2])):
        cells = [escape(values[n]) for _, _, values in shown]
        table.add_row(*cells, style="dim" if skipped and skipped[n] else "")
    reasons = dict.fromkeys(filter(None, skipped))
    return RenderedTable(heading, table, "; ".join(f"N/A: {reason}" for reason in reasons))


def render_lines(
    columns: Iterable[Column], least: Sequence[int] = (), gap: str = " " * GAP
) -> list[str]:
    """Return a line of heads and one a row, each column as wide as its widest text.

    ``least``: the width that columns have at least, by position.
    """
    padded = []
    minima = iter(least)
    for head, side, cells in columns:
        texts = [head, *cells]
        width = max(next(minima, 0), *map(len, texts))
        padded.append([f"{text:{'<' if side == 'left' else '>'}{width}}" for text in texts])
    lines = [gap.join(cells) for cells in zip(*padded, strict=True)]
    return [line.rstrip() for line in lines] if side == "left" else lines


def render_markdown(
    columns: Sequence[tuple[str, str]], rows: Iterable[Sequence[str]], right: str = "---:"
) -> list[str]:
    """Return the lines of a table: ``columns`` are heads with ``left`` or ``right`` each."""
    sides = "|".join(right if side == "right" else "---" for _, side in columns)
    lines = [[head for head, _ in columns], *rows]
    head, *body = ("| " + " | ".join(cells) + " |" for cells in lines)
    return [head.replace("|  |", "| |"), f"|{sides}|", *body]


def render_csv(rows: Iterable[Iterable[Any]], end: str = "\n") -> str:
    """Return rows as CSV (RFC 4180), each cell made safe by `escape_cell`; None is empty."""
    text = io.StringIO()
    csv.writer(text, lineterminator=end).writerows(map(escape_cell, row) for row in rows)
    return text.getvalue()


def escape_cell(value: Any) -> Any:
    """Put an apostrophe before a text that a spreadsheet would take for a formula."""
    return f"'{value}" if isinstance(value, str) and _is_formula(value) else value


def unescape_cell(text: str) -> str:
    """Return the text that `escape_cell` was given."""
    return text[1:] if text[:1] == "'" and _is_formula(text) else text


def _is_formula(text: str) -> bool:
    """True for a formula, also behind apostrophes, which would be taken for those of ours."""
    return text.lstrip("'").startswith(_FORMULA)


def draw_sparkline(values: Sequence[float], width: int = 16, ascii_only: bool = False) -> str:
    """Return a histogram of values between their extremes, in ``width`` blocks; blank for none."""
    if not values:
        return ""
    marks = _ASCII if ascii_only else _BLOCKS
    low, high = min(values), max(values)
    if high <= low:
        return marks[-1]
    if len(values) > _MANY:
        import numpy as np

        counts = np.histogram(values, width, (low, high))[0].tolist()
    else:  # several times as fast as numpy for the few values that a row has
        counts = [0] * width
        for value in values:
            counts[min(width - 1, int((value - low) / (high - low) * width))] += 1
    most = max(counts)
    return "".join(" " if not c else marks[-(-c * len(marks) // most) - 1] for c in counts)


def draw_trend(values: Sequence[float], cuts: Sequence[int] = (), ascii_only: bool = False) -> str:
    """Return a block a value, as high as the value between the extremes, and ``|`` before cuts."""
    if not values:
        return ""
    marks = _ASCII if ascii_only else _BLOCKS
    low, high = min(values), max(values)
    scale = (len(marks) - 1) / (high - low) if high > low else 0.0
    return "".join(
        ("|" if n in cuts else "") + marks[round((v - low) * scale)] for n, v in enumerate(values)
    )
