"""Text that is safe to print: names in a file from elsewhere may contain terminal escapes."""

from __future__ import annotations

from unicodedata import category


def printable(text: str) -> str:
    """A word or a line: a question mark for line breaks and all that cannot be seen."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or category(c) == "Zs" else "?" for c in text)


def printable_lines(text: str) -> str:
    """The same of a text whose line breaks and tabs are meant."""
    return "".join(c if c in "\n\t" else printable(c) for c in text)
