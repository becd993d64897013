"""Reads the Intel MPI Benchmarks: every table that has ``#repetitions`` and times in it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from math import isfinite
from typing import Any

from reports.readers import names
from reports.readers.text import Line
from reports.records.rows import Note, Reading, Row, Run

_SUITE = re.compile(r"#\s*Intel ?\(R\) MPI Benchmark(?:s| Suite)?,? ?(?:V(?:ersion)? ?)?([\w. ]+)?")
_NAME = re.compile(r"#\s*Benchmarking\s+(\S+)")
_PROCESSES = re.compile(r"#\s*#processes\s*=\s*(\d{1,7})")
_GROUPS = re.compile(r"#\s*\(\s*\d+ groups of (\d{1,7}) processes")
_REDUCTIONS = re.compile(r"#\s*MPI_Datatype for reductions\s*:\s*(\w+)")
_DATATYPE = re.compile(r"#\s*MPI_Datatype\s*:\s*(\w+)")
_OP = re.compile(r"#\s*MPI_Op\s*:\s*MPI_(\w+)")
# IMB-EXT measures most of its benchmarks twice, under the same name.
_AGGREGATE = re.compile(r"#\s*MODE:\s*AGGREGATE")
_REDUCING = ("allreduce", "reduce", "reduce_scatter", "iallreduce", "ireduce", "ireduce_scatter")
_TIMES = {"t[usec]": "time_s", "t_avg[usec]": "time_s", "t_min[usec]": "min_s"}
_TIMES |= {"t_max[usec]": "max_s", "t_ovrl[usec]": "time_s"}


class _State:
    """The facts in the lines above a table."""

    def __init__(self) -> None:
        self.version = ""
        self.benchmark = ""
        self.ranks: int | None = None
        self.dtype, self.reductions, self.op = "", "", ""
        self.columns: list[str] = []
        # The line of a header that has no row yet, 0 where there is none.
        self.bare = 0

    def take(self, text: str) -> bool:
        """Whether a line was one of those above a table."""
        for pattern, name in ((_PROCESSES, "ranks"), (_GROUPS, "ranks")):
            found = pattern.search(text)
            if found:
                setattr(self, name, int(found.group(1)))
                return True
        for pattern, name in ((_REDUCTIONS, "reductions"), (_DATATYPE, "dtype"), (_OP, "op")):
            found = pattern.search(text)
            if found:
                setattr(self, name, found.group(1))
                return True
        if _AGGREGATE.search(text) and not self.benchmark.endswith("_aggregate"):
            self.benchmark += "_aggregate"
            return True
        suite = _SUITE.search(text)
        if suite:
            self.version = f"IMB {(suite.group(1) or '').strip()}".strip()
        return suite is not None


def read(source: str, lines: Iterable[Line]) -> Reading:
    """All IMB tables in a log. Sizes are one rank's message; ``size`` is the whole collective's."""
    rows: list[Row] = []
    notes: list[Note] = []
    bare: list[int] = []
    state, number, run = _State(), -1, Run(source, 0, "imb")
    for line in lines:
        name = _NAME.search(line.text)
        if name:
            state.benchmark, state.columns, state.ranks = name.group(1), [], None
            continue
        if state.take(line.text):
            continue
        if "#repetitions" in line.text:
            state.columns = (
                re.sub(r"(?<=\S)#", " #", line.text).replace("overlap [%]", "overlap[%]").split()
            )
            number += 1
            bare.append(state.bare)
            state.bare = line.number
            run = Run(source, number, "imb", f"IMB {state.benchmark}", state.version)
            continue
        if line.text.lstrip().startswith("#"):
            state.columns = []
        tokens = line.text.split()
        if not state.columns or not tokens or not tokens[0].isdecimal():
            continue
        state.bare = 0
        row = _row(run, line.number, tokens, state)
        if isinstance(row, str):
            notes.append(Note(source, line.number, f"row not read: {row}"))
        else:
            rows.append(row)
    bare.append(state.bare)
    notes += [Note(source, n, "a table's header with no row below it") for n in bare if n]
    return Reading(rows, notes)


def _row(run: Run, line: int, tokens: list[str], state: _State) -> Row | str:
    if len(tokens) < len(state.columns):
        return f"{len(tokens)} figures for {len(state.columns)} columns"
    figures: dict[str, float] = {}
    for column, cell in zip(state.columns, tokens, strict=False):
        try:
            figures[column] = float(cell)
        except ValueError:
            return f"{cell!r} is no figure ({column})"
        if not isfinite(figures[column]) or (figures[column] < 0 and column != "overlap[%]"):
            return f"{cell!r} is no figure ({column})"
    times: dict[str, Any] = {_TIMES[c]: v * 1e-6 for c, v in figures.items() if c in _TIMES}
    seconds, said = times.get("time_s"), figures.get("Mbytes/sec")
    if seconds is None and said is None:
        return "no column of a time or a rate"
    collective = names.collective(re.sub(r"^Multi-", "", state.benchmark))
    message = int(figures.get("#bytes", 0))
    size = names.whole(collective, message, state.ranks)
    rate = None if seconds is not None else names.scaled(said, 1e6)
    algbw, busbw = names.rates(collective, state.ranks, size, seconds, rate)
    reduces = collective in _REDUCING
    return Row(
        run=run,
        line=line,
        collective=collective,
        size=size,
        message=message,
        ranks=state.ranks,
        transport="mpi",
        dtype=names.dtype(state.reductions if reduces else state.dtype),
        op=state.op.lower() if reduces else "",
        **times,
        algbw_bytes_per_s=algbw,
        busbw_bytes_per_s=busbw,
        wrong=int(figures["defects"]) if "defects" in figures else None,
        iterations=int(figures["#repetitions"]) if "#repetitions" in figures else None,
    )
