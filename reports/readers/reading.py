"""The entry point for all logs: recognise a file, read it, and return rows or a DataFrame."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import os
import re
from collections.abc import Iterable, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from busbar.arguments import program
from busbar.errors import ReportError
from busbar.files import decoded
from busbar.status import EARLY, OVER_LAUNCHES
from busbar.units import agreeing, format_count
from reports.readers import (
    codec,
    json_logs,
    mpi_logs,
    names,
    nccl_text,
    own_exports,
    perftest,
    qualified,
    shortened,
)
from reports.readers.accelerator_logs import read_hccl, read_param, read_torch
from reports.readers.codec import is_rate, is_time
from reports.readers.frame import frame
from reports.readers.printable import cleaned
from reports.readers.text import (
    LIMIT,
    Line,
    lines,
    read_bytes,
    row_files,
    unlabelled,
    without_cut,
)
from reports.records.measurement import ENDED_EARLY, Measurement, Note, Reading, Run, grouped
from reports.records.table import Measurements, of_kind, without_repeats

if TYPE_CHECKING:
    from pandas import DataFrame


#: How the note on a failed run begins.
SAYS = "the run failed: "
_END = re.compile(
    r"\b(?:NCCL|RCCL|CUDA|Cuda|HIP) failure:? "  # nccl-tests and rccl-tests, old and new
    r"|\bTest (?:timeout \(\d+s?\)|failure\b)"  # the same, of the test as a whole
    r"|\bDATA VALIDATION ERROR:"  # OSU, which ends there
    r"|\btime limit for job execution has been reached"  # Open MPI's --timeout
    r"|\bSignal: [A-Z].* \(\d+\)|\bexited on signal \d|exited with non-zero status"  # Open MPI
    r"|\bMPI_ABORT was invoked|\bFatal error in \w+:|\bAbort\(\d+\) on node"
    r"|\bBAD TERMINATION OF ONE OF|\bEXIT STRING: "  # Hydra
    r"|\bsrun: error: .*(?:tasks? |Killed|Terminated|Exited)|\bslurmstepd: error: \*\*\* "
    r"|^\s*(?:\S+: line \d+: .*)?(?:Segmentation fault|Bus error|Killed|Aborted)\b"
    rf"|^{EARLY} "  # Busbar's own
)
_WARNING = re.compile(r"\bNCCL WARN \S")
_MOST_QUOTED = 200


def failures(source: str, lines: Iterable[Line], rows: bool) -> list[Note]:
    """At most one note: the first line that shows that the run failed.

    NCCL's warnings count only if there are no rows, because a good run may have them too.
    """
    warned: Line | None = None
    for line in lines:
        if _END.search(line.text):
            return [_failure(source, line)]
        if not rows and warned is None and _WARNING.search(line.text):
            warned = line
    return [] if warned is None else [_failure(source, warned)]


def _failure(source: str, line: Line) -> Note:
    text = line.text.strip()
    says, text = (f"{ENDED_EARLY}:", text[len(EARLY) :]) if text.startswith(EARLY) else (SAYS, text)
    return Note(source, line.number, says + text.removeprefix("# ")[:_MOST_QUOTED], broken=True)


def _marked(notes: Sequence[Note], text: str) -> list[Note]:
    """Mark notes on the last line of a text without a line end as notes on a cut run.

    What was inferred for the table of that line is no reason.
    """
    last = 0 if text.endswith(("\n", "\r")) else text.count("\n") + 1
    return [
        dataclasses.replace(n, broken=n.broken or (0 < n.line == last and not n.inferred))
        for n in notes
    ]


#: Patterns and names of programs whose output is recognised but cannot be read.
_UNREAD: tuple[tuple[str, str], ...] = (
    (r"^\|\s*Stage\s*\|\s*# iterations|\bucx_perftest\b", "UCX's ucx_perftest"),
    (r"^# Benchmarking: ccl_(?:bw|latency)\b", "oneCCL's point-to-point benchmark's"),
    (r"\bucc_perftest\b|^Collective:\s+\w+\s*\n\s*Memory type:", "UCC's ucc_perftest"),
    (r"^\[ *ID\] +Interval +Transfer", "iperf's or iperf3's"),
    (r"^sockperf(?:\[|:)", "sockperf's"),
    (r"^\s*bytes\s+(?:iters\s+)?#sent\s+#ack|^bytes\s+iters\s+total\s", "libfabric's fabtests'"),
    (r"\bTransferBench v\d", "TransferBench's"),
    (r"RocmBandwidthTest Version|\bRocm Bandwidth Test\b", "rocm_bandwidth_test's"),
    (r"^---- Performance of \w+ on ", "DeepSpeed's communication benchmark's"),
    (r"^\s*elements\s+min \(us\)\s+p50 \(us\)", "gloo's benchmark's"),
    (r"^\s*(?:tcp|rc)_(?:bw|lat):\s*$", "qperf's"),
    (r'"n_iterations"\s*:.*\n?.*"(?:BW_average|t_avg|t_typical)"|"BW_average"\s*:',
     "perftest's JSON (--out_json); its text"),
    (r'"traceEvents"\s*:', "a trace's of PyTorch, Chrome or Nsight"),
    (r"\bNCCL INFO .*\bComm/|(?m:^# .*\bMSCCL\+\+)|\bmscclpp", "MSCCL++'s"),
)  # fmt: skip
# Lines of what Busbar prints below a run's rows: tables of all algorithms, the answer's title, and
# the beginnings of its sentences (`reports.analysis.answer`), which may be wrapped.
_SUMMARY = "|".join(
    (
        OVER_LAUNCHES,
        r"; \(x\): against library",
        r"(?m:^(?:# )?the fastest of .*, (?:by|at each) )",
        r"(?m:^(?:# )?(?:[^:\n]+: )?(?:"
        r"cannot tell whether|medians alone:|too disturbed to (?:compare|rely)|no answer: with one"
        r"|(?:highest|least) \w+ [\d.]+ \S+: \S+ at \d|times may be disturbed: other programs"
        r"|\S+ (?:was|may be) (?:the fastest|(?:at least )?[\d.]+ times as fast|no faster than)"
        r"|\S+ took (?:the least time|(?:at least )?[\d.]+ (?:to [\d.]+ )?times as long))\b)",
    )
)
_READ_INSTEAD = "which is recognised and not read"


def foreign_texts() -> tuple[tuple[str, str], ...]:
    """Texts that are no logs of benchmarks: a pattern, and a note on which command reads them."""
    map_ = f"this is a map of a machine, which {program('topology')} --from reads"
    plan = f"which {program('collectives')} verify and -A read"
    unread = ((rf"(?m){mark}", f"this is {name} output, {_READ_INSTEAD}") for mark, name in _UNREAD)
    return (
        (r"\bGPU ?0[ \t|]+X\b|<(?:system|topology|nvidia_smi_log)[\s>]", map_),
        (r"ROCm System Management Interface|^LINK TYPE TABLE:|between two GPUs =", map_),
        (r"P2P=(?:Enabled|Disabled).*Matrix|\bnvbandwidth Version", map_),
        (r"<algo\s", f"this is an MSCCL schedule, {plan}"),
        (
            r'"threadblocks"\s*:|"remote_buffers"\s*:',
            f"this is an execution plan of MSCCL++, which {program('collectives')} verify reads",
        ),
        (
            _SUMMARY,
            "this is Busbar's summary, which is not read back: give the file of --out, or rerun"
            " with --out FILE",
        ),
        *unread,
        (r"\bNCCL INFO ", "NCCL's own lines (NCCL_DEBUG), and no row of a benchmark among them"),
    )


def foreign_name(text: str) -> str:
    """A note on what a text without rows is; "" if unknown."""
    return next((name for mark, name in foreign_texts() if re.search(mark, text)), "")


# Readers that cannot tell whether the last figure of a text is cut.
_TEXT_READERS = nccl_text.read, mpi_logs.read_osu, mpi_logs.read_imb
# Readers that can tell whether a row is complete, because the programs print fixed numbers of
# decimals or end a row with a word. Each with a text that every such log contains.
_CLOSED_READERS = (
    ("#iterations", perftest.read), ("algbw", read_torch), (mpi_logs.MARK, mpi_logs.read_oneccl),
    ("alg_bandwidth", read_hccl), ("COMMS-RES", read_param), ("", shortened.read),
)  # fmt: skip
# The beginning of JSON, as distinct from a log with tags in brackets.
_JSON = re.compile(r"\s*(?:\{\s*[\"}]|\{\s*$|\[\s*[{\]]|\[\s*$)")
_START = re.compile(r"\s*(\S)")
_LINE = re.compile(r"\S[^\n]*")
_FIRST_LINES, _MOST_FIRST = 5, 1 << 20
_RATES = tuple(name for name in of_kind("real") if name.endswith("_per_s"))
_TIMES = tuple(name for name in of_kind("real") if name.endswith("_s") and name not in _RATES)
_HEAD = 200
# Endings of texts that quote logs, and the note on rows from them.
_PROSE = (".md", ".rst", ".html", ".ipynb", ".tex")
_QUOTED = "taken from a text, which may quote only a part of a run"
#: The note on a text that ends inside a row.
CUT = "the text ends here without a line end: the run was cut"
#: Most characters of a log or of a JSON document; longer ones would take minutes and gigabytes.
MOST_TEXT, MOST_JSON = 64 << 20, 256 << 20


def read(path: Path | str, ranks: int | None = None, collective: str = "") -> Reading:
    """The rows of a file of any known format, or of the records in a run directory.

    ``ranks`` is used if a log does not state the number of ranks, and ``collective`` if it names
    none. Raises ReportError, with the reason, if the file cannot be read or has no row.
    """
    path = Path(path)
    if os.path.isdir(path):  # noqa: PTH112 - False for a name that is too long
        return _directory(path, ranks, collective)
    reading = _bounded(cleaned(_file(path)))
    if not reading.rows:
        more = f"; {len(reading.notes) - 1} lines more" if len(reading.notes) > 1 else ""
        notes = sorted(reading.notes, key=lambda n: not n.text.startswith(SAYS))
        first = notes[0] if notes else None
        where = f" (line {first.line})" if first and first.line else ""
        why = f": {first.text}{where}{more}" if first else ""
        raise ReportError(f"{path}: no row of nccl-tests, OSU, IMB or Busbar could be read{why}")
    if ranks is not None or collective:
        rows = [_completed(row, ranks, collective) for row in reading.rows]
        reading = Reading(rows, reading.notes)
    if isinstance(reading.rows, Measurements) or not any(map(_lacks_ranks, reading.rows)):
        return reading
    unknown = Note(str(path), 0, "does not say how many ranks there were; --ranks N gives busbw")
    return Reading(reading.rows, [*reading.notes, unknown])


def _file(path: Path) -> Reading:
    with contextlib.suppress(OSError), path.open("rb") as file:
        small = path.is_file() and path.stat().st_size <= LIMIT
        if small and _are_records(b"".join(islice(file, _FIRST_LINES))):
            file.seek(0)  # read in blocks, because it may be larger than memory
            return codec.read_blocks(str(path), codec.file_blocks(file))
    data, note = read_bytes(path)
    if not data.strip():
        raise ReportError(f"{path}: the file is empty")
    if data.startswith(own_exports.MAGIC):
        return Reading(own_exports.read_parquet(str(path), data))
    if _are_records(b"\n".join(data[:_MOST_FIRST].split(b"\n", _FIRST_LINES)[:-1])):
        reading = codec.read_blocks(str(path), codec.file_blocks(io.BytesIO(data)))
    else:
        reading = parse(decoded(data), str(path))
    if reading.rows and path.suffix.lower() in _PROSE:
        count = len(reading.rows)
        quoted = f"{format_count(count, 'row')} {agreeing(count, 'are')} {_QUOTED}"
        reading = Reading(reading.rows, [*reading.notes, Note(str(path), 0, quoted)])
    if not note:
        return reading
    return Reading(reading.rows, [*reading.notes, Note(str(path), 0, note, broken=True)])


def _are_records(begin: bytes) -> bool:
    """True if the first lines of a file are Busbar's records, in UTF-8 without byte order mark."""
    plain = not begin.startswith(b"\xef\xbb\xbf") and b"\0" not in begin
    return plain and _is_jsonl(decoded(begin))


