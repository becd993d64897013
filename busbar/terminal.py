"""Text that is safe to print, and the terminal that it is printed to.

Names in a file from elsewhere may contain terminal escapes. `make_printable` is the one function
that removes them. A command's standard output and error apply it to all that is printed
(`plain_streams`), so that no text of others can go round it.
"""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Iterable, Iterator
from textwrap import wrap
from typing import TYPE_CHECKING, Any, TextIO, cast
from unicodedata import category

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment

_COLOUR = re.compile(
    r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\n]*\x07|[()][0-9A-Za-z]|[@-Z\\-_])", re.ASCII
)
# What web forms leave of a colour: the escape character shown, written out or lost.
_WRECKED = re.compile(
    r"(?:[\u241b\ufffd]|\^\[|\\(?:x1b|u001b|033|e))?\[(?:\d{1,3}(?:;\d{1,3}){0,4})?m", re.ASCII
)


def make_printable(text: str) -> str:
    """Return a word or a line with ``?`` for line breaks and for all that cannot be seen."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or category(c) == "Zs" else "?" for c in text)


def make_lines_printable(text: str) -> str:
    """Return a text with ``?`` for all that cannot be seen but its line breaks and tabs."""
    if text.replace("\n", "").replace("\t", "").isprintable():
        return text
    return "".join(c if c in "\n\t" else make_printable(c) for c in text)


def strip_escapes(text: str) -> str:
    """Remove a terminal's commands, also as a web form leaves them."""
    if "\x1b" in text:
        text = _COLOUR.sub("", text)
    return _WRECKED.sub("", text) if "m" in text and "[" in text else text


def print_note(text: str) -> None:
    """Print a line that is no result to standard error, with our prefix."""
    print(f"busbar: {make_printable(text)}", file=sys.stderr, flush=True)


class PlainStream:
    """A text stream that writes printable characters, line breaks and tabs only.

    ``styled``: the stream below, for what Busbar itself draws: colours and bars of progress.
    """

    def __init__(self, styled: TextIO) -> None:
        self.styled = styled

    def write(self, text: str) -> int:
        """Write a text, made printable, as `io.TextIOBase.write` does."""
        return self.styled.write(make_lines_printable(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.styled, name)


def styled_stream(stream: TextIO) -> TextIO:
    """Return the stream that takes terminal escapes; texts for it must be made printable first."""
    return stream.styled if isinstance(stream, PlainStream) else stream


@contextlib.contextmanager
def plain_streams() -> Iterator[None]:
    """Make standard output and error a `PlainStream` each."""
    before = sys.stdout, sys.stderr
    plain = [s if isinstance(s, PlainStream) else PlainStream(s) for s in before]
    sys.stdout, sys.stderr = cast("tuple[TextIO, TextIO]", tuple(plain))
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def open_console(**options: Any) -> Console:
    """Return rich's Console with these options.

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
            for segment in super().render(renderable, options):
                text = make_lines_printable(segment.text)
                yield segment if segment.control else segment._replace(text=text)

    stream = sys.stderr if options.pop("stderr", False) else sys.stdout
    return Terminal(**{"file": styled_stream(stream), **options})


def wrap_line(line: str, width: int, indent: int) -> list[str]:
    """Break a line into several of ``width`` columns, 40 at least; words stay whole."""
    return wrap(
        line,
        max(width, 40),
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
