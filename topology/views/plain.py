"""Text that is safe to print: names in a file that someone sent may hold terminal commands."""

from __future__ import annotations


def plain(text: str) -> str:
    """Return lines with every control and unprintable character but newline and tab as ``?``."""
    return "".join(c if c in "\n\t" or c.isprintable() else "?" for c in text)


def plain_word(text: str) -> str:
    """Return a name that stands within a line: newlines and tabs are ``?`` as well."""
    return "".join(c if c.isprintable() else "?" for c in text)
