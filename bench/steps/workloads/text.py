"""Reads a small text file of the user, with a size bound and one-line errors."""

from __future__ import annotations

from pathlib import Path

from busbar.errors import Unsupported

_MOST_BYTES = 16 << 20


def text_of(path: Path) -> str:
    """The text of a file, UTF-8. Raises Unsupported, naming the file."""
    try:
        with path.open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise Unsupported(f"{path}: cannot be read: {error.strerror}") from None
    if len(data) > _MOST_BYTES:
        raise Unsupported(f"{path}: more than {_MOST_BYTES >> 20} MiB; it is no table of this kind")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise Unsupported(f"{path}: no UTF-8 text (byte {error.start})") from None
