"""Tables for a terminal: columns of texts under a heading, those of them that fit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeVar

if TYPE_CHECKING:
    from rich.table import Table

K = TypeVar("K")
#: From this terminal width on, optional columns are shown.
WIDE = 110
#: Blanks between columns.
GAP = 2
#: Name, side and cells.
Column = tuple[str, Literal["left", "right"], list[str]]


@dataclass(frozen=True)
class Shown:
    """A table with the line above it and, where cells need a reason, the one below."""

    heading: str
    table: Table
    footnote: str = ""


def blocks(widths: Mapping[K, int], room: int) -> Iterator[list[K]]:
    """Columns by their widths, gaps included, in blocks of as many as fit, at least one."""
    block, used = list[K](), 0
    for column, width in widths.items():
        if block and used + width > room:
            yield block
            block, used = [], 0
        block.append(column)
        used += width
    yield block


def fitting(
    columns: Sequence[Column], width: int, spare: Sequence[str], least: int = 0
) -> tuple[list[Column], int]:
    """The columns that leave at least so much room beside them, and how much they leave.

    Those of ``spare`` are given up where there is no room, the first first; empty ones always.
    """
    kept = [c for c in columns if any(c[2])]

    def room() -> int:
        used = sum(max(len(name), *map(len, cells)) + GAP for name, _, cells in kept)
        return width - used - GAP - 1

    for name in spare:
        if room() >= least:
            break
        kept = [c for c in kept if c[0] != name]
    return kept, room()


def table(
    heading: str,
    columns: Sequence[Column],
    width: int | None = None,
    spare: Sequence[str] = (),
    skipped: Sequence[str] = (),
) -> Shown:
    """A table of the columns that are not empty and, where it has a ``width``, that fit.

    ``spare``: see `fitting`. ``skipped``: why a line has no figures, for each line; such lines are
    dim, and the footnote has the reasons.
    """
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    # Rich draws it in ASCII where the terminal has no UTF-8.
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    kept = [c for c in columns if any(c[2])]
    kept = kept if width is None else fitting(kept, width, spare)[0]
    for name, side, _ in kept:
        words = name in ("algorithm", "transport", "collective")
        made.add_column(name, justify=side, no_wrap=not words, overflow="fold")
    for n in range(len(columns[0][2])):
        cells = [escape(values[n]) for _, _, values in kept]
        made.add_row(*cells, style="dim" if skipped and skipped[n] else "")
    reasons = dict.fromkeys(filter(None, skipped))
    return Shown(heading, made, "; ".join(f"N/A: {reason}" for reason in reasons))
