"""Reads the Intel MPI Benchmarks: every table that has ``#repetitions`` and times in it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from reports.readers import names, oneccl
from reports.readers.gathered import Gathered, figure, message_row, signed
from reports.readers.text import Line
from reports.records.measurement import Measurement, Reading, Run
from reports.records.metrics import PURE

_SUITE = re.compile(r"#\s*Intel ?\(R\) MPI Benchmark(?:s| Suite)?,? ?(?:V(?:ersion)? ?)?([\w. ]+)?")
_NAME = re.compile(r"#\s*Benchmarking\s+(\S+)")
_FACTS = {
    "ranks": re.compile(r"#\s*#processes\s*=\s*(\d{1,7})|#\s*\(\s*\d+ groups of (\d{1,7}) proc"),
    "reductions": re.compile(r"#\s*MPI_Datatype for reductions\s*:\s*(\w+)"),
    "dtype": re.compile(r"#\s*MPI_Datatype\s*:\s*(\w+)"),
    "op": re.compile(r"#\s*MPI_Op\s*:\s*MPI_(\w+)"),
}
# IMB-EXT measures most of its benchmarks twice, under the same name.
_AGGREGATE = re.compile(r"#\s*MODE:\s*AGGREGATE")
_REDUCING = ("allreduce", "reduce", "reduce_scatter", "iallreduce", "ireduce", "ireduce_scatter")
_TIMES = {"t[usec]": "time_s", "t_avg[usec]": "time_s", "t_min[usec]": "min_s"}
_TIMES |= {"t_max[usec]": "max_s"}
# Of non-blocking collectives; t_ovrl holds IMB's own compute.
_TIMES |= {"t_pure[usec]": "time_s", "t_ovrl[usec]": "overall_s", "t_CPU[usec]": "compute_s"}
_RATES = {"Mbytes/sec": ("bandwidth_bytes_per_s", 1e6), "Msg/sec": ("messages_per_s", 1.0)}
_OVERLAP = "overlap[%]"
_COUNTS = {"defects": "wrong", "#repetitions": "iterations"}


class _State:
    """The facts in the lines above a table."""

    def __init__(self) -> None:
        self.version = ""
        self.benchmark = ""
        self.facts: dict[str, str] = {}
        self.columns: list[str] = []

    def take(self, text: str) -> bool:
        """Whether a line was one of those above a table."""
        for name, pattern in _FACTS.items():
            if match := pattern.search(text):
                self.facts[name] = match.group(match.lastindex or 1)
                return True
        if _AGGREGATE.search(text) and not self.benchmark.endswith("_aggregate"):
            self.benchmark += "_aggregate"
            return True
        if suite := _SUITE.search(text):
            self.version = f"IMB {(suite.group(1) or '').strip()}".strip()
        return suite is not None


def read(source: str, lines: Iterable[Line]) -> Reading:
    """All IMB tables in a log. Sizes are one rank's message; ``size`` is the whole collective's."""
    gathered = Gathered(source)
    state, number, run = _State(), -1, Run(source, 0, "imb")
    for line in lines:
        if name := _NAME.search(line.text):
            state.benchmark, state.columns = name.group(1), []
            state.facts.pop("ranks", None)
            continue
        if state.take(line.text):
            continue
        if "#repetitions" in line.text and oneccl.MARK not in line.text:
            text = re.sub(r"(?<=\S)#", " #", line.text).replace("overlap [%]", _OVERLAP)
            state.columns, number = text.split(), number + 1
            gathered.header(line.number)
            known = {"#bytes", _OVERLAP, *_TIMES, *_COUNTS, *_RATES}
            if left_out := [name for name in state.columns if name not in known]:
                gathered.note(line.number, f"columns that are not read: {', '.join(left_out)}")
            run = Run(source, number, "imb", f"IMB {state.benchmark}", state.version)
            continue
        if line.text.lstrip().startswith("#"):
            state.columns = []
        tokens = line.text.split()
        if state.columns and tokens and tokens[0].isdecimal():
            gathered.take(line.number, _row(run, line.number, tokens, state))
    return gathered.close()


def _row(run: Run, line: int, tokens: list[str], state: _State) -> Measurement | str:
    if len(tokens) < len(state.columns):
        return f"{len(tokens)} figures for {len(state.columns)} columns"
    figures: dict[str, float] = {}
    for column, cell in zip(state.columns, tokens, strict=False):
        value = signed(cell) if column == _OVERLAP else figure(cell)
        if value is None:
            return f"{cell!r} is no figure ({column})"
        figures[column] = value
    fields: dict[str, Any] = {_TIMES[c]: v * 1e-6 for c, v in figures.items() if c in _TIMES}
    fields |= {_COUNTS[c]: int(v) for c, v in figures.items() if c in _COUNTS}
    fields |= {f: figures[c] * unit for c, (f, unit) in _RATES.items() if c in figures}
    if _OVERLAP in figures:
        fields |= {"overlap": figures[_OVERLAP] * 1e-2, "time_of": PURE}
    collective = names.collective(re.sub(r"^Multi-", "", state.benchmark))
    get, reduces = state.facts.get, collective in _REDUCING
    return message_row(
        run,
        line,
        collective,
        int(figures.get("#bytes", 0)),
        int(get("ranks", 0)) or None,
        transport="mpi",
        dtype=names.dtype(get("reductions" if reduces else "dtype", "")),
        op=get("op", "").lower() if reduces else "",
        **fields,
    )
