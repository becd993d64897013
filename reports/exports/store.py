"""Writes results row by row, so that a killed run keeps its rows; no other module writes them.

JSON lines and CSV are appended to: a row is one write and is then synced to disk, so a power cut
loses at most that row. JSON and Parquet have an end, so the whole file is written to a temporary
file, which then replaces the old one.
"""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from threading import Lock
from typing import NamedTuple, Protocol

from busbar.errors import StoreError
from busbar.files import Claim, GrowingFile, check, replace, special, write
from reports.exports.formats import CsvLines, nccl_json, to_object
from reports.readers.codec import Writer, to_json
from reports.records.measurement import Measurement

__all__ = ["Directory", "Sink", "Store", "StoreError", "nccl_sink", "sink", "write"]

#: What may stand in a run directory, by the name without its number.
RECORDS, ENVIRONMENT, TOPOLOGY, OUTPUT = (
    "records.jsonl", "environment.json", "topology.json", "output.txt",
)  # fmt: skip


Row = Sequence[Measurement]
"""The measurements of one case: its placements."""
#: What makes the bytes to append for a row.
Lines = Callable[[Row], bytes]


class Earlier(NamedTuple):
    """What a file begins with: ``lines`` as they stand in it, then ``rows`` of earlier launches.

    ``lines``: of JSON lines, unpacked and whole, which are written again byte for byte.
    """

    rows: Row = ()
    lines: bytes = b""


_NOTHING = Earlier()


class Sink(Protocol):
    """A file, or a folder of files, that results go to."""

    path: Path

    def add(self, row: Row) -> None:
        """Put a row on disk. Raises OSError."""
        ...

    def close(self) -> None:
        """The run is over. Raises OSError."""
        ...


class Appended:
    """A file that grows by whole rows; the first row replaces what the file held before.

    ``form`` makes what turns rows into lines. ``earlier``: what stands before them. Where the file
    is gone, all of it is written anew.
    """

    def __init__(
        self,
        path: Path,
        form: Callable[[], Lines],
        earlier: Earlier = _NOTHING,
        packed: bool = False,
    ) -> None:
        check(path)
        self.path, self._form, self._packed = path, form, packed
        self._earlier_lines = earlier.lines
        self._claim = Claim(path)
        self._file = _growing(path, self._anew)
        # A pipe or terminal has received them already.
        self._rows = [] if self._file.special else list(earlier.rows)
        self._begin()

    def _begin(self) -> None:
        self._lines = self._form()
        self._packer = zlib.compressobj(wbits=31) if self._packed else None

    def _anew(self) -> bytes:
        """The whole file; no other run may have begun to write it meanwhile."""
        self._claim.renew()
        self._begin()
        return self._bytes(self._earlier_lines + self._lines(self._rows))

    def _bytes(self, data: bytes) -> bytes:
        """What of the file these lines are."""
        if self._packer is not None:  # flushed, so that all up to here can be unpacked
            data = self._packer.compress(data) + self._packer.flush(zlib.Z_SYNC_FLUSH)
        return data

    def add(self, row: Row) -> None:
        """See `Sink.add`."""
        self._rows.extend(row)
        self._file.grow(lambda: self._bytes(self._lines(row)))

    def close(self) -> None:
        """See `Sink.close`."""
        try:
            if self._file.began and self._rows:
                self._file.grow(lambda: b"")  # written anew where it is gone
                if self._packer is not None:
                    self._file.grow(partial(self._packer.flush, zlib.Z_FINISH))
        finally:
            self._file.close()
            self._claim.release()


class Rewritten:
    """A file written anew with every row, after ``earlier`` ones: for forms that have an end."""

    def __init__(
        self,
        path: Path,
        export: Callable[[Row], bytes],
        earlier: Row = (),
    ) -> None:
        self.path, self._export = path, export
        self._rows = list(earlier)
        check(path)
        self._claim = Claim(path)
        self._file = _growing(path, lambda: b"") if special(path) else None

    def add(self, row: Row) -> None:
        """See `Sink.add`; a pipe or device cannot be written anew, and gets all at the end."""
        self._rows.extend(row)
        if self._file is None:
            self._write()

    def _write(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)  # it was there at the start
        self._claim.renew()
        replace(self.path, self._export(self._rows))

    def close(self) -> None:
        """See `Sink.close`."""
        try:
            if self._file is not None and self._rows:
                self._file.grow(lambda: self._export(self._rows))
            elif self._rows and not self.path.exists():
                self._write()
        finally:
            if self._file is not None:
                self._file.close()
            self._claim.release()


