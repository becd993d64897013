"""Read logs of Ascend's HCCL test, PARAM's ``comms.py`` and all_reduce_bench.

HCCL prints data size, mean time, algorithm bandwidth and the verdict of the check. PARAM prints
lines that begin with ``COMMS-RES``. all_reduce_bench (of the Machine Learning Engineering book)
prints payload, busbw and algbw, but no times: the time of a row is payload / algbw.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from reports.readers import names
from reports.readers.gathered import Gathered, agrees, fixed, message_row, open_line, places
from reports.readers.mpi_logs import launched_ranks
from reports.readers.text import FIGURE, Line
from reports.records.measurement import Measurement, Reading, Run

HCCL = "hccl"
_HCCL_COLUMNS = re.compile(
    r"data_size\(Bytes\)|a\w*g\w*_time\(us\)|alg_bandwidth\(GB/s\)|check_result"
)
_NAMES = {"d": "size", "a": "time", "alg": "rate", "c": "check"}
_COMMAND = re.compile(r"(?:^|[\s/])(\w+?)_test\b(.*)")
_OPTION = re.compile(r"\s-([do])\s+(\w+)")
_VERDICTS = {"success": 0, "failed": 1, "null": None}
_FAILED = "check_result is failed; of how many elements is not said, so one is counted as wrong"
_KINDS = {"fp32": "float", "fp16": "half", "bfp16": "bfloat16", "fp64": "double"}


def _hccl_header(text: str) -> list[str]:
    """What each figure of a row means, from a header line of hccl_test; empty for another line."""
    if "data_size(Bytes)" not in text or "alg_bandwidth(GB/s)" not in text:
        return []
    names = _HCCL_COLUMNS.findall(text)
    short = [_NAMES["alg" if name.startswith("alg_") else name[0]] for name in names]
    return short if {"size", "time", "rate"} <= set(short) else []


def read_hccl(source: str, lines: Sequence[Line]) -> Reading:
    """Read all tables of HCCL's tests in a log."""
    gathered, columns, number = Gathered(source), list[str](), 0
    name, ranks, options = "", None, dict[str, str]()
    run, last = Run(source, 0, HCCL), open_line(lines)
    for line in lines:
        ranks = launched_ranks(line.text) or ranks
        command = _COMMAND.search(line.text)
        if command and names.collective(command[1]) in names.KNOWN:
            name, options = command[1], dict(_OPTION.findall(command[2]))
        elif header := _hccl_header(line.text):
            columns = header
            gathered.header(line.number)
            run = Run(source, number, HCCL, f"{name}_test" if name else "HCCL test", "HCCL test")
            number += 1
        elif columns and re.match(r"\s*\w+\s*\|", line.text):
            if line.number == last and columns[-1] != "check":
                gathered.take(line.number, "the text ends in this line: its last figure may be cut")
                continue
            row = _hccl_row(run, line, columns, names.collective(name), ranks, options)
            gathered.take(line.number, row)
            if isinstance(row, Measurement) and row.wrong:
                gathered.note(line.number, _FAILED)
    return gathered.close()


