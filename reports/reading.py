"""One door for all logs: recognise a file, read it, and give rows or a DataFrame."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from reports import parquet
from reports.errors import ReportError
from reports.frame import frame
from reports.readers import (
    arrow,
    imb,
    names,
    nccl_json,
    nccl_text,
    osu,
    own,
    own_csv,
    rccl_json,
)
from reports.readers.rows import Note, Reading, Row
from reports.readers.text import decoded, lines, read_bytes, unlabelled

if TYPE_CHECKING:
    from pandas import DataFrame

__all__ = ["frame", "load", "parse", "read"]

_TEXT_READERS = (nccl_text.read, osu.read, imb.read)
_GAP = re.compile(r"[\s,]*")


def read(path: Path | str, ranks: int | None = None) -> Reading:
    """The rows of a file, or of the records in a run directory, whoever wrote it.

    ``ranks`` is used where a log does not say how many there were. Raises ReportError when the
    file cannot be read or no row is found in it; the message then says what was in the way.
    """
    path = Path(path)
    if path.is_dir():
        return _directory(path, ranks)
    found = _file(path)
    if not found.rows:
        more = f"; {len(found.notes) - 1} lines more" if len(found.notes) > 1 else ""
        why = f": {found.notes[0].text} (line {found.notes[0].line}){more}" if found.notes else ""
        raise ReportError(f"{path}: no row of nccl-tests, OSU, IMB or Busbar could be read{why}")
    return found if ranks is None else replace(found, rows=[_ranked(r, ranks) for r in found.rows])


def _file(path: Path) -> Reading:
    data, said = read_bytes(path)
    if data.startswith(parquet.MAGIC):
        return Reading(parquet.read(str(path), data))
    quick = None
    if len(data) >= arrow.LEAST_BYTES and data.startswith(b"{"):
        quick = arrow.rows(str(path), data)
    found = parse(decoded(data), str(path)) if quick is None else Reading(quick)
    return replace(found, notes=[*found.notes, Note(str(path), 0, said)]) if said else found


def _directory(path: Path, ranks: int | None) -> Reading:
    """All records of a folder; Parquet, an export of them, only where there is nothing else."""
    there = sorted(f for f in path.iterdir() if f.is_file())
    files = [f for f in there if f.name.endswith((".jsonl", ".jsonl.gz"))]
    files = files or [f for f in there if f.suffix == ".parquet"]
    if not files:
        raise ReportError(f"{path}: a folder without records (.jsonl, .jsonl.gz or .parquet)")
    if len(files) == 1:
        return read(files[0], ranks)
    parts = []
    for file in files:
        try:
            parts.append(read(file, ranks))
        except ReportError as error:  # a run that was killed before its first row, say
            parts.append(Reading((), [Note(str(file), 0, str(error).removeprefix(f"{file}: "))]))
    if not any(part.rows for part in parts):
        raise ReportError(f"{path}: no row in any of its {len(files)} records")
    return Reading([r for p in parts for r in p.rows], [n for p in parts for n in p.notes])


def parse(text: str, source: str = "<text>") -> Reading:
    """The rows of a text. Never raises: what cannot be read stands in the notes."""
    start = text.lstrip()[:1]
    if start in ("{", "["):
        found = _json(text, source)
        if found is not None:
            return found
    if text.startswith("collective,algorithm,"):
        return own_csv.read_csv(source, text)
    clean = list(unlabelled(lines(text)))
    parts = [reader(source, clean) for reader in _TEXT_READERS]
    rows = sorted((r for p in parts for r in p.rows), key=lambda r: r.line)
    return Reading(rows, sorted((n for p in parts for n in p.notes), key=lambda n: n.line))


def _json(text: str, source: str) -> Reading | None:
    """The rows of a JSON text; None when it is no JSON from its first line on."""
    first = text.lstrip().split("\n", 1)[0]
    try:
        if own.recognises(json.loads(first)):
            return own.read_jsonl(source, text)
    except (ValueError, RecursionError):
        pass
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        return _broken_json(text, source, str(error))
    if nccl_json.recognises(document):
        return nccl_json.read(source, document)
    if rccl_json.recognises(document):
        return rccl_json.read(source, document)
    if isinstance(document, list):
        return own.read_list(source, document)
    return None


def _broken_json(text: str, source: str, error: str) -> Reading | None:
    """What a killed run left of nccl-tests' or rccl-tests' JSON: the results that are whole."""
    listed = text.lstrip().startswith("[")
    at = 0 if listed else text.find('"results"')
    opening = text.find("[", at)
    if at < 0 or opening < 0:
        return None
    decoder, results, position = json.JSONDecoder(), [], opening + 1
    while True:
        gap = _GAP.match(text, position)
        position = gap.end() if gap else position
        try:
            one, position = decoder.raw_decode(text, position)
        except (ValueError, RecursionError):
            break
        results.append(one)
    note = Note(source, text.count("\n", 0, position) + 1, f"the JSON ends early ({error[:60]})")
    if listed:
        cut = rccl_json.read(source, results) if rccl_json.recognises(results) else None
        return None if cut is None else Reading(cut.rows, [*cut.notes, note])
    head = text[:at].rstrip().rstrip(",") + "}"
    try:
        document = json.loads(head)
    except (ValueError, RecursionError):
        document = {}
    document = (
        {**document, "results": results} if isinstance(document, dict) else {"results": results}
    )
    found = nccl_json.read(source, document)
    return Reading(found.rows, [*found.notes, note])


def _ranked(row: Row, ranks: int) -> Row:
    """A row with a rank count given from outside, and what follows from it."""
    if row.ranks is not None or row.message is None:
        return row
    size = names.whole(row.collective, row.message, ranks) if row.size is None else row.size
    rate = row.algbw_bytes_per_s
    if rate is None and size is not None and row.time_s:
        rate = size / row.time_s
    factor = names.bus_factor(row.collective, ranks)
    busbw = row.busbw_bytes_per_s
    if busbw is None and rate is not None and factor is not None:
        busbw = rate * factor
    return replace(row, ranks=ranks, size=size, algbw_bytes_per_s=rate, busbw_bytes_per_s=busbw)


def load(path: Path | str, ranks: int | None = None) -> DataFrame:
    """A log as a DataFrame, one row a placement. Columns and units: docs/reports.md.

    ``frame.attrs["notes"]`` lists what could not be read, or was inferred, as ``file:line: text``.
    Raises ReportError when nothing can be read.
    """
    found = read(path, ranks)
    table = frame(found.rows)
    table.attrs["notes"] = [str(n) for n in found.notes]
    return table
