"""Assembles nccl-tests' lines into tables and rows, with what the tables imply."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from math import isclose

from msgspec.structs import replace

from reports.readers import names
from reports.readers.nccl_lines import CPU_TIME, Header, Start, number
from reports.readers.printed import agreed, contradiction, span
from reports.records.measurement import Measurement, Note, Run
from reports.records.metrics import CPU
from reports.records.shown import PLACEMENT

_OURS = re.compile(r"(\S+) (.+) \(([\w, ]+)\)$")


@dataclass
class PartialTable:
    """One run's table while it is being read."""

    program: str = ""
    version: str = ""
    library: str = ""
    ranks: dict[int, set[int]] = field(default_factory=dict)
    hosts: dict[str, None] = field(default_factory=dict)
    devices: dict[str, None] = field(default_factory=dict)
    nranks: int | None = None
    iterations: int | None = None
    header: Header | None = None
    began: int = 0
    #: Rows and halves of rows that were not read.
    refused: int = 0
    #: Sizes that the run was asked to measure; None where the log does not say.
    announced: int | None = None
    rows: list[Start] = field(default_factory=list)
    average: tuple[int, float] | None = None
    out_of_bounds: tuple[int, int] | None = None

    def size_of_world(self) -> int | None:
        """Ranks of one communicator, as far as the lines above the table tell."""
        if not self.ranks:
            return self.nranks
        if len(self.ranks) > 1:  # split into groups: ranks of one communicator
            return max(len(members) for members in self.ranks.values())
        return max(next(iter(self.ranks.values()))) + 1


