"""Busbar's own records as bytes: writes format 4, reads all formats (1 to 4).

A line is one measurement, or the environment that measurements name as their ``run``. Lines of a
long run differ in little but their times. So lines are split before ``"times_s"``, and each
distinct text before the split is decoded once.
"""

from __future__ import annotations

import gc
import hashlib
import io
import json
import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import chain, groupby, repeat
from operator import attrgetter
from pathlib import Path
from typing import Any, BinaryIO, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from busbar.files import decoded
from busbar.terminal import shorten
from reports.readers import upgrade
from reports.readers.own_exports import MAGIC
from reports.readers.printable import printable_values
from reports.readers.text import read_bytes, record_files, record_texts
from reports.records.measurement import (
    ENDED_EARLY,
    FORMAT,
    STEP,
    Measurement,
    Note,
    Reading,
    Record,
    Run,
    Series,
)
from reports.records.table import COLUMNS, SERIES, TAIL_FIELDS, Builder, measured, tail_columns

# Bytes to read at once: so few that all objects made from them fit into a core's cache.
_BLOCK = 1 << 18
# Values instead of a head's number: its lines must be decoded as a whole; it is new.
_WHOLE, _NEW = -1, -2
_MOST_HEADS = 1 << 16
# The most characters of the reason why a run ended early.
_MOST_REASON = 200
# Fewer lines than this are not worth splitting.
_FEW = 8
_ERRORS = (
    ValueError,
    TypeError,
    AttributeError,
    OverflowError,
    RecursionError,
    msgspec.MsgspecError,
)
_BEGIN = b'{"format":%d,' % FORMAT
# A line is cut between its head and its tail by bytes of equal number, which are replaced in place.
_TIMES, _CUT, _SERIES = b',"times_s":', b'}\0\n {"~":  ', "~"
_UNPLAIN = re.compile(rb"[^ -~]")
_REQUIRED = ("collective", "ranks", "size", "count", "root", "bus_factor")
# Accepted ranges of times (seconds) and rates (per second). Values beyond would overflow in rates
# and figures.
_LEAST_S, _MOST_S = 1e-15, 1e12
_LEAST_RATE, _MOST_RATE = 1e-12, 1e24


def is_time(seconds: float) -> bool:
    """True if the value is plausible: 0, or from a femtosecond to 30,000 years."""
    return seconds == 0 or _LEAST_S <= seconds <= _MOST_S


def is_rate(per_second: float) -> bool:
    """True if a rate in bytes or messages per second is plausible; 0 may be a rounded rate."""
    return per_second == 0 or _LEAST_RATE <= per_second <= _MOST_RATE


class Line(Record, frozen=True, kw_only=True, tag_field="format", tag=FORMAT):
    """A line of a measurement: the record, its format, and the name of its run."""

    run: str = ""


