"""One door for all logs: recognise a file, read it, and give rows or a DataFrame."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from reports.errors import ReportError
from reports.readers import imb, names, nccl_json, nccl_text, osu, own
from reports.readers.rows import COLUMNS, Note, Reading, Row, column
from reports.readers.text import lines, read_text

if TYPE_CHECKING:
    from pandas import DataFrame

__all__ = ["frame", "load", "parse", "read"]

_TEXT_READERS = (nccl_text.read, osu.read, imb.read)
_INTEGERS = ("size", "message", "ranks", "count", "root", "wrong", "iterations")
_GAP = re.compile(r"[\s,]*")
_RUN_FILES = (".jsonl", ".jsonl.gz")


def read(path: Path | str, ranks: int | None = None) -> Reading:
    """The rows of a file, or of the records in a run directory, whoever wrote it.

    ``ranks`` is used where a log does not say how many there were. Raises ReportError when the
    file cannot be read or no row is found in it; the message then says what was in the way.
    """
    path = Path(path)
    if path.is_dir():
        return _directory(path, ranks)
    found = parse(read_text(path), str(path))
    if not found.rows:
        more = f"; {len(found.notes) - 1} lines more" if len(found.notes) > 1 else ""
        why = f": {found.notes[0].text} (line {found.notes[0].line}){more}" if found.notes else ""
        raise ReportError(f"{path}: no row of nccl-tests, OSU, IMB or Busbar could be read{why}")
    return found if ranks is None else replace(found, rows=[_ranked(r, ranks) for r in found.rows])


def _directory(path: Path, ranks: int | None) -> Reading:
    files = sorted(f for f in path.iterdir() if f.name.endswith(_RUN_FILES) and f.is_file())
    if not files:
        raise ReportError(f"{path}: a folder without records ({' or '.join(_RUN_FILES)})")
    parts = [read(f, ranks) for f in files]
    return Reading([r for p in parts for r in p.rows], [n for p in parts for n in p.notes])


def parse(text: str, source: str = "<text>") -> Reading:
    """The rows of a text. Never raises: what cannot be read stands in the notes."""
    start = text.lstrip()[:1]
    if start in ("{", "["):
        found = _json(text, source)
        if found is not None:
            return found
    if text.startswith("collective,algorithm,"):
        return own.read_csv(source, text)
    clean = list(lines(text))
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
    if isinstance(document, list):
        return own.read_list(source, document)
    return None


def _broken_json(text: str, source: str, error: str) -> Reading | None:
    """What a killed run left of nccl-tests' JSON: the results that are whole."""
    at = text.find('"results"')
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
    head = text[:at].rstrip().rstrip(",") + "}"
    try:
        document = json.loads(head)
    except (ValueError, RecursionError):
        document = {}
    document = (
        {**document, "results": results} if isinstance(document, dict) else {"results": results}
    )
    found = nccl_json.read(source, document)
    note = Note(source, text.count("\n", 0, position) + 1, f"the JSON ends early ({error[:60]})")
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


def frame(rows: Sequence[Row]) -> DataFrame:
    """Rows as a DataFrame with the columns ``COLUMNS``; whole numbers are nullable integers.

    Raises ReportError when pandas is not installed.
    """
    try:
        import pandas as pd
    except ImportError:
        raise ReportError("pandas is not installed; pip install 'busbar[reports]'") from None
    table: DataFrame = pd.DataFrame({name: list(map(column(name), rows)) for name in COLUMNS})
    for name in _INTEGERS:
        table[name] = table[name].astype("Int64")
    floats = [c for c in COLUMNS if c.endswith("_s") and c not in ("times_s", "per_rank_s")]
    for name in [*floats, "cv", "error", "clock_memory_hz", "energy_per_op_j"]:
        table[name] = table[name].astype("float64")
    return table


def load(path: Path | str, ranks: int | None = None) -> DataFrame:
    """A log as a DataFrame, one row a placement. Columns and units: docs/reports.md.

    ``frame.attrs["notes"]`` lists what could not be read, or was inferred, as ``file:line: text``.
    Raises ReportError when nothing can be read.
    """
    found = read(path, ranks)
    table = frame(found.rows)
    table.attrs["notes"] = [str(n) for n in found.notes]
    return table