def _bounded(reading: Reading) -> Reading:
    """Remove rows with impossible values, and note them. Busbar's records are checked already."""
    if isinstance(reading.rows, Measurements):
        return reading
    pairs = [(row, _impossible(row)) for row in reading.rows]
    odd = [Note(r.run.source, r.line, f"row not read: {why}") for r, why in pairs if why]
    return Reading([r for r, why in pairs if not why], [*reading.notes, *odd]) if odd else reading


def _impossible(row: Measurement) -> str:
    """Why a row's values are impossible; empty if they are possible."""
    for name in of_kind("count"):
        if abs(getattr(row, name) or 0) >= 1 << 63:
            return f"{name} is a whole number of more than 63 bits"
    for name in _RATES:
        if not is_rate(rate := getattr(row, name) or 0):
            return f"{name} of {rate:g} is a rate that nothing has"
    for name in _TIMES:
        if not is_time(seconds := getattr(row, name) or 0):
            return f"{name} of {seconds:g} is a time that nothing takes"
    every = chain(row.times_s, *row.per_rank_s)
    odd = next((seconds for seconds in every if not is_time(seconds)), None)
    return "" if odd is None else f"an iteration of {odd:g} s, a time that nothing takes"


def _directory(path: Path, ranks: int | None, collective: str) -> Reading:
    """Read all records in a folder; Parquet files, or else logs, only if there are no JSON lines.

    ``ranks``, ``collective``: for logs that do not state them, see `read`. A file without a
    readable row becomes a note. Raises ReportError if no file has rows.
    """
    files = row_files(path)
    if not files:
        if (path / qualified.FILE).is_file():
            raise ReportError(
                f"{path}: no launch measured a rate; {qualified.FILE} has the reasons, and"
                f" {qualified.LAUNCHES} every launch"
            )
        if qualified.is_campaign(path):
            raise ReportError(f"{path}: {qualified.its_verdicts(path)}")
        raise ReportError(
            f"{path}: a folder without records (.jsonl, .jsonl.gz or .parquet) and without logs"
            " (.log, .out, .txt, or these with .gz)"
        )
    if len(files) == 1:
        return read(files[0], ranks, collective)
    parts = []
    for file in files:
        try:
            parts.append(read(file, ranks, collective))
        except ReportError as error:  # for example a run that was killed before its first row
            why = str(error).removeprefix(f"{file}: ")
            parts.append(Reading((), [Note(str(file), 0, why, broken=True)]))
    if not any(part.rows for part in parts):
        raise ReportError(f"{path}: no row in any of its {len(files)} files")
    parts = once(parts)
    return Reading([r for p in parts for r in p.rows], [n for p in parts for n in p.notes])