def _plain(value: object) -> object:
    """Convert a NumPy number to a Python number, for the encoder."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{type(value).__name__} in a record")


def _default(info: msgspec.structs.FieldInfo) -> Any:
    if info.default is not msgspec.NODEFAULT:
        return info.default
    return msgspec.field(default_factory=cast("Callable[[], Any]", info.default_factory))


_FIELDS = {field.name: field for field in msgspec.structs.fields(Record)}
# The fields allowed behind the split. If there are others, the line is decoded as a whole.
_Tail: Any = msgspec.defstruct(
    "_Tail",
    [(name, _FIELDS[name].type, _default(_FIELDS[name])) for name in TAIL_FIELDS],
    frozen=True, gc=False, forbid_unknown_fields=True, rename={"times_s": _SERIES},
)  # fmt: skip
_NO_TAIL = _Tail()
# The fields that `Measurements` lacks, and what tells records of one line number apart.
_DETAILS = tuple(name for name in _FIELDS if name not in COLUMNS)
_NO_DETAILS = {name: getattr(Record(), name) for name in _DETAILS}
_SAME = attrgetter("collective", "algorithm", "transport", "ranks", "size", "placement", "times_s")
_ENCODER = msgspec.json.Encoder(enc_hook=_plain)
_LINE, _TAILS = msgspec.json.Decoder(Line), msgspec.json.Decoder(_Tail)


# -- writing


class Writer:
    """Converts measurements to lines. An environment is written once, before its first row."""

    def __init__(self, *, running: bool = False, earlier: Iterable[Measurement] = ()) -> None:
        """``running``: the rows are of a run that is going on, whose end `end` will state.

        ``earlier``: rows of other runs, which have ended somehow.
        """
        self._names: dict[str, Mapping[str, Any]] = {}
        self._running, self._others = running, [one.run.environment for one in earlier]
        self._open: list[str] = []

    def objects(self, measurements: Iterable[Measurement]) -> Iterator[bytes]:
        """The JSON objects of measurements, and of environments not written yet."""
        for one in measurements:
            environment = one.run.environment
            name = next((n for n, known in self._names.items() if known is environment), None)
            if name is None:
                text = json.dumps(environment, sort_keys=True)
                name = hashlib.sha256(text.encode()).hexdigest()[:12]
                if name not in self._names:
                    run = {"format": FORMAT, "run": name, "environment": environment}
                    if self._running and not any(environment is one for one in self._others):
                        run["ends"] = True
                        self._open.append(name)
                    yield json.dumps(run, separators=(",", ":")).encode()
                self._names[name] = environment
            record = Record(**{field: getattr(one, field) for field in _FIELDS})
            line = _BEGIN + b'"run":"%s",' % name.encode() + _ENCODER.encode(record)[1:]
            if _UNPLAIN.search(line):  # escape, so that a record is safe to print
                line = json.dumps(json.loads(line), separators=(",", ":")).encode()
            yield line

    def lines(self, measurements: Iterable[Measurement]) -> bytes:
        """The bytes to append for measurements."""
        return b"".join(line + b"\n" for line in self.objects(measurements))

    def end(self, early: str = "") -> bytes:
        """A line that states the run's end; ``early``: why it has not measured everything."""
        how = {"end": "early", "reason": early} if early else {"end": "complete"}
        lines = [{"format": FORMAT, "run": name, **how} for name in self._open]
        return b"".join(json.dumps(line, separators=(",", ":")).encode() + b"\n" for line in lines)


def to_jsonl(measurements: Iterable[Measurement]) -> bytes:
    """Measurements as JSON lines, see `Writer`. Later versions can always read this format."""
    return Writer().lines(measurements)


def to_json(measurements: Iterable[Measurement]) -> bytes:
    """The objects of `to_jsonl` as one JSON list."""
    objects = [json.loads(line) for line in Writer().objects(measurements)]
    return json.dumps(objects, indent=1).encode() + b"\n"


# -- reading


def recognises(document: object) -> bool:
    """True if a JSON value is a line of Busbar's records, of any format."""
    return isinstance(document, dict) and (
        ("collective" in document and "bus_factor" in document) or _is_run(document)
    )


def _is_run(document: Mapping[str, Any]) -> bool:
    """True if a line is an environment, which records name as their ``run``."""
    return {"run", "environment", "format"} <= document.keys() and "collective" not in document


def _checked(record: Record) -> Record:
    """Return the record. Raises ValueError if a required field is missing or wrong."""
    for name in _REQUIRED:
        if getattr(record, name) in (None, ""):
            raise ValueError(f"{name} is missing")
    if record.limit_s is not None and not (record.limit_s and is_time(record.limit_s)):
        raise ValueError("limit_s is no number of seconds")
    _check_times(*(getattr(record, name) for name in SERIES))
    return record


def _check_times(
    times: Series, per_rank: Sequence[Series], also: Mapping[str, Series], warm_up: Series
) -> None:
    """Check a record's series. Raises ValueError if values are no times or lengths differ."""
    for series in (times, warm_up, *per_rank, *also.values()):
        sound = not series or (min(series) >= _LEAST_S and max(series) <= _MOST_S)
        if not sound and not all(map(is_time, series)):
            raise ValueError("times are not a list of seconds")
    for name, every in (("per_rank_s", per_rank), ("also", also.values())):
        if any(len(series) != len(times) for series in every):
            raise ValueError(f"{name} has another number of times than times_s")