def _hccl_row(
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
    bad = next((of[key] for key in ("time", "rate") if not FIGURE.fullmatch(of[key])), None)
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
    """How often the bandwidth counts the data size: once, or once per rank; None for neither."""
    resolution = 10.0 ** -places(of["rate"]) * 1e9
    if rate < 20 * resolution:  # too few digits to tell
        return 1 if agrees(of["rate"], rate, 1e9, 0.5) else None
    times = [1, ranks] if ranks else range(1, 1 + min(65536, round(2e12 / rate) or 1))
    return next((n for n in times if agrees(of["rate"], n * rate, 1e9)), None)


PARAM = "param"
_PARAM_ROW = re.compile(r"COMMS-RES-(?!QUANT)([a-z]\w*)-([a-z]+\d*)(\S*)\s+(\d.*)$")
_PARAM_HEADER = re.compile(r"COMMS-RES\s+(?:total-)?size \(B\)\s+(.+)$")
_QUANTISED = re.compile(r"COMMS-RES-QUANT\S*\s")
_RANKS = re.compile(r"\bworld[-_ ]?size['\"]?\s*[:=]\s*(\d{1,7})\b", re.IGNORECASE)
#: The columns behind the size if there is no header.
_PLAIN = ("count", "p50", "p75", "p95", "min", "max", "algbw", "busbw", "total")
_PAIR = ("p50", "p75", "p95", "both50", "both75", "both95", "uni", "bi", "all uni", "all bi")
_TITLES = (
    (r"n\w*Elements\w*|num-elements", "count"),
    (r"(?:Latency|Time)\(us\):p50|Latency\(us\)", "p50"),
    (r"p75", "p75"), (r"p95", "p95"), (r"Min", "min"), (r"Max", "max"),
    (r"AlgBW\S*", "algbw"), (r"BusBW\S*", "busbw"), (r"Total\S*", "total"),
)  # fmt: skip
_DECIMALS = {"algbw": 3, "busbw": 3, "uni": 3, "bi": 3, "all uni": 3, "all bi": 3}


@dataclass
class _ParamState:
    """The facts of the lines above a row."""

    run: Run
    columns: tuple[str, ...] = ()
    ranks: int | None = None
    seen: set[str] = field(default_factory=set)


def read_param(source: str, lines: Sequence[Line]) -> Reading:
    """Read all results in a log. Results of quantised exchanges are only noted."""
    gathered, number = Gathered(source), 0
    state = _ParamState(Run(source, 0, PARAM, "PARAM comms", "PARAM"))
    for line in lines:
        if ranks := _RANKS.search(line.text):
            state.ranks = int(ranks[1])
        if "COMMS-RES" not in line.text:
            continue
        if header := _PARAM_HEADER.search(line.text):
            gathered.header(line.number)
            state.columns = _param_columns(header[1])
            state.run = Run(source, number, PARAM, "PARAM comms", "PARAM")
            number += 1
        elif row := _PARAM_ROW.search(line.text):
            for one in _param_rows(state, line.number, row):
                gathered.take(line.number, one)
        elif _QUANTISED.search(line.text):
            if "quantised" not in state.seen:
                gathered.note(
                    line.number, "COMMS-RES-QUANT, times of a quantised exchange: not read"
                )
            state.seen.add("quantised")
    return gathered.close()


def _param_columns(text: str) -> tuple[str, ...]:
    """The columns behind the size, from a header; () for an unknown header."""
    if "pingLatency" in text:
        return _PAIR
    columns = []
    for word in text.split():
        name = next((name for title, name in _TITLES if re.fullmatch(title, word)), None)
        if name is None:
            return ()
        columns.append(name)
    return tuple(columns)


def _param_rows(state: _ParamState, line: int, match: re.Match[str]) -> list[Measurement | str]:
    cells = match[4].split()
    size, rest = cells[0], cells[1:]
    collective = names.collective(re.sub(r"_base$", "", match[1]))
    pair = collective == "pt2pt"
    columns = state.columns or (_PAIR if pair else _PLAIN)
    # Older versions do not print the last column of the header, the total time.
    if len(rest) == len(columns) - 1 and columns[-1] == "total":
        columns = columns[:-1]
    if len(rest) != len(columns):
        return [f"{len(rest)} figures for {len(columns)} columns"]
    if not (size.isdecimal() and len(size) < 19):
        return [f"{size!r} is no size"]
    of = dict(zip(columns, rest, strict=True))
    figures: dict[str, float] = {}
    for name, cell in of.items():
        count = name == "count" and cell.isdecimal() and len(cell) < 19
        value = float(cell) if count else fixed(cell, _DECIMALS.get(name, 1))
        if value is None:
            return [f"{cell!r} is no figure ({name})"]
        figures[name] = value
    fields: dict[str, Any] = {"dtype": names.dtype(match[2]), "statistic": "median"}
    if pair:
        return _pair(state, line, int(size), figures, fields)
    return [_collective(state, line, collective, int(size), of, figures, fields)]


def _collective(
    state: _ParamState,
    line: int,
    collective: str,
    size: int,
    of: dict[str, str],
    figures: dict[str, float],
    fields: dict[str, Any],
) -> Measurement | str:
    seconds = figures["p50"] * 1e-6 if "p50" in figures else None
    if not seconds:
        return "no time, or one of 0"
    # The time has one decimal, which is coarse for the fastest rows.
    slack = 0.01 + 0.051e-6 / seconds
    if "algbw" in of and not agrees(of["algbw"], size / seconds, 1e9, slack):
        return "algbw, size and time contradict each other"
    if "min" in figures and not figures["min"] <= figures["p50"] <= figures.get("max", 1e18):
        return "the median is not between the least and the largest time"
    rates = figures.get("algbw"), figures.get("busbw")
    ranks = state.ranks or names.ranks_from_rates(collective, rates[0] or 0.0, rates[1] or 0.0)
    return Measurement(
        run=state.run,
        line=line,
        collective=collective,
        size=size,
        message=size,
        ranks=ranks,
        count=int(figures["count"]) if "count" in figures else None,
        time_s=seconds,
        min_s=names.scaled(figures.get("min"), 1e-6),
        max_s=names.scaled(figures.get("max"), 1e-6),
        algbw_bytes_per_s=names.scaled(rates[0], 1e9),
        busbw_bytes_per_s=names.scaled(rates[1], 1e9),
        **fields,
    )


def _pair(
    state: _ParamState, line: int, size: int, figures: dict[str, float], fields: dict[str, Any]
) -> list[Measurement | str]:
    """Rows of a pair: latency of a ping, bandwidth one way, and bandwidth both ways."""
    pairs = [
        message_row(state.run, line, "latency", size, 2, time_s=figures["p50"] * 1e-6, **fields)
    ]
    fields = {**fields, "statistic": "mean"}
    for name, column in (("bandwidth", "uni"), ("bidirectional_bandwidth", "bi")):
        rate = figures[column] * 1e9
        pairs.append(
            message_row(state.run, line, name, size, 2, bandwidth_bytes_per_s=rate, **fields)
        )
    return pairs


TORCH = "all_reduce_bench"
_RATE = r"(\d{1,9}\.\d\d)\s?GBps"
_HEADER = re.compile(r"^\W*(payload\s*\|\s*)?busbw\s*\|\s*algbw\s*\|\s*$")
_ROW = re.compile(rf"^\s*\|?\s*(\d{{1,4}})\s?([KMGTP]?i?B)\s*\|\s*{_RATE}\s*\|\s*{_RATE}\s*\|\s*$")
_TRIAL = re.compile(rf"^\s*\|?\s*{_RATE}\s*\|\s*{_RATE}\s*\|\s*$")
_OVER = re.compile(
    r"bandwidth of all_reduce over (\d{1,7}) ranks \(\d+ warmups / (\d{1,9}) trials\)"
)
_PAYLOAD = re.compile(r"\bThe (\d{1,6}(?:\.\d{1,3})?)(GiB|GB) payload bandwidth of all_reduce")
_OLD = re.compile(
    r"average bandwidth of all_reduce with a (\d{1,6}(?:\.\d{1,3})?)(GB|GiB) payload "
    r"\((\d{1,9}) trials, (\d{1,7}) ranks\)"
)
# The text before the colon may have been removed as a label of the line.
_OLD_RATE = re.compile(
    r"^\s*(?:(?:algbw|busbw): )?(\d{1,9}\.\d{3}) GBps \((\d{1,9}\.\d) Gbps\)\s*$"
)
_LIBRARY = re.compile(r"\bnccl=\(?(\d[\d., ]*\d)\)?")
_BYTES = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40, "GB": 10**9}
_DERIVED = "times are payload over algbw, which all_reduce_bench prints instead"