class Directory:
    """A run directory: records, environment, topology, and what the run printed.

    A folder that holds a run already gets the next one beside it: ``records-2.jsonl``. One that
    holds other files is refused. ``topology`` gives the machine's description as JSON text, or
    None; it is asked with the first row.
    """

    def __init__(self, path: Path, topology: Callable[[], str | None] = lambda: None) -> None:
        self.path, self._topology = path, topology
        try:
            path.mkdir(exist_ok=True)
            if not (path / RECORDS).exists() and any(path.iterdir()):
                raise StoreError(f"{path}: has files, and no run; name a new folder: {path}/run/")
            self._number = self._claimed()
        except OSError as error:
            raise StoreError(f"{path}: cannot be written: {error.strerror}") from None
        self._records = Appended(self._named(RECORDS), lambda: Writer().lines)
        self._said: list[str] = []
        self._output = _growing(self._named(OUTPUT), self._printed)
        #: What stands there once, from the first row on.
        self._facts: dict[Path, bytes] = {}

    def _claimed(self) -> int:
        """The first number that is free, claimed by making its file of records."""
        for self._number in count(1):
            with contextlib.suppress(FileExistsError):
                self._named(RECORDS).touch(exist_ok=False)
                break
        return self._number

    def _named(self, name: str) -> Path:
        stem, ending = name.split(".")
        return self.path / (name if self._number == 1 else f"{stem}-{self._number}.{ending}")

    def add(self, row: Row) -> None:
        """See `Sink.add`."""
        if not self._facts:
            self._facts[self._named(ENVIRONMENT)] = to_object(row[0].run.environment)
            topology = self._topology()
            if topology is not None:
                self._facts[self._named(TOPOLOGY)] = topology.encode()
        self._write_facts()
        self._records.add(row)

    def _write_facts(self) -> None:
        for path, data in self._facts.items():
            if not path.exists():
                self.path.mkdir(parents=True, exist_ok=True)
                replace(path, data)

    def say(self, lines: Iterable[str]) -> None:
        """Keep lines that the run printed."""
        text = "".join(f"{line}\n" for line in lines)
        self._said.append(text)
        self._output.grow(text.encode, wait=False)

    def _printed(self) -> bytes:
        return "".join(self._said).encode()

    def close(self) -> None:
        """See `Sink.close`."""
        self._write_facts()
        self._records.close()
        self._output.close()


def _growing(path: Path, whole: Callable[[], bytes]) -> GrowingFile:
    """Raises StoreError."""
    try:
        return GrowingFile(path, whole)
    except OSError as error:
        raise StoreError(f"{path}: cannot be written: {error.strerror}") from None


def _parquet(path: Path, earlier: Earlier) -> Sink:
    from reports.readers.own_exports import library, to_parquet

    library(str(path))
    return Rewritten(path, to_parquet, earlier.rows)


SINKS: dict[str, Callable[[Path, Earlier], Sink]] = {
    ".jsonl": lambda path, earlier: Appended(path, lambda: Writer().lines, earlier),
    ".jsonl.gz": lambda path, earlier: Appended(path, lambda: Writer().lines, earlier, packed=True),
    ".csv": lambda path, earlier: Appended(path, lambda: CsvLines().lines, earlier),
    ".json": lambda path, earlier: Rewritten(path, to_json, earlier.rows),
    ".parquet": _parquet,
}


def sink(
    target: str,
    topology: Callable[[], str | None] = lambda: None,
    earlier: Earlier = _NOTHING,
) -> Sink:
    """The sink that ``--out`` names: a file by its ending, or a run directory (``DIR/``, existing).

    ``topology``: see `Directory`. ``earlier``: what a file begins with; a directory has a record
    of each launch. Raises StoreError with the endings there are,
    or where nothing can be written, and MissingLibrary.
    """
    path = Path(target)
    if target.endswith("/") or path.is_dir():
        return Directory(path, topology)
    for ending, kind in SINKS.items():
        if path.name.endswith(ending):
            return kind(path, earlier)
    known = ", ".join(SINKS)
    raise StoreError(
        f"{path}: no format for {path.suffix or 'no ending'!r}; use one of {known}, or DIR/"
    )


def nccl_sink(path: Path, statistic: str) -> Sink:
    """The sink that ``-J`` names: nccl-tests' JSON, its times the median or mean as printed."""
    return Rewritten(path, partial(nccl_json, statistic=statistic))


class Store:
    """All that a run's results go to. Raises StoreError, naming the file, when one fails.

    A run may be ended by one thread while another measures: each call is whole, and after `close`
    nothing more is written.
    """

    def __init__(self, sinks: Sequence[Sink]) -> None:
        self._sinks = list(sinks)
        self._lock = Lock()

    def add(self, row: Row) -> None:
        """Keep a row: on return it is on disk everywhere."""
        self._each(lambda one: one.add(row))

    def say(self, lines: Sequence[str]) -> None:
        """Keep what the run printed, in run directories."""
        self._each(lambda one: one.say(lines) if isinstance(one, Directory) else None)

    def close(self) -> None:
        """The run is over."""
        with self._lock:
            sinks, self._sinks = self._sinks, []
            _each(sinks, lambda one: one.close())

    def _each(self, action: Callable[[Sink], None]) -> None:
        with self._lock:
            _each(self._sinks, action)


def _each(sinks: Sequence[Sink], action: Callable[[Sink], None]) -> None:
    for one in sinks:
        try:
            action(one)
        except OSError as error:
            raise StoreError(
                f"{one.path}: cannot be written: {error.strerror}; it still holds the rows before"
            ) from None