class _Runs:
    """The runs of records. Records with the same environment share one `Run`."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._environments: dict[str, Mapping[str, Any]] = {}
        self._runs: dict[str, Run] = {}
        self._named: dict[str, Run] = {}

    def keep(self, document: Mapping[str, Any]) -> None:
        """Store the line of an environment. Raises ValueError if it cannot be read."""
        _check_format(document)
        if not isinstance(document["environment"], dict):
            raise ValueError("the environment is no object")
        self._environments[str(document["run"])] = document["environment"]
        self._named.pop(str(document["run"]), None)

    def of(self, name: str, environment: Any, collective: str) -> tuple[Run, str]:
        """The run of a record by its name or its own environment, and a note on it (or "")."""
        if name in self._named:
            return self._named[name], ""
        remark = ""
        if name and name not in self._environments:
            self._environments[name] = {}
            remark = f"the line of run {name} is missing: nothing is known of its machine"
        environment = self._environments[name] if name else environment or {}
        key = json.dumps(environment, sort_keys=True)
        if key not in self._runs:
            number = len(self._runs)
            self._runs[key] = run_of(environment, collective, self._source, number)
        if name:
            self._named[name] = self._runs[key]
        return self._runs[key], remark


def run_of(
    environment: Mapping[str, Any], collective: str, source: str = "<results>", number: int = 0
) -> Run:
    """Create the run of records with this environment. Raises ValueError if it is no object."""
    if not isinstance(environment, Mapping):
        raise ValueError("the environment is no object")
    hosts = environment.get("hosts", ())
    devices = environment.get("devices") or [environment.get("cpu", "")]
    return Run(
        source=source,
        number=number,
        format="busbar",
        program=f"busbar {collective}",
        version=f"busbar {environment.get('busbar', '')}".strip(),
        library=str(environment.get("library", "")),
        hosts=tuple(map(str, hosts)) if isinstance(hosts, list) else (),
        devices=tuple(map(str, devices)) if isinstance(devices, list) else (),
        environment=environment,
    )


def _check_format(document: Mapping[str, Any]) -> None:
    form = document.get("format")
    if not isinstance(form, int) or not 1 <= form <= FORMAT:
        raise ValueError(f"format {form!r} is not one that this version reads (1 to {FORMAT})")


class _Documents:
    """Reads records that are JSON values, of any format."""

    def __init__(self, source: str) -> None:
        self.source, self.runs = source, _Runs(source)
        self.notes: list[Note] = []
        # The lines of runs that announce an end which has not been read yet.
        self._open_runs: dict[str, int] = {}

    def note(self, line: int, text: str, *, broken: bool = False) -> None:
        """Add a note on a line, unless the text is empty."""
        if text:
            self.notes.append(Note(self.source, line, text, broken))

    def _begin(self, name: str, line: int, document: Mapping[str, Any]) -> None:
        """Read the line of an environment."""
        self.runs.keep(document)
        self._without_end(name)
        if document.get("ends") is True:
            self._open_runs[name] = line

    def _end(self, name: str, line: int, document: Mapping[str, Any]) -> None:
        """Read the line that states the end of a run."""
        self._open_runs.pop(name, None)
        if document["end"] != "complete":
            reason = str(document.get("reason", ""))[:_MOST_REASON]
            self.note(line, f"{ENDED_EARLY}: {reason}", broken=True)

    def _without_end(self, name: str) -> None:
        """Note that a run has no end, if one is missing."""
        if (line := self._open_runs.pop(name, None)) is not None:
            self.note(line, "the run has not ended: it was killed, or goes on", broken=True)

    def read(self, line: int, document: object) -> Iterator[tuple[Record, Run]]:
        """The records in a document; none if it is an environment's line.

        Parts that cannot be read are noted. Raises ValueError if nothing can be read.
        """
        if not isinstance(document, dict):
            raise ValueError("not a record")
        if _is_run(document):
            self._begin(str(document["run"]), line, document)
            return
        _check_format(document)
        if {"run", "end", "format"} <= document.keys() and "collective" not in document:
            self._end(str(document["run"]), line, document)
            return
        name = str(document["run"]) if "run" in document else ""
        environment = document.get("environment", {})
        run, remark = self.runs.of(name, environment, str(document.get("collective", "")))
        records, remarks = [], {remark: None}
        is_current = document["format"] == FORMAT  # older formats have up to two placements a line
        halves = [document] if is_current else upgrade.to_format_4(document, run.environment)
        for half in halves:
            try:
                record = msgspec.convert(half, Record)
            except msgspec.ValidationError:
                half, odd = upgrade.without_damage(half)
                remarks |= dict.fromkeys(odd)
                record = msgspec.convert(half, Record)
            records.append(_checked(record))
        for text in remarks:
            self.note(line, text)
        yield from ((record, run) for record in records)


class _Lines(_Documents):
    """Reads blocks of JSON lines into columns."""

    def __init__(self, source: str) -> None:
        super().__init__(source)
        self._builder, self._line, self._open = Builder(), 0, False
        # Numbers of heads by their text, or `_WHOLE`.
        self._heads: dict[bytes, int] = {}

    def block(self, data: bytes) -> None:
        """Read a block of lines; the text behind the last line end may be empty."""
        if len(self._heads) >= _MOST_HEADS:
            self._heads.clear()
        self._open = not data.endswith(b"\n")
        data = data.removesuffix(b"\n")
        if self._add(data):
            return
        for split, group in groupby(data.split(b"\n"), lambda line: line.count(_TIMES) == 1):
            lines = list(group)
            if not split or len(lines) < _FEW or not self._add(b"\n".join(lines)):
                for line in lines:
                    self._line += 1
                    self._whole(line)

    def _add(self, data: bytes) -> bool:
        """Add the next lines if all of them can be split. Returns False, adding none, otherwise."""
        if b"\0" in data:
            return False
        # Every line becomes two lines: its head as a JSON object, and its tail.
        parts, first = data.replace(_TIMES, _CUT).split(b"\n"), self._line + 1
        heads = parts[::2]
        codes = list(map(self._heads.get, heads, repeat(_NEW)))
        if _NEW in codes:
            new = [text for text in dict.fromkeys(heads) if text not in self._heads]
            if not all(text.endswith(b"\0") for text in new):
                return False
            for text in new:
                self._heads[text] = self._head(first + heads.index(text), text[:-1])
            codes = list(map(self._heads.__getitem__, heads))
        if _WHOLE in codes:
            return False
        with suppress(ValueError, msgspec.MsgspecError, RecursionError):
            tails = _TAILS.decode_lines(b"\n".join(parts[1::2]))
            if len(tails) != len(codes):
                raise ValueError("a line has several objects")
            fields = tail_columns(tails)
            times = _times(fields)
            self._builder.extend(codes, np.arange(first, first + len(codes)), fields, times)
            self._line += len(codes)
            return True
        return False

    def _head(self, number: int, text: bytes) -> int:
        """The number of a new head from its text; ``number`` is the line where it first occurs."""
        # Lines of other writers may have their fields in another order.
        with suppress(ValueError, msgspec.MsgspecError):
            line = _LINE.decode(text)
            plain = all(getattr(line, name) == getattr(_NO_TAIL, name) for name in TAIL_FIELDS)
            if plain and line.run and text.startswith(_BEGIN):
                run, remark = self.runs.of(line.run, {}, line.collective)
                self.note(number, remark)
                return self._builder.head(_checked(line), run)
        return _WHOLE

    def _whole(self, line: bytes) -> None:
        """Read a line as one JSON value."""
        if not line or line.isspace():
            return
        try:
            document = _parsed(line)
            for record, run in self.read(self._line, document):
                self._builder.add(record, run, self._line)
            if isinstance(document, dict) and _is_run(document):
                self._heads.clear()  # they may belong to an earlier run of this name
        except _ERRORS as error:
            self.note(self._line, f"record not read: {error}")

    def reading(self) -> Reading:
        """All rows and notes; a note on a last line without a line end is on a cut run."""
        for name in [*self._open_runs]:
            self._without_end(name)
        cut = self._line if self._open else None
        notes = [replace(n, broken=n.broken or n.line == cut) for n in self.notes]
        return Reading(self._builder.rows(), notes)


def _parsed(line: bytes) -> Any:
    """Parse a JSON value. Raises ValueError.

    NaN and Infinity, which earlier versions wrote into environments, become None.
    """
    try:
        return msgspec.json.decode(line)
    except (ValueError, msgspec.MsgspecError, RecursionError):
        try:
            return json.loads(decoded(line), parse_constant=lambda name: None)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"no JSON ({shorten(str(error), 80)})") from None


def _times(fields: Mapping[str, Sequence[Any]]) -> NDArray[np.float64]:
    """The iterations of all records, concatenated. Raises ValueError if one is no time."""
    rows = fields["times_s"]
    times = np.fromiter(chain.from_iterable(rows), np.float64, count=sum(map(len, rows)))
    plain = not len(times) or (times.min() >= _LEAST_S and times.max() <= _MOST_S)
    if not plain and not ((times == 0) | ((times >= _LEAST_S) & (times <= _MOST_S))).all():
        raise ValueError("times are not a list of seconds")
    if any(any(fields[name]) for name in ("per_rank_s", "also", "warm_up_s")):
        for series in zip(*(fields[name] for name in SERIES), strict=True):
            _check_times(*series)
    return times


@contextmanager
def _uncollected() -> Iterator[None]:
    """Disable the cyclic garbage collector, which would scan millions of new objects repeatedly."""
    on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if on:
            gc.enable()


def read_blocks(source: str, blocks: Iterable[bytes]) -> Reading:
    """Read measurements from JSON lines. A truncated line is noted and left out.

    ``blocks``: each has complete lines, except the last line of the last block.
    """
    lines = _Lines(source)
    with _uncollected():
        for data in blocks:
            lines.block(data)
        return lines.reading()


def read_jsonl(source: str, text: str) -> Reading:
    """Read measurements from the text of JSON lines, see `read_blocks`."""
    return read_blocks(source, file_blocks(io.BytesIO(text.encode("utf-8", "surrogatepass"))))


def file_blocks(file: BinaryIO) -> Iterator[bytes]:
    """The bytes of a file in blocks that end at a line end."""
    while data := file.read(_BLOCK):
        yield data + file.readline()


def read_list(source: str, documents: Sequence[object]) -> Reading:
    """Read measurements from a JSON list."""
    reader, builder = _Documents(source), Builder()
    for number, document in enumerate(documents, 1):
        try:
            for record, run in reader.read(0, document):
                builder.add(record, run, 0)
        except _ERRORS as error:
            reader.note(0, f"record {number} not read: {error}")
    return Reading(builder.rows(), reader.notes)


def measurements(text: str, strict: bool = True) -> list[Measurement]:
    """Read measurements from JSON lines with all their fields; texts are made safe to print.

    If a line cannot be read, raises ValueError, or leaves the line out unless ``strict``.
    """
    return [measured(*one) for one in _records(text, strict)]


def _records(text: str, strict: bool) -> Iterator[tuple[Record, Run, int]]:
    """The records of JSON lines, or of a JSON list, with their runs and lines; see `measurements`.

    The line of a record in a list is 0, as for `read_list`.
    """
    reader = _Documents("<text>")
    # JSON has no plain control characters but DEL.
    odd = not text.isascii() or "\\" in text or "\x7f" in text
    lines: Iterable[tuple[int, object]] = enumerate(text.split("\n"), 1)
    if text.lstrip().startswith("["):
        with suppress(ValueError):
            lines = ((0, document) for document in _parsed(text.encode("utf-8", "surrogatepass")))
    for number, line in lines:
        try:
            document = line
            if isinstance(line, str):
                if not line or line.isspace():
                    continue
                document = _parsed(line.encode("utf-8", "surrogatepass"))
            document = printable_values(document) if odd else document
            for record, run in reader.read(number, document):
                yield record, run, number
        except _ERRORS as error:
            if strict:
                raise ValueError(str(error)) from None


def step_measurements(path: Path) -> list[Measurement]:
    """Read the measurements of training steps in JSON lines or a run directory, with loss curves.

    Unreadable lines are left out without a note: `read_blocks` notes them.
    """
    texts = (line for text in record_texts(path) for line in text.split("\n") if '"step"' in line)
    return [one for one in measurements("\n".join(texts), strict=False) if one.step is not None]


def with_steps(path: Path, rows: Sequence[Measurement]) -> Sequence[Measurement]:
    """Rows of a file, those of training steps `with_details`: a `Step` has no columns."""
    if not any(row.collective.startswith(STEP) for row in rows):
        return rows
    return with_details(path, rows)


def with_details(path: Path, rows: Sequence[Measurement]) -> Sequence[Measurement]:
    """Rows of a file or run directory with the fields that have no columns (`_DETAILS`).

    Only records in JSON have these fields. Raises ReportError if the file cannot be read again.
    """
    if not any(row.run.format == "busbar" for row in rows):
        return rows
    details: dict[Hashable, dict[str, Any]] = {}
    with _uncollected():
        for file in filter(Path.is_file, record_files(path)):  # a pipe cannot be read again
            data = read_bytes(file)[0]
            if data.startswith(MAGIC):
                continue
            for record, _, line in _records(decoded(data), strict=False):
                fields = {name: getattr(record, name) for name in _DETAILS}
                if fields != _NO_DETAILS:
                    details[line, _SAME(record)] = fields
        known = (details.get((row.line, _SAME(row)), {}) for row in rows)
        return [msgspec.structs.replace(row, **more) for row, more in zip(rows, known, strict=True)]
