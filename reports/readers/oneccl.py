"""Reads oneCCL's benchmark: tables like IMB's, with the deviation over ranks as last column.

``#bytes`` is what each rank gives: an all-gather and an all-to-all handle ranks times as much.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from reports.readers import names
from reports.readers.gathered import Gathered, message_row
from reports.readers.text import Line
from reports.readers.whole import fixed
from reports.records.measurement import Measurement, Reading, Run

FORMAT = "oneccl"
#: What distinguishes the header of a table from IMB's.
MARK = "stddev[%]"
_NAME = re.compile(r"#\s*Benchmarking: ?(\S[\w ,]*)")
_RANKS = re.compile(r"#\s*#?processes:? ?=?\s*(\d{1,7})\b")
_FACT = re.compile(r"^\s*(datatype|reduction):\s*(\w+)\s*$")
_TIMES = {"t_min[usec]": "min_s", "t_max[usec]": "max_s", "t_avg[usec]": "time_s"}


def read(source: str, lines: Sequence[Line]) -> Reading:
    """All tables of oneCCL's benchmark in a log."""
    gathered, columns, number = Gathered(source), list[str](), 0
    name, ranks, facts = "", None, dict[str, str]()
    run = Run(source, 0, FORMAT)
    for line in lines:
        if named := _NAME.search(line.text):
            name, columns = named[1].strip(), []
        elif processes := _RANKS.search(line.text):
            ranks = int(processes[1])
        elif fact := _FACT.match(line.text):
            facts[fact[1]] = fact[2]
        elif MARK in line.text and line.text.lstrip().startswith("#bytes"):
            columns = line.text.split()
            gathered.header(line.number)
            run = Run(source, number, FORMAT, f"oneCCL {name}".strip(), "oneCCL benchmark")
            number += 1
        elif columns and re.match(r"\s*\d+\s", line.text):
            gathered.take(line.number, _row(run, line, columns, name, ranks, facts))
        elif columns and line.text.lstrip().startswith("#"):
            columns = []
    return gathered.close()


def _row(
    run: Run, line: Line, columns: list[str], name: str, ranks: int | None, facts: dict[str, str]
) -> Measurement | str:
    tokens = line.text.split()
    if len(tokens) != len(columns):
        return f"{len(tokens)} figures for {len(columns)} columns"
    cells = dict(zip(columns, tokens, strict=True))
    counts = [cells.get("#bytes", ""), cells.get("#repetitions", "")]
    if not all(cell.isdecimal() and len(cell) < 19 for cell in counts):
        return f"{' and '.join(counts)!r} are no size and no number of repetitions"
    times: dict[str, float] = {}
    for column, cell in cells.items():
        if column.startswith("#"):
            continue
        value = fixed(cell, 2)
        if value is None:
            return f"{cell!r} is no figure ({column})"
        if column in _TIMES:
            times[_TIMES[column]] = value * 1e-6
    if set(times) != set(_TIMES.values()):
        return "no column of a time"
    if not times["min_s"] - 1e-8 <= times["time_s"] <= times["max_s"] + 1e-8:
        return "the mean time is not between the least and the largest"
    collective = names.collective(name) if " " not in name else name
    reduces = collective in ("allreduce", "reduce", "reduce_scatter")
    return message_row(
        run,
        line.number,
        collective,
        int(counts[0]),
        ranks,
        dtype=names.dtype(facts.get("datatype", "")),
        op=facts.get("reduction", "") if reduces else "",
        iterations=int(counts[1]),
        **times,
    )
