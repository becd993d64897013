"""Files that are whole at every moment: replaced at once, or grown by one write at a time."""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path

from busbar.errors import StoreError

__all__ = ["append", "check", "replace", "special", "write"]


def write(path: Path, data: bytes) -> None:
    """Write a file whole, or not at all. Raises StoreError."""
    try:
        replace(path, data)
    except OSError as error:
        raise StoreError(f"{path}: cannot be written: {error.strerror}") from None


def check(path: Path) -> None:
    """Raise StoreError at once where a file could not be written after hours of measuring."""
    folder = path.parent
    if path.is_dir():
        raise StoreError(f"{path}: is a folder; name a file in it")
    if not folder.is_dir():
        raise StoreError(f"{path}: there is no folder {folder}")
    try:
        if special(path):
            with path.open("ab"):
                return
        probe = _neighbour(path)
        try:
            probe.write_bytes(b"\n")
        finally:
            probe.unlink(missing_ok=True)
    except OSError as error:
        raise StoreError(f"{path}: cannot be written: {error.strerror}") from None


def special(path: Path) -> bool:
    """A pipe, a terminal, /dev/full: written to, never replaced."""
    return path.exists() and not path.is_file()


def _neighbour(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}.part")


def append(file: int, data: bytes, wait: bool = True) -> None:
    """Append all of the data and ``wait`` for the disk. Raises OSError; the file is then as it was."""
    size = os.fstat(file).st_size
    try:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(file, rest) :]
        if wait:
            _sync(file)
    except OSError:
        with contextlib.suppress(OSError):
            os.ftruncate(file, size)
        raise


def replace(path: Path, data: bytes) -> None:
    """Give a file new content, at once and on disk. Raises OSError; the file is then as it was.

    What a link leads to gets it, and the link stays.
    """
    if special(path):
        path.write_bytes(data)
        return
    path = path.resolve()
    part = _neighbour(path)
    try:
        with part.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
        _sync_folder(path.parent)
    except BaseException:  # an interrupt leaves no half file either
        part.unlink(missing_ok=True)
        raise


def _sync(file: int) -> None:
    try:
        os.fsync(file)
    except OSError as error:
        if error.errno != errno.EINVAL:  # a pipe has no disk to wait for
            raise


def _sync_folder(folder: Path) -> None:
    """A name is on disk when its folder is."""
    with contextlib.suppress(OSError):  # not every file system can
        file = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(file)
        finally:
            os.close(file)
