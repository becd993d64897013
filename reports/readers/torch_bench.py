"""Reads all_reduce_bench of the Machine Learning Engineering book: payload, busbw and algbw.

The program prints rates and no times. The time of a row is its payload over its algbw.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from reports.readers import names
from reports.readers.gathered import Gathered
from reports.readers.text import Line
from reports.records.measurement import Measurement, Reading, Run

FORMAT = "all_reduce_bench"
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
# What stands before the colon has been taken for a label of the line.
_OLD_RATE = re.compile(
    r"^\s*(?:(?:algbw|busbw): )?(\d{1,9}\.\d{3}) GBps \((\d{1,9}\.\d) Gbps\)\s*$"
)
_LIBRARY = re.compile(r"\bnccl=\(?(\d[\d., ]*\d)\)?")
_BYTES = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40, "GB": 10**9}
_DERIVED = "times are payload over algbw, which all_reduce_bench prints instead"


@dataclass
class _Table:
    """What the lines above say, and what the rows before this one do."""

    run: Run
    ranks: int | None = None
    trials: int | None = None
    payload: int | None = None
    header: bool = False
    library: str = ""
    algbw: float | None = None

    def row(self, line: Line, size: int, busbw: float, algbw: float) -> Measurement | str:
        """A row; a text where its two rates are not those of an all-reduce of so many ranks."""
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
            iterations=self.trials,
        )


def read(source: str, lines: Sequence[Line]) -> Reading:
    """All tables of all_reduce_bench, and the two lines that it printed in its first versions."""
    gathered = Gathered(source)
    table = _Table(Run(source, 0, FORMAT, FORMAT))
    number = 0
    for line in lines:
        text = line.text
        if library := _LIBRARY.search(text):
            table.library = "NCCL " + re.sub(r"[, ]+", ".", library[1])
        if over := _OVER.search(text):
            payload = _PAYLOAD.search(text)
            size = round(float(payload[1]) * _BYTES[payload[2]]) if payload else None
            table = dataclasses.replace(
                table, ranks=int(over[1]), trials=int(over[2]), payload=size, header=False
            )
        elif old := _OLD.search(text):
            gathered.close()
            size = round(float(old[1]) * _BYTES[old[2]])
            table = dataclasses.replace(
                table, ranks=int(old[4]), trials=int(old[3]), payload=size, algbw=None
            )
            table.run, number = dataclasses.replace(table.run, number=number), number + 1
        elif header := _HEADER.match(text):
            if not header[1] and table.payload is None:
                continue
            gathered.header(line.number)
            table = dataclasses.replace(
                table, run=dataclasses.replace(table.run, number=number), header=True
            )
            number += 1
        elif (row := _ROW.match(text)) and table.header and row[2] in _BYTES:
            size = int(row[1]) * _BYTES[row[2]]
            rates = float(row[3]) * 1e9, float(row[4]) * 1e9
            gathered.take(line.number, table.row(line, size, *rates))
        elif (trial := _TRIAL.match(text)) and table.header and table.payload:
            one = dataclasses.replace(table, trials=1)
            rates = float(trial[1]) * 1e9, float(trial[2]) * 1e9
            gathered.take(line.number, one.row(line, table.payload, *rates))
        elif (rate := _OLD_RATE.match(text)) and table.payload:
            _old_rate(gathered, table, line, rate)
        elif table.header and "|" in text and re.search(r"\d", text):
            gathered.take(line.number, "not payload, busbw and algbw with their units")
        elif table.header and text.strip() and "|" not in text:
            table = dataclasses.replace(table, header=False)
    rows = _with_ranks(gathered.close())
    if rows.rows:
        gathered.note(rows.rows[0].line, _DERIVED)
    return Reading(rows.rows, gathered.notes)


def _old_rate(gathered: Gathered, table: _Table, line: Line, rate: re.Match[str]) -> None:
    """Take ``algbw: 1.000 GBps (8.0 Gbps)``, or the same of busbw, which ends a row."""
    name = line.stream or line.text.split(":")[0].strip()
    value = float(rate[1]) * 1e9
    if abs(float(rate[2]) * 1e9 - 8 * value) > 0.051e9 + 8 * 0.00051e9:
        gathered.take(line.number, "GBps and Gbps contradict each other")
    elif name == "algbw":
        table.algbw = value
    elif name == "busbw" and table.algbw is not None and table.payload is not None:
        gathered.take(line.number, table.row(line, table.payload, value, table.algbw))


def _with_ranks(reading: Reading) -> Reading:
    """The rows with the rank count that the rates of the fastest leave, where no line says it."""
    unknown = [row for row in reading.rows if row.ranks is None]
    best = max(unknown, key=lambda row: row.algbw_bytes_per_s or 0.0, default=None)
    if best is None:
        return reading
    rates = best.algbw_bytes_per_s or 0.0, best.busbw_bytes_per_s or 0.0
    ranks = names.ranks_from_rates("allreduce", rates[0] / 1e9, rates[1] / 1e9)
    rows = [replace(row, ranks=ranks) if row.ranks is None else row for row in reading.rows]
    return Reading(rows, reading.notes)
