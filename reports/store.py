"""The one file that writes results: after every row, whole and atomically."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from reports.errors import ReportError
from reports.exports import EXPORTS
from reports.record import Result

__all__ = ["Store", "StoreError", "export_for", "write"]

Export = Callable[[Sequence[Result]], bytes]


class StoreError(ReportError):
    """A result file cannot be written; the message names it and the reason."""


def export_for(path: Path) -> Export:
    """The export that a file's ending asks for. Raises StoreError with the endings there are."""
    if path.suffix not in EXPORTS:
        known = ", ".join(EXPORTS)
        raise StoreError(
            f"{path}: no format for {path.suffix or 'no ending'!r}; use one of {known}"
        )
    return EXPORTS[path.suffix]


class Store:
    """Result files that are complete after every row.

    Each write goes to a neighbour that then takes the file's name, so a reader, a full disk or a
    kill never sees half a file. Raises StoreError at once when a file cannot be written at all.
    """

    def __init__(self, targets: Sequence[tuple[Path, Export]]) -> None:
        self._targets = list(targets)
        self._results: list[Result] = []
        for path, _ in self._targets:
            self._check(path)

    @staticmethod
    def _check(path: Path) -> None:
        folder = path.parent
        if path.is_dir():
            raise StoreError(f"{path}: is a folder; name a file in it")
        if not folder.is_dir():
            raise StoreError(f"{path}: there is no folder {folder}")
        try:
            if path.exists() and not path.is_file():  # a pipe, a terminal, /dev/full
                with path.open("ab"):
                    return
            probe = _neighbour(path)
            probe.write_bytes(b"\n")
            probe.unlink()
        except OSError as error:
            raise StoreError(f"{path}: cannot be written: {error.strerror}") from None

    def add(self, result: Result) -> None:
        """Keep a row: on return it is on disk in every file. Raises StoreError when one fails."""
        self._results.append(result)
        for path, export in self._targets:
            try:
                _replace(path, export(self._results))
            except OSError as error:
                raise StoreError(
                    f"{path}: cannot be written: {error.strerror}; it still holds the rows before"
                ) from None


def write(path: Path, data: bytes) -> None:
    """Write a file whole, or not at all. Raises StoreError."""
    try:
        _replace(path, data)
    except OSError as error:
        raise StoreError(f"{path}: cannot be written: {error.strerror}") from None


def _neighbour(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}.part")


def _replace(path: Path, data: bytes) -> None:
    if path.exists() and not path.is_file():
        path.write_bytes(data)
        return
    part = _neighbour(path)
    try:
        with part.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except OSError:
        part.unlink(missing_ok=True)
        raise
