"""The terminal that tables are printed to, by rich."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from busbar.printable import printable_lines, styled

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment


def terminal(**options: Any) -> Console:
    """Rich's Console with these options.

    Its styles reach the terminal; the texts that it is given are made printable. A closed pipe is
    left to `busbar.process`.
    """
    from rich.console import Console

    class Terminal(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # rich would leave with status 1

        def render(
            self, renderable: RenderableType, options: ConsoleOptions | None = None
        ) -> Iterable[Segment]:
            for one in super().render(renderable, options):
                yield one if one.control else one._replace(text=printable_lines(one.text))

    stream = sys.stderr if options.pop("stderr", False) else sys.stdout
    return Terminal(**{"file": styled(stream), **options})


def wrapped(line: str, width: int, indent: int) -> list[str]:
    """A line in several of ``width`` columns, 40 at least; words stay whole."""
    return wrap(
        line,
        max(width, 40),
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
