"""Write results to disk row by row, so that a killed run keeps its rows.

JSON lines and CSV are appended to: a row is one write and is then synced to disk, so a power cut
loses at most that row. JSON and Parquet cannot be appended to, so the whole file is written to a
temporary file, which then replaces the old one.
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
from busbar.files import Claim, GrowingFile, check, reason, replace, special
from reports.exports.formats import CsvLines, nccl_json, to_object
from reports.readers.codec import Writer, to_json
from reports.records.measurement import Measurement

#: The files in a run directory, by names without a number.
RECORDS, ENVIRONMENT, TOPOLOGY, OUTPUT = (
    "records.jsonl", "environment.json", "topology.json", "output.txt",
)  # fmt: skip


Row = Sequence[Measurement]
"""The measurements of one case: its placements."""


class LineWriter(Protocol):
    """Turns rows, and the end of a run, into the bytes to append to a file."""

    def lines(self, measurements: Row, /) -> bytes:
        """The bytes of a row."""
        ...

    def end(self, early: str = "") -> bytes:
        """The bytes that state the run's end; ``early``: why it has not measured everything."""
        ...


class Earlier(NamedTuple):
    """The content that a file begins with: ``lines``, then ``rows`` of earlier launches.

    ``lines``: complete JSON lines, uncompressed, which are written unchanged.
    """

    rows: Row = ()
    lines: bytes = b""


_NOTHING = Earlier()


class Sink(Protocol):
    """A file, or a folder of files, to which results are written."""

    path: Path

    def add(self, row: Row) -> None:
        """Write a row to disk. Raises OSError."""
        ...

    def close(self) -> None:
        """Finish the file at the end of the run. Raises OSError."""
        ...


class Appended:
    """A file to which rows are appended; the first row replaces the file's old content.

    ``form``: creates what turns rows into lines. ``earlier``: content before the rows.
    If the file has been deleted meanwhile, all of it is written again.
    """

    def __init__(
        self,
        path: Path,
        form: Callable[[], LineWriter],
        earlier: Earlier = _NOTHING,
        packed: bool = False,
    ) -> None:
        check(path)
        self.path, self._form, self._packed = path, form, packed
        self._earlier_lines = earlier.lines
        self._claim = Claim(path)
        self._file = _growing(path, self._anew)
        # A pipe or terminal has received earlier rows already.
        self._rows = [] if self._file.special else list(earlier.rows)
        self._early: str | None = None  # why the run ended early, or "", once it has ended
        self._begin()

    def _begin(self) -> None:
        self._writer = self._form()
        self._packer = zlib.compressobj(wbits=31) if self._packed else None

    def _anew(self) -> bytes:
        """The whole file's bytes. Raises StoreError if another run writes the file meanwhile."""
        self._claim.renew()
        self._begin()
        rows = self._earlier_lines + self._writer.lines(self._rows)
        return self._bytes(rows if self._early is None else rows + self._writer.end(self._early))

    def _bytes(self, data: bytes) -> bytes:
        """Lines as bytes of the file, compressed if the file is."""
        if self._packer is not None:  # flushed, so that a killed run's file can be decompressed
            data = self._packer.compress(data) + self._packer.flush(zlib.Z_SYNC_FLUSH)
        return data

    def add(self, row: Row) -> None:
        """Write a row's measurements to the file, see `Sink.add`."""
        self._rows.extend(row)
        self._file.grow(lambda: self._bytes(self._writer.lines(row)))

    def end(self, early: str) -> None:
        """State the run's end, if it has rows; ``early``: see `LineWriter.end`. Raises OSError."""
        if self._file.began and self._rows:
            self._early = early
            self._file.grow(lambda: self._bytes(self._writer.end(early)))

    def close(self) -> None:
        """See `Sink.close`."""
        try:
            if self._file.began and self._rows:
                self._file.grow(lambda: b"")  # writes the file again if it was deleted
                if self._packer is not None:
                    self._file.grow(partial(self._packer.flush, zlib.Z_FINISH))
        finally:
            self._file.close()
            self._claim.release()


class Rewritten:
    """A file that is rewritten with every row, after ``earlier`` rows: JSON and Parquet."""

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
        """Write the file again with this row. A pipe or device gets all rows at the end instead."""
        self._rows.extend(row)
        if self._file is None:
            self._write()

    def _write(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)  # may have been deleted since the start
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
    """A run directory: records, environment, topology, and the run's printed output.

    In a folder that has a run already, the files get a number: ``records-2.jsonl``. Raises
    StoreError if the folder has other files and no run. ``topology``: returns the machine's
    description as JSON text, or None; called with the first row.
    """

    def __init__(self, path: Path, topology: Callable[[], str | None] = lambda: None) -> None:
        self.path, self._topology = path, topology
        try:
            path.mkdir(parents=True, exist_ok=True)
            if not (path / RECORDS).exists() and any(path.iterdir()):
                raise StoreError(f"{path}: has files, and no run; name a new folder: {path}/run/")
            self._number = self._claimed()
        except OSError as error:
            raise StoreError(f"{path}: cannot be written: {reason(path, error)}") from None
        self._records = Appended(self._named(RECORDS), lambda: Writer(running=True))
        self._said: list[str] = []
        self._output = _growing(self._named(OUTPUT), self._printed)
        #: Files that are written once, with the first row.
        self._facts: dict[Path, bytes] = {}

    def _claimed(self) -> int:
        """Claim the first free number by creating its file of records; returns the number."""
        for self._number in count(1):
            with contextlib.suppress(FileExistsError):
                self._named(RECORDS).touch(exist_ok=False)
                break
        return self._number

    def _named(self, name: str) -> Path:
        stem, ending = name.split(".")
        return self.path / (name if self._number == 1 else f"{stem}-{self._number}.{ending}")

    def add(self, row: Row) -> None:
        """Write a row to the records; before the first one, facts about the machine and the run."""
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
        """Append lines that the run printed to the output file."""
        text = "".join(f"{line}\n" for line in lines)
        self._said.append(text)
        self._output.grow(text.encode, wait=False)

    def _printed(self) -> bytes:
        return "".join(self._said).encode()

    def end(self, early: str) -> None:
        """State the run's end in the records if there are rows; ``early``: see `LineWriter.end`."""
        self._records.end(early)

    def close(self) -> None:
        """See `Sink.close`."""
        self._write_facts()
        self._records.close()
        self._output.close()


