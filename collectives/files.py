"""Files that are written whole or not at all."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from busbar.errors import Unsupported

__all__ = ["write"]


def write(files: Mapping[Path, bytes] | Iterable[tuple[Path, bytes]]) -> None:
    """Write all of these or none: each beside its place first, then all into their places.

    Files may come one at a time, so that not all of them need to be in memory.

    What is no file (a pipe, a terminal, /dev/null) is written to, never replaced, and so is what a
    link leads to. Raises Unsupported, with the name and the reason.
    """
    parts: dict[Path, Path] = {}
    try:
        for path, data in files.items() if isinstance(files, Mapping) else files:
            if path.is_dir():
                raise IsADirectoryError(0, "it is a folder")
            place = path.resolve()
            if path.exists() and not path.is_file():
                place.write_bytes(data)
                continue
            parts[place] = place.with_name(f".{place.name}.{os.getpid()}.part")
            parts[place].write_bytes(data)
        for path, part in parts.items():
            part.replace(path)
    except OSError as error:
        raise Unsupported(f"cannot write {path}: {error.strerror}") from None
    finally:  # an interrupt leaves no half file either
        for part in parts.values():
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)
