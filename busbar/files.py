"""Files: written so that they are complete at every moment, read up to a bound."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

from busbar.errors import BusbarError, StoreError, Unsupported
from busbar.sizes import human


def write(path: Path, data: bytes) -> None:
    """Write a file whole, or not at all. Raises StoreError."""
    write_all([(path, data)])


def write_all(files: Iterable[tuple[Path, bytes]]) -> None:
    """Write all of these files or none: first beside their places, then into place.

    Files may come one at a time, so that not all of them are in memory. A pipe, a terminal or
    /dev/null is written to directly and never replaced. Raises StoreError.
    """
    parts: dict[Path, Path] = {}
    path = Path()
    try:
        for path, data in files:
            if path.is_dir():
                raise StoreError(f"{path}: is a folder; name a file in it")
            if special(path):
                path.write_bytes(data)
                continue
            parts[path] = _neighbour(path)
            _beside(parts[path], data)
        for path, part in parts.items():
            _take(part, path)
    except OSError as error:
        raise StoreError(f"{path}: cannot be written: {error.strerror}") from None
    finally:  # an interrupt leaves no half file either
        for part in parts.values():
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)


def replace(path: Path, data: bytes) -> None:
    """Give a file new content, at once and on disk. Raises OSError; the file is then as it was.

    A symbolic link stays; the file that it points to is replaced.
    """
    if special(path):
        path.write_bytes(data)
        return
    part = _neighbour(path)
    try:
        _beside(part, data)
        _take(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def check(path: Path) -> None:
    """Raise StoreError now if a file could not be written after hours of measuring."""
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
            with _fresh(probe) as file:
                file.write(b"\n")
        finally:
            probe.unlink(missing_ok=True)
    except OSError as error:
        raise StoreError(f"{path}: cannot be written: {error.strerror}") from None


def special(path: Path) -> bool:
    """Whether it is a pipe, a terminal or a device: written to, never replaced."""
    return path.exists() and not path.is_file()


def append(file: int, data: bytes, wait: bool = True) -> None:
    """Append all of the data and ``wait`` for the disk.

    Raises OSError; the file is then as it was.
    """
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


def read(path: Path, most: int, error: type[BusbarError] = Unsupported) -> bytes:
    """A user's file of at most ``most`` bytes, of which no more is read than one byte beyond.

    Raises ``error``, which names the file and the reason.
    """
    try:
        with path.open("rb") as file:
            data = file.read(most + 1)
    except OSError as why:
        raise error(f"{str(path)[:255]}: cannot be read: {why.strerror}") from None
    if len(data) > most:
        raise error(f"{path}: more than {human(most)}; no file of this kind is so large")
    return data


def read_text(path: Path, most: int, error: type[BusbarError] = Unsupported) -> str:
    """As `read`, a text in UTF-8. Raises ``error``."""
    try:
        return read(path, most, error).decode("utf-8-sig")
    except UnicodeDecodeError as why:
        raise error(f"{path}: no UTF-8 text (byte {why.start})") from None


def decoded(data: bytes) -> str:
    """Decode a file: UTF-8, or UTF-16 by its byte order mark or where every other byte is 0."""
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return data.decode("utf-16", "replace")
    begin = data[:64]
    for order, at in (("utf-16-le", 1), ("utf-16-be", 0)):
        if len(begin) > 3 and not any(begin[at::2]):
            return data.decode(order, "replace")
    return data.decode("utf-8-sig", "replace")


def _neighbour(path: Path) -> Path:
    """A new name beside the file, or beside a link's target, so that a rename puts it in place.

    The name is random: in a shared folder nobody can guess it.
    """
    path = path.resolve()
    return path.with_name(f".{path.name}.{secrets.token_hex(8)}.part")


def _fresh(path: Path) -> BinaryIO:
    """Create and open a file. Fails where something is already there, such as a link."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.fdopen(os.open(path, flags, 0o666), "wb")


def _beside(part: Path, data: bytes) -> None:
    with _fresh(part) as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _take(part: Path, path: Path) -> None:
    path = path.resolve()
    part.replace(path)
    # A name is on disk when its folder is; not every file system can.
    with contextlib.suppress(OSError):
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _sync(file: int) -> None:
    try:
        os.fsync(file)
    except OSError as error:
        if error.errno != errno.EINVAL:  # a pipe has no disk to wait for
            raise
