"""Bytes to clean lines: decompress, decode, remove colours, log prefixes and launcher tags."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from busbar.errors import ReportError
from busbar.files import decoded, read_some, unreadable
from busbar.terminal import strip_escapes

#: Most bytes of a decompressed file; a record of a million rows is 200 MB.
LIMIT = 4 << 30
#: A figure in a cell of a log.
FIGURE = re.compile(r"\d{1,18}(?:\.\d{1,9})?", re.ASCII)

_PIECE = 1 << 20
# A gzip file may have this many bytes, or this many times its compressed size: records compress to
# a third, logs to a twentieth.
_PLENTY, _MOST_PACKED = 64 << 20, 256
# First bytes of compressed formats that are not supported.
_PACKED = {b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"PK\x03\x04": "zip", b"(\xb5/\xfd": "zstd"}

_CLOCK = r"\d\d:\d\d:\d\d(?:[.,]\d+)?"
_ZONE = r"(?: ?(?:Z|UTC|[+-]\d\d:?\d\d))?"
# Prefixes that loggers and launchers add to a line; named groups identify a rank's stream.
_PREFIXES = tuple(
    re.compile(p)
    for p in (
        rf"\[?\d{{4}}-\d\d-\d\d[T ]{_CLOCK}{_ZONE}\]?:?\s?",
        rf"(?:[A-Z][a-z]{{2}} )?[A-Z][a-z]{{2}} +\d+ {_CLOCK}(?: \d{{4}})?(?=[\s\[<])",
        rf"\[?{_CLOCK}\]?\s",
        r"\[(?:[\w.@:-]+@)?\d+,(?P<tag>\d+)\]\s*(?:\[[\w.:-]+\]\s*)?(?:<std\w+>)?\s*:?",
        r"<std(?:out|err)\w*>:?",
        r"(?P<label>\d+):(?=\s|#|$)",
        r"\[(?P<hydra>\d+)\] ",
        r"\[(?:pod/)?[A-Za-z][\w./-]*\]:?\s",
        r"\[?(?:INFO|DEBUG|WARNING|ERROR|info|stdout)\]?\s?[:|-]?\s",
        r"(?P<host>[A-Za-z][\w./-]*)(?: +\||:) +(?=[#\d])",
        r"[>|] ",
    )
)
_SPACE = re.compile(r"\s*")
# The beginnings of lines that benchmarks print before their first row. Text before it is a
# label.
_BEGINS = re.compile(
    r"# nThread \d|#\s*size\s+count|# ?OSU [A-Z]\S* .+ Test|#\s*Intel ?\(R\) MPI Bench|# "
    r"Benchmarking "
)
_LONGEST_LABEL = 120
_MOST_LABELS = 8
# Number of lines above the last one with which its columns are compared.
_MOST_ABOVE = 60


class Line(NamedTuple):
    """A line: its number from 1, the stream that it belongs to ("" if unknown), and its text."""

    number: int
    stream: str
    text: str


def record_files(path: Path) -> list[Path]:
    """The files of JSON lines in a run directory, in order; or the file itself."""
    if not path.is_dir():
        return [path]
    files = (f for f in path.iterdir() if f.name.endswith((".jsonl", ".jsonl.gz")))
    return sorted(files, key=_by_number)


def log_files(path: Path) -> list[Path]:
    """The logs in a folder, in order."""
    endings = (".log", ".log.gz", ".out", ".out.gz", ".txt", ".txt.gz")
    files = (f for f in path.iterdir() if f.name.endswith(endings) and f.is_file())
    return sorted(files, key=_by_number)


def row_files(folder: Path) -> list[Path]:
    """The files with rows in a folder: JSON lines, or else Parquet, or else logs."""
    records = [f for f in record_files(folder) if f.is_file()]
    return records or sorted(folder.glob("*.parquet")) or log_files(folder)


def _by_number(file: Path) -> list[str | int]:
    """A key that sorts ``records``, ``records-2``, ``records-10`` in this order."""
    parts = re.split("([0-9]+)", file.name.partition(".")[0])
    return [int(part) if at % 2 else part for at, part in enumerate(parts)]


def record_texts(path: Path) -> Iterator[str]:
    """The texts of `record_files`. Raises ReportError."""
    return (decoded(read_bytes(file)[0]) for file in record_files(path))


def read_bytes(path: Path) -> tuple[bytes, str]:
    """A file's bytes, decompressed if it is gzip, and a note on them (or "").

    A truncated gzip file of a killed run is read as far as possible. Raises ReportError if nothing
    can be read.
    """
    try:
        data = read_some(path, LIMIT)
    except OSError as error:
        raise unreadable(path, error, ReportError) from None
    note = ""
    if data.startswith(b"\x1f\x8b"):
        data, note = _unpacked(data)
        if note and not data:
            raise ReportError(f"{path}: cannot be read: {note}")
    for magic, name in _PACKED.items():
        if data.startswith(magic):
            raise ReportError(f"{path}: {name} data; unpack it first (gzip is read as it is)")
    if len(data) > LIMIT:
        raise ReportError(f"{path}: more than {LIMIT >> 30} GiB; split it")
    return data, note


def _unpacked(data: bytes) -> tuple[bytes, str]:
    """The concatenated members of a gzip file as far as they can be read, and a note (or "")."""
    parts, size, packed = [], 0, memoryview(data)
    most = min(LIMIT, max(_PLENTY, _MOST_PACKED * len(data)))
    while packed and size <= LIMIT:
        member = zlib.decompressobj(wbits=31)
        try:
            while packed and not member.eof and size <= LIMIT:
                part = member.decompress(packed[:_PIECE], _PIECE)
                packed = packed[_PIECE:]
                while part:
                    parts.append(part)
                    size += len(part)
                    if size > most:
                        return b"", f"it unpacks to more than {most >> 20} MiB; unpack it first"
                    part = member.decompress(member.unconsumed_tail, _PIECE)
            if member.eof:
                packed = memoryview(member.unused_data + bytes(packed))
                continue
        except zlib.error as error:
            if parts and not any(packed):  # some writers pad with zeros
                break
            return b"".join(parts), f"the gzip data are damaged ({error})"
        return b"".join(parts), "the gzip data end early, as when a run is killed"
    return b"".join(parts), ""


def lines(text: str) -> Iterator[Line]:
    """The lines of a log, without text added by the terminal, the logger and the launcher."""
    if "\xa0" in text:  # blanks in text copied from web pages
        text = text.replace("\xa0", " ")
    for number, raw in enumerate(text.split("\n" if "\n" in text else "\r"), 1):
        for line in raw.rstrip("\r").split("\r"):  # parts that a terminal would overwrite
            stream, clean = _unprefixed(strip_escapes(line))
            yield Line(number, stream, clean.rstrip())


def unlabelled(lines: Iterable[Line]) -> Iterator[Line]:
    """Remove unknown labels that a launcher puts before each line.

    A label is learned from lines that benchmarks are known to begin with #; its numbers may vary.
    """
    labels: dict[str, re.Pattern[str]] = {}
    for line in lines:
        begins = _BEGINS.search(line.text) if "#" in line.text else None
        label = line.text[: begins.start()] if begins else ""
        if label.strip() and len(label) <= _LONGEST_LABEL and len(labels) < _MOST_LABELS:
            shape = re.sub(r"\d+", r"\\d+", re.escape(label.rstrip()))
            labels.setdefault(shape, re.compile(shape + r"(?=\s|#|\d|$)"))
        for pattern in labels.values():
            match = pattern.match(line.text)
            if match:
                line = line._replace(text=line.text[match.end() :])
                break
        yield line


_ROW = re.compile(r"\s*[\d.]")
_HEADING = re.compile(r"#\s+(size|bytes)\s")


def without_cut(lines: Sequence[Line], text: str) -> tuple[Sequence[Line], Line | None]:
    """Remove a last figure that may be cut. Returns the lines, and the cut line or None.

    A text without a final line end may end inside a figure, which then has a wrong value. Columns
    are right-aligned, so the figure is complete if it ends where a column of the lines above ends.
    The line still counts as cut if the row above, or nccl-tests' heading, has more cells.
    """
    if text[-1:] in ("", "\n", "\r") or not lines:
        return lines, None
    last = lines[-1]
    token = re.search(r"\S+$", last.text)
    row = _ROW.match(last.text) is not None
    if token is None or not (row or re.match(r"[-+.\d]", token.group())):
        return lines, None
    if text[-1:].isspace():
        return lines, last if row else None
    above = [line for line in lines[-_MOST_ABOVE:-1] if line.stream == last.stream]
    if _is_aligned(last, above):
        cells = (_cells(line.text) for line in reversed(above))
        whole = next((count for count in cells if count), 0)
        return lines, last if row and len(last.text.split()) < whole else None
    return [*lines[:-1], last._replace(text=last.text[: token.start()])], last if row else None


def _cells(text: str) -> int:
    """Number of cells in a row, or in rows below nccl-tests' heading; 0 for other lines."""
    if _HEADING.match(text):
        return len(text.split()) - 1
    return len(text.split()) if _ROW.match(text) else 0