def once(readings: Sequence[Reading]) -> list[Reading]:
    """The readings, with a note in place of rows that an earlier one has, see `without_repeats`."""
    parts, repeats = without_repeats([one.rows for one in readings])
    notes: list[list[Note]] = [list(one.notes) for one in readings]
    for (part, earlier), same in grouped(repeats, lambda r: (r.part, r.earlier.source)).items():
        rows = format_count(sum(one.rows for one in same), "row")
        text = f"{rows} of a launch that {earlier} has, too; a launch counts once"
        notes[part].append(Note(readings[part].rows[0].run.source, 0, text))
    return [Reading(*one) for one in zip(parts, notes, strict=True)] if repeats else list(readings)


class ReadFiles(NamedTuple):
    """Files that could be read, with their readings, and the errors of the others."""

    paths: list[Path]
    readings: list[Reading]
    errors: list[ReportError]

    def having_rows(self) -> ReadFiles:
        """Without the files whose rows all belong to launches that earlier files have."""
        both = [both for both in zip(self.paths, self.readings, strict=True) if len(both[1].rows)]
        return self._replace(paths=[path for path, _ in both], readings=[one for _, one in both])


def read_each(paths: Iterable[Path | str], ranks: int | None, collective: str = "") -> ReadFiles:
    """Read files and go on past those that cannot be read; a launch counts once (`once`)."""
    files = ReadFiles([], [], [])
    for path in map(Path, paths):
        try:
            files.readings.append(read(path, ranks, collective))
            files.paths.append(path)
        except ReportError as error:
            files.errors.append(error)
    return files._replace(readings=once(files.readings))