@dataclass
class _TorchTable:
    """The facts of the lines and rows above a row."""

    run: Run
    ranks: int | None = None
    trials: int | None = None
    payload: int | None = None
    header: bool = False
    library: str = ""
    algbw: float | None = None

    def row(
        self, line: Line, size: int, busbw: float, algbw: float, trials: int | None = None
    ) -> Measurement | str:
        """A row, or as text why its two rates cannot be those of an all-reduce on these ranks."""
        if not algbw > 0:
            return "a rate of 0, which has no time"
        factor = 2 * (self.ranks - 1) / self.ranks if self.ranks else None
        low, high = (0.99, 2.01) if factor is None else (factor * 0.99, factor * 1.01)
        slack = 0.0051e9
        if not low * (algbw - slack) <= busbw + slack or busbw - slack > high * (algbw + slack):
            return f"busbw is {busbw / algbw:.3g} times algbw, which no all-reduce has here"
        return Measurement(
            run=dataclasses.replace(self.run, library=self.library),
            line=line.number,
            collective="allreduce",
            size=size,
            message=size,
            ranks=self.ranks,
            op="sum",
            time_s=size / algbw,
            algbw_bytes_per_s=algbw,
            busbw_bytes_per_s=busbw,
            iterations=trials or self.trials,
        )