def _is_aligned(last: Line, above: Sequence[Line]) -> bool:
    """True if the last two columns of a line end where two columns of a line above end.

    With only two columns the last one counts, because OSU's first is left-aligned. A row above must
    have the same number of decimals.
    """
    ends = _ends(last.text)
    if len(ends) < 2 or "\t" in last.text:
        return False
    gap = re.search(r" {2,}\S+$", last.text)
    if gap is None:
        return False
    wanted = ends[-1:] if len(ends) == 2 and not last.text[0].isspace() else ends[-2:]
    decimals = _decimals(last.text.split()[-1])
    for line in above:
        if "\t" in line.text:
            continue
        known, words = _ends(line.text), line.text.split()
        for at in range(1, len(known)):
            heading = not re.match(r"[-+.\d]", words[at])
            if known[at - len(wanted) + 1 : at + 1] == wanted and (
                heading or _decimals(words[at]) == decimals
            ):
                return True
    return False


def _ends(text: str) -> list[int]:
    """The positions at which words of a line end."""
    return [word.end() for word in re.finditer(r"\S+", text)]


def _decimals(word: str) -> int:
    return len(word.partition(".")[2])


def _unprefixed(line: str) -> tuple[str, str]:
    """Remove up to six prefixes. Returns (stream, text); leading blanks stay without a prefix."""
    stream = ""
    for _ in range(6):
        blanks = _SPACE.match(line)
        start = blanks.end() if blanks else 0
        for prefix in _PREFIXES:
            match = prefix.match(line, start)
            if match and match.end() > start:
                break
        else:
            break
        named = [v for v in match.groupdict().values() if v]
        stream = named[0] if named else stream
        line = line[match.end() :]
    return stream, line