def parse(text: str, source: str = "<text>") -> Reading:
    """The rows in a text. Raises nothing: notes say what cannot be read."""
    if _is_jsonl(text):
        return codec.read_jsonl(source, text)
    start = _START.match(text)
    if start and start[1] in ("{", "["):
        if len(text) > MOST_JSON:
            return _long(source, MOST_JSON, "a JSON document", "write records as .jsonl")
        reading = _json(text, source)
        if reading is not None:
            return reading
    if len(text) > MOST_TEXT:
        return _long(source, MOST_TEXT, "a log", "take out what the library prints (NCCL INFO)")
    if text.startswith("collective,algorithm,"):
        reading = own_exports.read_csv(source, text)
        return Reading(reading.rows, _marked(reading.notes, text))
    whole = list(unlabelled(lines(text)))
    clean, cut = without_cut(whole, text)
    parts = [reader(source, whole) for mark, reader in _CLOSED_READERS if mark in text]
    if any(part.rows for part in parts):
        cut = None
    parts += [reader(source, clean) for reader in _TEXT_READERS]
    rows = sorted((r for p in parts for r in p.rows), key=lambda r: r.line)
    notes = [n for p in parts for n in p.notes] + failures(source, clean, bool(rows))
    if cut is not None and (rows or notes):
        notes.append(Note(source, cut.number, CUT))
    if not rows and not notes:
        name = foreign_name(text)
        notes = [Note(source, 0, name)] if name else []
    return Reading(rows, _marked(sorted(notes, key=lambda n: n.line), text))


