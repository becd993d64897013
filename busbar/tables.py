"""Tables for terminals, in Markdown and as CSV, and distributions drawn as a line of blocks.

A table is a sequence of columns of texts. For terminals it is drawn by rich (`render_rich`) or as
plain lines (`render_lines`), which also serve as comments in tables like those of nccl-tests.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeVar

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.table import Table

K = TypeVar("K")
#: From this terminal width on, optional columns are shown.
WIDE = 110
#: Blanks between columns.
GAP = 2
#: The column's name, the side to which it is aligned, and its cells.
Column = tuple[str, Literal["left", "right"], list[str]]

# Spreadsheets take texts that begin with these for formulas: OWASP, "CSV injection".
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
_BLOCKS = "▁▂▃▄▅▆▇█"
_ASCII = ".:-=+*#@"
_MANY = 200


@dataclass(frozen=True)
class RenderedTable:
    """A table with the line above it; ``footnote``: why rows have no figures, if there are any."""

    heading: str
    table: Table
    footnote: str = ""


def split_columns(widths: Mapping[K, int], room: int) -> Iterator[list[K]]:
    """Split columns, given by their widths with gaps, into blocks that fit into ``room``."""
    block, used = list[K](), 0
    for column, width in widths.items():
        if block and used + width > room:
            yield block
            block, used = [], 0
        block.append(column)
        used += width
    yield block


def fit_columns(
    columns: Sequence[Column], width: int, spare: Sequence[str]
) -> tuple[list[Column], int]:
    """Return the columns that fit into ``width``, and the number of characters that are left.

    Columns named in ``spare`` are dropped in this order until the others fit. Empty columns are
    always dropped. If the number is negative, the columns that are never dropped are too wide.
    """
    remaining = [c for c in columns if any(c[2])]

    def room() -> int:
        return width - sum(max(len(name), *map(len, cells)) + GAP for name, _, cells in remaining)

    for name in spare:
        if room() >= 0:
            break
        remaining = [c for c in remaining if c[0] != name]
    return remaining, room()


def new_table(title: str, *columns: str, text: int = 1, **options: Any) -> Table:
    """Return a table of rich. Its first ``text`` columns are words, the others are numbers.

    Rich draws the table in ASCII if the terminal has no UTF-8.
    """
    from rich import box
    from rich.table import Table

    class Whole(Table):
        """A table that is wider than the terminal where its columns' least widths are."""

        def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
            least = sum((column.min_width or 1) + GAP for column in self.columns)
            room = options.update(max_width=max(least, options.max_width))
            return super().__rich_console__(console, room)

    options = {"title": title or None, "title_justify": "left", **options}
    table = Whole(box=box.SIMPLE_HEAD, pad_edge=False, **options)
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
    """Draw the columns that are not empty and that fit into ``width``, if it is given.

    ``spare``: see `fit_columns`. No text is cut: a name of several words may be wrapped between
    them, and a table that is still too wide exceeds the terminal. ``skipped``: for each row the
    reason why it has no figures, or empty. Such rows are dim, and the footnote has the reasons.
    """
    from rich.markup import escape

    table = new_table("", padding=(0, 1, 0, 0))
    shown = [c for c in columns if any(c[2])]
    shown = shown if width is None else fit_columns(shown, width, spare)[0]
    for name, side, cells in shown:
        wraps = name in ("algorithm", "transport", "collective")
        texts = [name, *(word for text in cells for word in (text.split() if wraps else [text]))]
        least = max(map(len, texts))
        table.add_column(name, justify=side, no_wrap=not wraps, min_width=least)
    for n in range(len(columns[0][2])):
        cells = [escape(values[n]) for _, _, values in shown]
        table.add_row(*cells, style="dim" if skipped and skipped[n] else "")
    reasons = dict.fromkeys(filter(None, skipped))
    return RenderedTable(heading, table, "; ".join(f"N/A: {reason}" for reason in reasons))


def render_lines(
    columns: Iterable[Column], least: Sequence[int] = (), gap: str = " " * GAP
) -> list[str]:
    """Return a line of heads and a line per row; each column is as wide as its widest text.

    ``least``: the least width of each column, by position.
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
    """Return the lines of a Markdown table. ``columns``: heads, with ``left`` or ``right`` each."""
    sides = "|".join(right if side == "right" else "---" for _, side in columns)
    lines = [[head for head, _ in columns], *rows]
    head, *body = ("| " + " | ".join(cells) + " |" for cells in lines)
    return [head.replace("|  |", "| |"), f"|{sides}|", *body]


def render_csv(rows: Iterable[Iterable[Any]], end: str = "\n") -> str:
    """Return rows as CSV (RFC 4180). `escape_cell` is applied to each cell; None is empty."""
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
    """True for a formula, even after apostrophes, so that `unescape_cell` restores the text."""
    return text.lstrip("'").startswith(_FORMULA)


def draw_sparkline(values: Sequence[float], width: int = 16, ascii_only: bool = False) -> str:
    """Return a histogram of values in ``width`` blocks, from the lowest value to the highest."""
    if not values:
        return ""
    marks = _ASCII if ascii_only else _BLOCKS
    low, high = min(values), max(values)
    if high <= low:
        return marks[-1]
    if len(values) > _MANY:
        import numpy as np

        counts = np.histogram(values, width, (low, high))[0].tolist()
    else:  # for the few values of a row this is several times as fast as numpy
        counts = [0] * width
        for value in values:
            counts[min(width - 1, int((value - low) / (high - low) * width))] += 1
    most = max(counts)
    return "".join(" " if not c else marks[-(-c * len(marks) // most) - 1] for c in counts)


def draw_trend(values: Sequence[float], cuts: Sequence[int] = (), ascii_only: bool = False) -> str:
    """Return a block per value, as high as the value; ``|`` stands before values in ``cuts``."""
    if not values:
        return ""
    marks = _ASCII if ascii_only else _BLOCKS
    low, high = min(values), max(values)
    scale = (len(marks) - 1) / (high - low) if high > low else 0.0
    return "".join(
        ("|" if n in cuts else "") + marks[round((v - low) * scale)] for n, v in enumerate(values)
    )
