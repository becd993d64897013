"""Make text safe to print, and open the terminal that it is printed to.

Names in a file from elsewhere may contain terminal escapes. `make_printable` is the one function
that replaces them. A command's standard output and error apply it to everything that is printed
(`plain_streams`), so that no foreign text is printed without it.
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
# Colour escapes as web forms change them: the escape character is visible, written out or lost.
_WRECKED = re.compile(
    r"(?:[\u241b\ufffd]|\^\[|\\(?:x1b|u001b|033|e))?\[(?:\d{1,3}(?:;\d{1,3}){0,4})?m", re.ASCII
)


def make_printable(text: str) -> str:
    """Return a word or a line with ``?`` in place of line breaks and invisible characters."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or category(c) == "Zs" else "?" for c in text)


def make_lines_printable(text: str) -> str:
    """Return a text with ``?`` in place of invisible characters; line breaks and tabs stay."""
    if text.replace("\n", "").replace("\t", "").isprintable():
        return text
    return "".join(c if c in "\n\t" else make_printable(c) for c in text)


def strip_escapes(text: str) -> str:
    """Remove terminal escapes, also in the form that web forms leave of them."""
    if "\x1b" in text:
        text = _COLOUR.sub("", text)
    return _WRECKED.sub("", text) if "m" in text and "[" in text else text


def shorten(text: str, most: int) -> str:
    """A text of at most about ``most`` characters, cut between words if it has short ones."""
    if len(text) <= most:
        return text
    whole, _, word = text[: most + 1].rpartition(" ")
    return f"{whole} …" if whole and len(word) < most // 2 else f"{text[:most]}…"


def print_note(text: str, name: str = "busbar") -> None:
    """Write a line that is no result to standard error at once, with a prefix such as ``busbar:``.

    What was printed before it comes before it, where both streams go to one file.
    """
    with contextlib.suppress(OSError, ValueError):  # its reader has left, or it is closed
        if sys.stdout is not None:
            sys.stdout.flush()
    print(f"{name}: {make_printable(text)}\n", end="", file=sys.stderr, flush=True)


class PlainStream:
    """A text stream that writes printable characters, line breaks and tabs only.

    ``styled``: the underlying stream, for escapes of Busbar itself: colours and progress bars.
    """

    def __init__(self, styled: TextIO) -> None:
        self.styled = styled

    def write(self, text: str) -> int:
        """Make a text printable and write it, as `io.TextIOBase.write` does."""
        return self.styled.write(make_lines_printable(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.styled, name)


def styled_stream(stream: TextIO) -> TextIO:
    """Return the stream that takes terminal escapes; texts for it must be made printable first."""
    return stream.styled if isinstance(stream, PlainStream) else stream


@contextlib.contextmanager
def plain_streams() -> Iterator[None]:
    """A context in which standard output and error write printable characters only.

    See `PlainStream`.
    """
    before = sys.stdout, sys.stderr
    plain = [s if isinstance(s, PlainStream) else PlainStream(s) for s in before]
    sys.stdout, sys.stderr = cast("tuple[TextIO, TextIO]", tuple(plain))
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def open_console(**options: Any) -> Console:
    """Return rich's Console with these options.

    Its colours reach the terminal; texts printed with it are made printable. A closed pipe raises
    BrokenPipeError, which `busbar.process` handles.
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
    """Break a line into lines of ``width`` characters (at least 40); words are not broken.

    A line break begins a command, which stays on a line of its own, however long, for copying.
    """
    text, *commands = line.split("\n")
    lines = wrap(
        text,
        max(width, 40),
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [*lines, *(" " * indent + command for command in commands)]