def _long(source: str, most: int, what: str, remedy: str) -> Reading:
    note = f"{what} of more than {most >> 20} MiB is not read; split it, or {remedy}"
    return Reading((), [Note(source, 0, note)])


def _json(text: str, source: str) -> Reading | None:
    """The rows in a JSON text; None if the text does not begin with JSON."""
    values = json_logs.documents(text)
    known = [one for one in values if one.value is not None]
    if not known and not _JSON.match(text):
        return None
    parts, singles = [], []
    for one in known:
        if json_logs.is_rccl([one.value]):
            singles.append(one.value)  # an object a line
        else:
            parts.append(_document(source, one.value))
    if singles:
        parts.append(json_logs.read_rccl(source, singles))
    if None in parts and not _JSON.match(text):
        return None
    read_ = [part for part in parts if part is not None]
    notes = [note for part in read_ for note in part.notes]
    notes += [
        Note(source, line, remark, broken=remark.startswith(json_logs.ENDS_EARLY))
        for one in values
        for line, remark in one.notes
    ]
    if None in parts and not notes:
        notes.append(Note(source, 0, _unknown(text)))
    return Reading(read_[0].rows, notes) if len(read_) == 1 else Reading(_numbered(read_), notes)


def _unknown(text: str) -> str:
    """The note on a JSON document that has no rows."""
    if '"busbar_topology"' in text[:_HEAD]:
        return f"this is a map of a machine, which {program('topology')} --from reads"
    return foreign_name(text) or "a JSON document of a shape that is not known"


def _is_jsonl(text: str) -> bool:
    """True if one of the first five lines is a record of Busbar: the first may be damaged."""
    for line in islice(_LINE.finditer(text), _FIRST_LINES):
        try:
            if codec.recognises(json.loads(line.group())):
                return True
        except (ValueError, RecursionError):
            continue
    return False


def _document(source: str, document: object) -> Reading | None:
    """The rows in one JSON document; None if its format is unknown."""
    if isinstance(document, dict) and json_logs.is_nccl(document):
        return json_logs.read_nccl(source, document)
    if isinstance(document, list) and json_logs.is_rccl(document):
        return json_logs.read_rccl(source, document)
    if isinstance(document, list) and any(isinstance(one, dict) for one in document):
        return codec.read_list(source, document)
    return None


def _numbered(parts: Sequence[Reading]) -> list[Measurement]:
    """The rows of several documents, with their runs numbered consecutively."""
    rows: list[Measurement] = []
    runs: dict[int, Run] = {}
    for part in parts:
        for row in part.rows:
            if id(row.run) not in runs:
                runs[id(row.run)] = dataclasses.replace(row.run, number=len(runs))
            rows.append(replace(row, run=runs[id(row.run)]))
    return rows


def _completed(row: Measurement, ranks: int | None, collective: str) -> Measurement:
    """Set what a row lacks of collective and rank count, and compute its size and rates."""
    if collective and not row.collective:
        row = replace(row, collective=collective)
    if ranks is None or row.ranks is not None or row.message is None:
        return row
    size = names.whole(row.collective, row.message, ranks) if row.size is None else row.size
    rates = (row.algbw_bytes_per_s, row.busbw_bytes_per_s)
    algbw, busbw = names.rates(row.collective, ranks, size, row.time_s, *rates)
    return replace(row, ranks=ranks, size=size, algbw_bytes_per_s=algbw, busbw_bytes_per_s=busbw)


def _lacks_ranks(row: Measurement) -> bool:
    """True if a row has no busbw because its number of ranks is unknown."""
    rated = row.algbw_bytes_per_s is not None and row.busbw_bytes_per_s is None
    return rated and row.ranks is None


def load(path: Path | str, ranks: int | None = None) -> DataFrame:
    """A log as a DataFrame, one row per placement. Columns and units: docs/logs.md.

    ``frame.attrs["notes"]`` lists what could not be read, or was inferred, as ``file:line: text``.
    Raises ReportError if nothing can be read.
    """
    reading = read(path, ranks)
    table = frame(reading.rows, spent=True)
    table.attrs["notes"] = [str(n) for n in reading.notes]
    return table
