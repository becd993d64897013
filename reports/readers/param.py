"""Reads PARAM's communication benchmark (``comms.py``): its ``COMMS-RES`` lines."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from reports.readers import names
from reports.readers.gathered import Gathered, message_row
from reports.readers.text import Line
from reports.readers.whole import agrees, fixed
from reports.records.measurement import Measurement, Reading, Run

FORMAT = "param"
_ROW = re.compile(r"COMMS-RES-(?!QUANT)([a-z]\w*)-([a-z]+\d*)(\S*)\s+(\d.*)$")
_HEADER = re.compile(r"COMMS-RES\s+(?:total-)?size \(B\)\s+(.+)$")
_QUANTISED = re.compile(r"COMMS-RES-QUANT\S*\s")
_RANKS = re.compile(r"\bworld[-_ ]?size['\"]?\s*[:=]\s*(\d{1,7})\b", re.IGNORECASE)
#: The columns behind the size without a header, by the number of figures.
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
class _State:
    """The facts of the lines above a row."""

    run: Run
    columns: tuple[str, ...] = ()
    ranks: int | None = None
    seen: set[str] = field(default_factory=set)


def read(source: str, lines: Sequence[Line]) -> Reading:
    """All results in a log; what quantises its data is only noted."""
    gathered, number = Gathered(source), 0
    state = _State(Run(source, 0, FORMAT, "PARAM comms", "PARAM"))
    for line in lines:
        if ranks := _RANKS.search(line.text):
            state.ranks = int(ranks[1])
        if "COMMS-RES" not in line.text:
            continue
        if header := _HEADER.search(line.text):
            gathered.header(line.number)
            state.columns = _columns(header[1])
            state.run = Run(source, number, FORMAT, "PARAM comms", "PARAM")
            number += 1
        elif row := _ROW.search(line.text):
            for one in _rows(state, line.number, row):
                gathered.take(line.number, one)
        elif _QUANTISED.search(line.text):
            if "quantised" not in state.seen:
                gathered.note(
                    line.number, "COMMS-RES-QUANT, times of a quantised exchange: not read"
                )
            state.seen.add("quantised")
    return gathered.close()


def _columns(text: str) -> tuple[str, ...]:
    """The columns behind the size by a header; () for one of a form that is unknown here."""
    if "pingLatency" in text:
        return _PAIR
    columns = []
    for word in text.split():
        name = next((name for title, name in _TITLES if re.fullmatch(title, word)), None)
        if name is None:
            return ()
        columns.append(name)
    return tuple(columns)


def _rows(state: _State, line: int, match: re.Match[str]) -> list[Measurement | str]:
    cells = match[4].split()
    size, rest = cells[0], cells[1:]
    collective = names.collective(re.sub(r"_base$", "", match[1]))
    pair = collective == "pt2pt"
    columns = state.columns or (_PAIR if pair else _PLAIN)
    # A header names one column more than older versions print, the total time.
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
    state: _State,
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
    state: _State, line: int, size: int, figures: dict[str, float], fields: dict[str, Any]
) -> list[Measurement | str]:
    """Latency of a ping, and the bandwidths one way and both ways, each under its own name."""
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