def read_torch(source: str, lines: Sequence[Line]) -> Reading:
    """Read all tables of all_reduce_bench, and the two lines printed by its first versions."""
    gathered, number = Gathered(source), 0
    table = _TorchTable(Run(source, 0, TORCH, TORCH))
    for line in lines:
        text = line.text
        if library := _LIBRARY.search(text):
            table.library = "NCCL " + re.sub(r"[, ]+", ".", library[1])
        if over := _OVER.search(text):
            payload = _PAYLOAD.search(text)
            table.payload = round(float(payload[1]) * _BYTES[payload[2]]) if payload else None
            table.ranks, table.trials, table.header = int(over[1]), int(over[2]), False
        elif old := _OLD.search(text):
            gathered.close()
            table.payload, table.algbw = round(float(old[1]) * _BYTES[old[2]]), None
            table.ranks, table.trials = int(old[4]), int(old[3])
            table.run, number = dataclasses.replace(table.run, number=number), number + 1
        elif header := _HEADER.match(text):
            if header[1] or table.payload is not None:
                gathered.header(line.number)
                table.run, table.header = dataclasses.replace(table.run, number=number), True
                number += 1
        elif (row := _ROW.match(text)) and table.header and row[2] in _BYTES:
            size, busbw, algbw = int(row[1]) * _BYTES[row[2]], float(row[3]), float(row[4])
            gathered.take(line.number, table.row(line, size, busbw * 1e9, algbw * 1e9))
        elif (trial := _TRIAL.match(text)) and table.header and table.payload:
            busbw, algbw = float(trial[1]) * 1e9, float(trial[2]) * 1e9
            gathered.take(line.number, table.row(line, table.payload, busbw, algbw, trials=1))
        elif (rate := _OLD_RATE.match(text)) and table.payload:
            _old_rate(gathered, table, line, rate)
        elif table.header and "|" in text and re.search(r"\d", text):
            gathered.take(line.number, "not payload, busbw and algbw with their units")
        elif table.header and text.strip() and "|" not in text:
            table.header = False
    rows = _with_ranks(gathered.close())
    if rows.rows:
        gathered.note(rows.rows[0].line, _DERIVED)
    return Reading(rows.rows, gathered.notes)


def _old_rate(gathered: Gathered, table: _TorchTable, line: Line, rate: re.Match[str]) -> None:
    """Take a line ``algbw: 1.000 GBps (8.0 Gbps)``, or one of busbw, which completes a row."""
    name = line.stream or line.text.split(":")[0].strip()
    value = float(rate[1]) * 1e9
    if abs(float(rate[2]) * 1e9 - 8 * value) > 0.051e9 + 8 * 0.00051e9:
        gathered.take(line.number, "GBps and Gbps contradict each other")
    elif name == "algbw":
        table.algbw = value
    elif name == "busbw" and table.algbw is not None and table.payload is not None:
        gathered.take(line.number, table.row(line, table.payload, value, table.algbw))


def _with_ranks(reading: Reading) -> Reading:
    """Infer the rank count of rows without one from the rates of the fastest row."""
    unknown = [row for row in reading.rows if row.ranks is None]
    best = max(unknown, key=lambda row: row.algbw_bytes_per_s or 0.0, default=None)
    if best is None:
        return reading
    rates = best.algbw_bytes_per_s or 0.0, best.busbw_bytes_per_s or 0.0
    ranks = names.ranks_from_rates("allreduce", rates[0] / 1e9, rates[1] / 1e9)
    rows = [replace(row, ranks=ranks) if row.ranks is None else row for row in reading.rows]
    return Reading(rows, reading.notes)