def _growing(path: Path, whole: Callable[[], bytes]) -> GrowingFile:
    """Open a growing file. Raises StoreError if it cannot be written."""
    try:
        return GrowingFile(path, whole)
    except OSError as error:
        raise StoreError(f"{path}: cannot be written: {reason(path, error)}") from None


def _parquet(path: Path, earlier: Earlier) -> Sink:
    from reports.readers.own_exports import library, to_parquet

    library(str(path))
    return Rewritten(path, to_parquet, earlier.rows)


def _records(path: Path, earlier: Earlier, *, packed: bool = False) -> Sink:
    return Appended(path, partial(Writer, running=True, earlier=earlier.rows), earlier, packed)


SINKS: dict[str, Callable[[Path, Earlier], Sink]] = {
    ".jsonl": _records,
    ".jsonl.gz": partial(_records, packed=True),
    ".csv": lambda path, earlier: Appended(path, CsvLines, earlier),
    ".json": lambda path, earlier: Rewritten(path, to_json, earlier.rows),
    ".parquet": _parquet,
}


def sink(
    target: str,
    topology: Callable[[], str | None] = lambda: None,
    earlier: Earlier = _NOTHING,
) -> Sink:
    """The sink for the value of ``--out``: a file by its ending, or a run directory (``DIR/``).

    ``topology``: see `Directory`. ``earlier``: what a file begins with; not used for a directory,
    which has a file of records per launch. Raises StoreError if the ending is unknown or nothing
    can be written, and MissingLibrary.
    """
    path = Path(target)
    if _is_folder(target):
        return Directory(path, topology)
    return _kind(path)(path, earlier)


def check_target(target: str) -> None:
    """Raise StoreError if `sink` has no format for a value of ``--out``, or cannot write it."""
    if not _is_folder(target):
        _kind(Path(target))
        check(Path(target))


def launches_in(target: str) -> int:
    """How many files of records the value of ``--out`` has if it is a run directory; else 0."""
    stem, ending = RECORDS.split(".")
    return len(list(Path(target).glob(f"{stem}*.{ending}"))) if _is_folder(target) else 0


def _is_folder(target: str) -> bool:
    return target.endswith("/") or Path(target).is_dir()


def _kind(path: Path, folder: str = ", or DIR/") -> Callable[[Path, Earlier], Sink]:
    for ending, kind in SINKS.items():
        if path.name.endswith(ending):
            return kind
    known = ", ".join(SINKS)
    page = "; from records busbar reports html makes the page" if path.suffix == ".html" else ""
    raise StoreError(
        f"{path}: no format for {path.suffix or 'no ending'!r}; use one of {known}{folder}{page}"
    )


def save(path: Path, rows: Row) -> None:
    """Write the rows of launches that are over to a file by its ending, completely or not at all.

    Raises StoreError, also for a folder, a pipe and a device, and MissingLibrary.
    """
    check(path)
    if special(path):
        raise StoreError(f"{path}: is no regular file")
    store = Store(_kind(path, "")(path, Earlier(rows)))
    try:
        store.add(())
    finally:
        store.close()


def nccl_sink(path: Path, statistic: str) -> Sink:
    """The sink for the value of ``-J``: nccl-tests' JSON with median or mean times."""
    return Rewritten(path, partial(nccl_json, statistic=statistic))


class Store:
    """A sink of a run. Methods raise StoreError, naming the file, if writing fails.

    Thread-safe: one thread may close it while another measures. After `close` nothing is written.
    """

    def __init__(self, sink: Sink) -> None:
        self._sink, self._lock, self._closed = sink, Lock(), False
        self._any = False  # a row is in the sink

    def add(self, row: Row) -> None:
        """Write a row to the sink. On return it is on disk."""
        self._write(lambda one: one.add(row))
        self._any = True

    def say(self, lines: Sequence[str]) -> None:
        """Write lines that the run printed to a run directory."""
        self._write(lambda one: one.say(lines) if isinstance(one, Directory) else None)

    def end(self, early: str) -> None:
        """State the run's end in files of JSON lines; ``early``: see `LineWriter.end`."""
        self._write(lambda one: one.end(early) if isinstance(one, (Appended, Directory)) else None)

    def close(self) -> None:
        """Close the sink at the end of the run."""
        self._write(lambda one: one.close(), last=True)

    def _write(self, action: Callable[[Sink], None], *, last: bool = False) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = last
            try:
                action(self._sink)
            except OSError as error:
                kept = "it holds the rows before" if self._any else "no row of this run is in it"
                raise StoreError(
                    f"{self._sink.path}: cannot be written: {error.strerror}; {kept}"
                ) from None
