"""Reads Ascend's HCCL test: data size, mean time, algorithm bandwidth, verdict of the check."""

from __future__ import annotations

import re
from collections.abc import Sequence

from reports.readers import names
from reports.readers.gathered import Gathered
from reports.readers.osu import launched_ranks
from reports.readers.text import Line
from reports.readers.whole import agrees, open_line, places
from reports.records.measurement import Measurement, Reading, Run

FORMAT = "hccl"
_COLUMNS = re.compile(r"data_size\(Bytes\)|a\w*g\w*_time\(us\)|alg_bandwidth\(GB/s\)|check_result")
_NAMES = {"d": "size", "a": "time", "alg": "rate", "c": "check"}
_COMMAND = re.compile(r"(?:^|[\s/])(\w+?)_test\b(.*)")
_OPTION = re.compile(r"\s-([do])\s+(\w+)")
_FIGURE = re.compile(r"\d{1,18}(?:\.\d{1,9})?", re.ASCII)
_VERDICTS = {"success": 0, "failed": 1, "null": None}
_FAILED = "check_result is failed; of how many elements is not said, so one is counted as wrong"
_KINDS = {"fp32": "float", "fp16": "half", "bfp16": "bfloat16", "fp64": "double"}


def _header(text: str) -> list[str]:
    """What each cell of a row is, by a header line; empty for any other line."""
    if "data_size(Bytes)" not in text or "alg_bandwidth(GB/s)" not in text:
        return []
    names = _COLUMNS.findall(text)
    short = [_NAMES["alg" if name.startswith("alg_") else name[0]] for name in names]
    return short if {"size", "time", "rate"} <= set(short) else []


def read(source: str, lines: Sequence[Line]) -> Reading:
    """All tables of HCCL's tests in a log."""
    gathered, columns, number = Gathered(source), list[str](), 0
    name, ranks, options = "", None, dict[str, str]()
    run, last = Run(source, 0, FORMAT), open_line(lines)
    for line in lines:
        ranks = launched_ranks(line.text) or ranks
        command = _COMMAND.search(line.text)
        if command and names.collective(command[1]) in names.KNOWN:
            name, options = command[1], dict(_OPTION.findall(command[2]))
        elif header := _header(line.text):
            columns = header
            gathered.header(line.number)
            run = Run(source, number, FORMAT, f"{name}_test" if name else "HCCL test", "HCCL test")
            number += 1
        elif columns and re.match(r"\s*\w+\s*\|", line.text):
            if line.number == last and columns[-1] != "check":
                gathered.take(line.number, "the text ends in this line: its last figure may be cut")
                continue
            row = _row(run, line, columns, names.collective(name), ranks, options)
            gathered.take(line.number, row)
            if isinstance(row, Measurement) and row.wrong:
                gathered.note(line.number, _FAILED)
    return gathered.close()


def _row(
    run: Run, line: Line, columns: list[str], name: str, ranks: int | None, options: dict[str, str]
) -> Measurement | str:
    cells = [cell.strip() for cell in line.text.strip().strip("|").split("|")]
    if len(cells) != len(columns):
        return f"{len(cells)} cells for {len(columns)} columns"
    of = dict(zip(columns, cells, strict=True))
    verdict = of.get("check", "null").lower()
    if verdict not in _VERDICTS:
        return f"check_result is {of['check']!r}"
    if not (of["size"].isdecimal() and len(of["size"]) < 19):
        return f"{of['size']!r} is no size"
    bad = next((of[key] for key in ("time", "rate") if not _FIGURE.fullmatch(of[key])), None)
    if bad is not None:
        return f"{bad!r} is no figure"
    message, seconds, rate = int(of["size"]), float(of["time"]) * 1e-6, float(of["rate"]) * 1e9
    if not seconds:
        return "a time of 0"
    share = _share(of, message / seconds, ranks)
    if share is None:
        return "bandwidth, size and time contradict each other"
    whole = message * share
    known = ranks or (share if share > 1 else None)
    _, busbw = names.rates(name, known, whole, seconds, rate)
    kind = options.get("d", "").lower()
    return Measurement(
        run=run,
        line=line.number,
        collective=name,
        size=whole,
        message=message,
        ranks=known,
        dtype=_KINDS.get(kind, names.dtype(kind)),
        op=options.get("o", "") if name in ("allreduce", "reduce", "reduce_scatter") else "",
        time_s=seconds,
        algbw_bytes_per_s=rate,
        busbw_bytes_per_s=busbw,
        wrong=_VERDICTS[verdict],
    )


def _share(of: dict[str, str], rate: float, ranks: int | None) -> int | None:
    """How many times the data size the bandwidth counts: once, or once for each rank."""
    resolution = 10.0 ** -places(of["rate"]) * 1e9
    if rate < 20 * resolution:  # too few digits to tell
        return 1 if agrees(of["rate"], rate, 1e9, 0.5) else None
    times = [1, ranks] if ranks else range(1, 1 + min(65536, round(2e12 / rate) or 1))
    return next((n for n in times if agrees(of["rate"], n * rate, 1e9)), None)