def rows_of(
    source: str, n: int, table: PartialTable, notes: list[Note], guesses: dict[str, list[int]]
) -> list[Measurement]:
    """The rows of the ``n``-th table of a file; inferences go to ``guesses``, text to lines."""
    ours = _OURS.match(table.program)
    name, algorithm, transport = ours.groups() if ours else (table.program, "", "")
    collective = names.collective(name)
    if not collective or _contradicted(table, collective):
        collective, by = _inferred(table), "its columns"
        named = "" if collective else names.in_file_name(source)
        if named and not _contradicted(table, named):
            collective, by = named, "the file's name"
        text = f"taken for {collective} by {by}" if collective else "it stays empty"
        text = f"no line names the collective of this table: {text}"
        guesses.setdefault(text, []).append(table.rows[0].line)
    ranks, factor = _ranks(source, table, collective, notes)
    run = Run(
        source,
        n,
        "nccl-tests",
        table.program,
        table.version,
        table.library,
        tuple(table.hosts),
        tuple(table.devices),
    )
    unit_s = _unit_s(source, table, notes)
    rows = []
    for start in table.rows:
        for half in range(start.first // len(start.header.half), start.header.halves):
            row = _half(run, table, start, half, collective, ranks, unit_s)
            if row is None:
                continue
            wrong = _contradiction(start, half, collective, factor, unit_s)
            if wrong:
                table.refused += 1
                text = f"row of {start.size} B, {PLACEMENT[row.placement]}, not read: {wrong}"
                notes.append(Note(source, start.line, f"{text}: a figure was cut or changed"))
                continue
            rows.append(replace(row, algorithm=algorithm, transport=transport))
    _check_average(source, table, rows, notes)
    _check_values(source, table, rows, notes)
    return rows


def _cells(start: Start, half: int) -> dict[str, str]:
    """The cells of a half by column; empty where the row ends before or inside it."""
    width = len(start.header.half)
    cells = start.cells[half * width - start.first : (half + 1) * width - start.first]
    return dict(zip(start.header.half, cells, strict=True)) if len(cells) == width else {}


def _contradiction(
    start: Start, half: int, collective: str, factor: float | None, unit_s: float
) -> str:
    """See `contradiction`; no part in algbw have the CPU's time, and hypercube's whole size."""
    cells = _cells(start, half)
    time = span(cells.get("time", "")) if collective != "hypercube" else None
    seconds = None if time is None else time.scaled(unit_s)
    return contradiction(
        start.size, seconds, cells.get("algbw", ""), cells.get("busbw", ""), factor
    )


def _half(
    run: Run,
    table: PartialTable,
    start: Start,
    half: int,
    collective: str,
    ranks: int | None,
    unit_s: float,
) -> Measurement | None:
    figure = {name: number(cell) for name, cell in _cells(start, half).items()}
    time = figure.get("time", figure.get(CPU_TIME))
    if time is None or time < 0:
        return None
    wrong = figure.get("#wrong", figure.get("wrong"))
    after = dict(zip(start.header.after, map(number, start.after), strict=False))
    iterations = after.get("#iters")
    return Measurement(
        run=run,
        line=start.line,
        collective=collective,
        size=start.size,
        message=start.size,
        placement="in" if half else "out",
        ranks=ranks,
        count=start.count,
        dtype=names.dtype(start.dtype),
        op=start.op,
        root=start.root,
        time_s=time * unit_s,
        time_of=CPU if CPU_TIME in figure else "",
        min_s=names.scaled(figure.get("i_min"), 1e-6),
        max_s=names.scaled(figure.get("i_max"), 1e-6),
        p99_s=names.scaled(figure.get("i_p99"), 1e-6),
        cv=names.scaled(figure.get("i_cv%"), 1e-2),
        algbw_bytes_per_s=names.scaled(figure.get("algbw"), 1e9),
        busbw_bytes_per_s=names.scaled(figure.get("busbw"), 1e9),
        wrong=None if wrong is None else int(wrong),
        error=figure.get("error"),
        iterations=table.iterations if iterations is None else int(iterations),
    )


def _contradicted(table: PartialTable, collective: str) -> bool:
    """Whether a name taken from further up cannot be this table's: it would need an operation."""
    needs = collective in ("allreduce", "reduce", "reduce_scatter")
    return needs and "redop" in table.rows[0].header.before and not any(s.op for s in table.rows)


def _inferred(table: PartialTable) -> str:
    """The collective by which columns are filled; "" where several fill the same ones."""
    start = max(table.rows, key=lambda s: s.size)
    width = names.element_size(names.dtype(start.dtype))
    shared = width is not None and start.count > 0 and start.size > start.count * width
    rooted = start.root is not None and start.root >= 0
    if start.op:
        if rooted:
            return "reduce"
        return "reduce_scatter" if shared else "allreduce"
    return "broadcast" if rooted and not shared else ""


def _ranks(
    source: str, table: PartialTable, collective: str, notes: list[Note]
) -> tuple[int | None, float | None]:
    """Ranks and bus factor: by the lines above, a size that is a multiple of a count, the rates."""
    start = max(table.rows, key=lambda s: s.size)
    listed = table.size_of_world()
    width = names.element_size(names.dtype(start.dtype))
    if not listed and width and start.count and start.size >= 2 * start.count * width:
        listed = start.size // (start.count * width)
    ranks, factor, note = agreed(collective, _rates(table), listed)
    if note:
        notes.append(Note(source, start.line, note))
    return ranks, factor


def _rates(table: PartialTable) -> list[tuple[str, str]]:
    """Algbw and busbw of all rows and halves, as printed."""
    halves = [_cells(s, h) for s in table.rows for h in range(s.header.halves)]
    return [(cells.get("algbw", ""), cells.get("busbw", "")) for cells in halves]


def _unit_s(source: str, table: PartialTable, notes: list[Note]) -> float:
    """The unit of the times: the header's; without one the one that agrees with size and rate."""
    if table.header is not None:
        return table.header.unit_s
    for start in table.rows:
        figure = dict(zip(start.header.half, map(number, start.cells), strict=False))
        time, rate = figure.get("time"), figure.get("algbw")
        if time and rate and rate >= 0.1 and isclose(start.size, rate * time * 1e6, rel_tol=0.2):
            text = "no header says the unit of the times: milliseconds, by sizes and rates"
            notes.append(Note(source, start.line, text))
            return 1e-3
    return 1e-6


def _check_values(
    source: str, table: PartialTable, rows: list[Measurement], notes: list[Note]
) -> None:
    """Notes on wrong values that no row shows: stars, and the count below the table."""
    starred = [s.line for s in table.rows if any(cell.endswith("*") for cell in s.cells)]
    if starred:
        text = f"the log stars the error of {len(starred)} rows from here on as too large"
        notes.append(Note(source, starred[0], text))
    elif table.out_of_bounds is not None and not any(row.wrong for row in rows):
        line, values = table.out_of_bounds
        notes.append(Note(source, line, f"the log counts {values} values out of bounds"))


def _check_average(
    source: str, table: PartialTable, rows: list[Measurement], notes: list[Note]
) -> None:
    """The log's own mean over rows and placements must be that of what was read."""
    rates = [r.busbw_bytes_per_s / 1e9 for r in rows if r.busbw_bytes_per_s is not None]
    if table.average is None or not rates:
        return
    line, average = table.average
    mean = sum(rates) / len(rates)
    if isclose(mean, average, rel_tol=0.01, abs_tol=0.006):
        return
    text = f"the log's average busbw is {average:g} GB/s, that of its rows {mean:.4g}"
    if table.refused:
        why = "rows were refused"
    elif table.announced is None:
        why = "rows are missing, or a figure was changed"
    elif len({start.size for start in table.rows}) < table.announced:
        why = "rows are missing"
    else:
        why = "no row is missing, so a figure was changed"
    notes.append(Note(source, line, f"{text}: {why}"))
