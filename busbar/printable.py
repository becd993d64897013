"""Text that is safe to print: names in a file from elsewhere may contain terminal escapes.

`printable` is the one function that makes it so. A command's standard output and error apply it to
all that is printed (`plain_streams`), so that no text of others can go round it.
"""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Iterator
from typing import Any, TextIO, cast
from unicodedata import category

_COLOUR = re.compile(
    r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\n]*\x07|[()][0-9A-Za-z]|[@-Z\\-_])", re.ASCII
)
# What web forms leave of a colour: the escape character shown, written out or lost.
_WRECKED = re.compile(
    r"(?:[\u241b\ufffd]|\^\[|\\(?:x1b|u001b|033|e))?\[(?:\d{1,3}(?:;\d{1,3}){0,4})?m", re.ASCII
)


def printable(text: str) -> str:
    """A word or a line: a question mark for line breaks and all that cannot be seen."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or category(c) == "Zs" else "?" for c in text)


def printable_lines(text: str) -> str:
    """The same of a text whose line breaks and tabs are meant."""
    if text.replace("\n", "").replace("\t", "").isprintable():
        return text
    return "".join(c if c in "\n\t" else printable(c) for c in text)


def uncoloured(text: str) -> str:
    """A text without a terminal's commands, whole or as a web form wrecked them."""
    if "\x1b" in text:
        text = _COLOUR.sub("", text)
    return _WRECKED.sub("", text) if "m" in text and "[" in text else text


def note(text: str) -> None:
    """Say something that is no result, on standard error, in a line of ours."""
    print(f"busbar: {printable(text)}", file=sys.stderr, flush=True)


class PlainStream:
    """A text stream that writes printable characters, line breaks and tabs only.

    ``styled``: the stream below, for what Busbar itself draws: colours and bars of progress.
    """

    def __init__(self, styled: TextIO) -> None:
        self.styled = styled

    def write(self, text: str) -> int:
        """As `io.TextIOBase.write`."""
        return self.styled.write(printable_lines(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.styled, name)


def styled(stream: TextIO) -> TextIO:
    """Return the stream that takes terminal escapes; what is written there is printable before."""
    return stream.styled if isinstance(stream, PlainStream) else stream


@contextlib.contextmanager
def plain_streams() -> Iterator[None]:
    """Make standard output and error a `PlainStream` each."""
    before = sys.stdout, sys.stderr
    plain = [one if isinstance(one, PlainStream) else PlainStream(one) for one in before]
    sys.stdout, sys.stderr = cast("tuple[TextIO, TextIO]", tuple(plain))
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
