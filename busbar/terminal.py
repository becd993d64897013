"""The terminal that tables are printed to, by rich."""

from __future__ import annotations

from textwrap import wrap
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console


def terminal(**options: Any) -> Console:
    """Rich's Console with these options.

    A closed pipe is left to `busbar.process`.
    """
    from rich.console import Console

    class Terminal(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # rich would leave with status 1

    return Terminal(**options)


def wrapped(line: str, width: int, indent: int) -> list[str]:
    """A line in several of ``width`` columns, 40 at least; words stay whole."""
    return wrap(
        line,
        max(width, 40),
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
