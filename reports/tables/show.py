"""Terminal tables of a run: one per group of rows, with a line per size and algorithm."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from msgspec.structs import replace as replace_struct

from busbar.status import OVER_LAUNCHES
from busbar.tables import WIDE, Column, RenderedTable, draw_sparkline, fit_columns, render_rich
from busbar.terminal import make_printable, open_console
from busbar.units import (
    OPEN,
    format_count,
    format_digits,
    format_interval,
    format_percent,
    format_seconds,
    format_size,
    is_open,
)
from reports.analysis.answer import best_figure
from reports.analysis.cautions import ABOVE_LIMIT, limit_cell, share_of_limit, warnings_of
from reports.analysis.steps import (
    StepFigures,
    beyond_compute,
    exposed_text,
    figures,
    hidden_text,
    roles,
    share_text,
    workload,
)
from reports.records.cores import SHARED, marked, oversubscription
from reports.records.measurement import (
    STEP,
    Expected,
    Measurement,
    Reading,
    Run,
    grouped,
    is_emulated,
    launch_of,
    level_of,
)
from reports.records.metrics import (
    ALGBW,
    BESIDE,
    BUSBW,
    ERROR,
    TIME,
    Metric,
    metric_of,
    present,
    setting,
)
from reports.records.table import folded
from reports.statistics.quantities import is_mean_of_parts, joules_per_gb
from reports.statistics.uncertain import Uncertain

_FEWEST_MARKS, _MOST_MARKS = 6, 24
#: Columns to leave out if there is no room, in this order. Only after that names are wrapped. The
#: others (size, algorithm, time, busbw, wrong, a requested model) are never left out.
SPARE = (
    "stopped", "transport", "error", "cv", "min", "algbw", "max", "p99", "links", "port in",
    "port out", "J/GB", "J", "spread", "n", "limit", "95 %",
)  # fmt: skip
#: Columns of wide terminals only.
_EXTREMES = ("min", "max")
_OF_WIDE = ("transport", "min", "p99", "max", "algbw", "J", "J/GB", "cv", "stopped")


def by_table(rows: Iterable[Measurement]) -> list[list[Measurement]]:
    """Group rows into tables: by source, run, collective, type, operation, ranks and placement.

    Training steps of one model are in one table, however many gradients they take. All launches of
    a campaign of ``busbar qualify`` count as one run.
    """

    def what(r: Measurement) -> tuple[object, ...]:
        run = (r.run.source, -1 if _launch(r) else r.run.number)
        return (*run, workload(r), r.dtype, r.op, r.ranks, r.placement, r.reading)

    return list(grouped(rows, what).values())


def _launch(row: Measurement) -> str:
    """The number of the launch of ``busbar qualify`` that measured a row; else empty."""
    campaign = row.run.environment.get("qualify")
    return str(campaign.get("launch", "")) if isinstance(campaign, dict) else ""


def launch_columns(rows: Sequence[Measurement]) -> list[Column]:
    """The columns of a campaign's launches and their hosts; none for other runs."""
    if not _launch(rows[0]):
        return []
    hosts = [" ".join(r.run.hosts) if len(r.run.hosts) < 3 else _hosts(r.run) for r in rows]
    return [
        ("launch", "right", list(map(_launch, rows))),
        ("hosts", "left", list(map(make_printable, hosts))),
    ]


def heading(rows: Sequence[Measurement]) -> str:
    """The one-line heading of a table of rows of one run, with units of the columns."""
    row = rows[0]
    words = [setting(replace_struct(row, collective=workload(row))), oversubscription([row])]
    if len(row.run.hosts) > 1:
        nodes = "emulated hosts" if is_emulated(row.run.environment) else "nodes"
        words.append(f"{len(row.run.hosts)} {nodes}")
    words.append(row.run.library)
    words += sorted({f"MPI thread level {level}" for r in rows if (level := level_of(r))})
    rates = () if row.collective.startswith(STEP) else (BUSBW, *BESIDE)
    units = ", ".join(f"{m.name} in {m.unit}" for m in present(rows, rates) if m.unit)
    return "; ".join(filter(None, (", ".join(filter(None, words)), units)))


def figures_of(rows: Sequence[Measurement], metric: Metric) -> list[str]:
    """A column of a metric: ``N/A`` for rows without it; all texts empty if no row has it."""
    if all(metric.of(row) is None for row in rows):
        return [""] * len(rows)
    return [metric.text(metric.of(row)) or "N/A" for row in rows]


def tables(
    rows: Sequence[Measurement],
    width: int,
    ascii_only: bool = False,
    named: bool = False,
    expected: Callable[[Measurement], Expected] = lambda row: Expected(),
) -> list[RenderedTable]:
    """One table per group. Columns that are empty, or do not fit into ``width``, are left out.

    ``expected``: a function that returns the predicted time and the bound of a row. ``named``: the
    headings begin with the file and the hosts. Below a run's last table stands the average busbw
    that its log states.
    """
    groups = by_table(rows)
    last = {(group[0].run.source, group[0].run.number): n for n, group in enumerate(groups)}
    shown_tables = []
    for n, group in enumerate(groups):
        shown, run = _table(group, width, ascii_only, expected), group[0].run
        if named:
            shown = replace(shown, heading=f"{origin(run)}: {shown.heading}")
        if last[run.source, run.number] == n:
            texts = filter(None, (shown.footnote, *averages(group)))
            shown = replace(shown, footnote="; ".join(texts))
        shown_tables.append(shown)
    return shown_tables


def averages(rows: Iterable[Measurement]) -> list[str]:
    """The average busbw that the log of each run states, in words."""
    runs = {(row.run.source, row.run.number): row.run.average_busbw_bytes_per_s for row in rows}
    return [
        f"average busbw {average / 1e9:.4g} GB/s, as the log states it"
        for average in runs.values()
        if average is not None
    ]


def origin(run: Run) -> str:
    """The file of a run, and its hosts if known."""
    return f"{run.source} ({_hosts(run)})" if run.hosts else run.source


def _hosts(run: Run) -> str:
    more = f" and {len(run.hosts) - 1} more" if len(run.hosts) > 1 else ""
    return f"{run.hosts[0]}{more}" if run.hosts else ""


def files_table(paths: Sequence[Path], readings: Sequence[Reading]) -> RenderedTable:
    """A line for each file: hosts, ranks, the best figure, and what is wrong with the file."""
    several = [one.rows for one in readings]
    if len({path.is_absolute() for path in paths}) > 1:
        paths = [path.absolute() for path in paths]
    folder = Path(os.path.commonpath([path.parent for path in paths]))
    columns: list[Column] = [
        ("file", "left", [make_printable(str(path.relative_to(folder))) for path in paths]),
        ("host", "left", [_hosts(rows[0].run) if len(rows) else "" for rows in several]),
        ("ranks", "left", [_listed({r.ranks for r in rows if r.ranks}) for rows in several]),
        ("best", "left", [best_figure(rows).removeprefix("highest busbw ") for rows in several]),
        ("warnings", "left", [_wrong_with(one) for one in readings]),
    ]
    where = "" if folder == Path() else f" in {make_printable(str(folder))}"
    return render_rich(f"{len(paths)} files{where}; best: highest busbw, or least time", columns)


def _listed(counts: Collection[int]) -> str:
    return " ".join(map(str, sorted(counts)))


def _wrong_with(reading: Reading) -> str:
    """That a file's run failed, or the number of its warnings and of its reader's notes."""
    if any(note.broken for note in reading.notes):
        return "run failed or cut"
    count = len(reading.notes) + len(warnings_of(folded(reading.rows)))
    return str(count or "")


def _table(
    rows: Sequence[Measurement],
    width: int,
    ascii_only: bool,
    expected: Callable[[Measurement], Expected],
) -> RenderedTable:
    models = [expected(r) for r in rows]
    steps = rows[0].collective.startswith(STEP)
    columns: list[Column] = [
        *launch_columns(rows),
        ("size", "right", [format_size(r.nbytes) for r in rows]),
        ("update" if steps else "algorithm", "left", [marked(r) for r in rows]),
        ("transport", "left", [r.transport for r in rows]),
        ("time", "right", time_texts(rows)),
        ("95 %", "right", [_interval_text(r) for r in rows]),
        *_step_columns(rows),
        ("predicted", "right", [format_digits(m.predicted, format_seconds) for m in models]),
        ("bound", "right", [format_digits(m.bound, format_seconds) for m in models]),
        ("min", "right", [format_digits(r.min_s, format_seconds) for r in rows]),
        ("p99", "right", [format_digits(r.p99_s, format_seconds) for r in rows]),
        ("max", "right", [format_digits(r.max_s, format_seconds) for r in rows]),
        ("algbw", "right", [""] * len(rows) if steps else figures_of(rows, ALGBW)),
        ("busbw", "right", busbw_texts(rows)),
        *((m.name, "right", figures_of(rows, m)) for m in BESIDE),
        ("limit", "right", list(map(limit_cell, rows))),
        ("port out", "right", [_of_size(r.sent_bytes, r) for r in rows]),
        ("port in", "right", [_of_size(r.received_bytes, r) for r in rows]),
        ("links", "right", [_of_size(r.total_bytes, r) for r in rows]),
        ("J", "right", [format_digits(r.energy_per_op_j, ".3g") for r in rows]),
        ("J/GB", "right", [format_digits(_energy(r), ".3g") for r in rows]),
        ("cv", "right", [format_percent(r.cv) for r in rows]),
        ("n", "right", [str(r.iterations or "") for r in rows]),
        ("wrong", "right", [str(r.wrong) if r.wrong else "" for r in rows]),
        ("error", "right", figures_of(rows, ERROR)),
        ("stopped", "left", [r.stopped for r in rows]),
    ]
    if any(r.times_s for r in rows):  # its place, filled below with what room is left
        columns.append(("spread", "left", ["." * _FEWEST_MARKS] * len(rows)))
    several = any(len(r.times_s) > 1 for r in rows)
    # Without raw times the extremes are all that is known of the spread.
    hidden = set(_OF_WIDE) if several or any(r.low_s for r in rows) else {*_OF_WIDE} - {*_EXTREMES}
    columns = [c for c in columns if width >= WIDE or c[0] not in hidden]
    shown, room = fit_columns(columns, width, SPARE)
    if shown[-1][0] == "spread":
        marks = min(_MOST_MARKS, _FEWEST_MARKS + room)
        drawn = [draw_sparkline(r.times_s, marks, ascii_only) for r in rows]
        shown[-1] = ("spread", "left", drawn)
    return _of_rows(rows, shown)


def _of_rows(rows: Sequence[Measurement], columns: Sequence[Column]) -> RenderedTable:
    """The table of a group, with the meaning of its marks as footnote."""
    shown = render_rich(heading(rows), columns, skipped=[r.skipped for r in rows])
    notes = [shown.footnote] if shown.footnote else []
    notes += [SHARED] * any(marked(r) != r.algorithm for r in rows)
    if any(1 < (share_of_limit(r) or 0.0) <= ABOVE_LIMIT for r in rows):
        notes.append(f"limit: 100 to {ABOVE_LIMIT:.0%} is the spread of two medians")
    servers = {step.update: step.servers or 0 for r in rows if (step := r.step) is not None}
    of_steps = (known for r in rows if r.step is not None and (known := figures(r)) is not None)
    notes += filter(None, [roles(servers, rows[0].ranks or 1), beyond_compute(of_steps)])
    counts = sorted({len(r.launches_s) for r in rows if r.launches_s})
    if counts:
        several = " or ".join(map(str, counts))
        notes.append(f"time: the geometric mean of {several} {OVER_LAUNCHES}")
    if any(ends is not None and is_open(*ends) for ends in map(_ends, rows)):
        notes.append(f"95 % -: the ends are a factor of {OPEN:g} apart or more")
    if means := [r.algorithm for r in rows if is_mean_of_parts(r) and not r.launches_s]:
        notes.append(
            f"time of {', '.join(means)}: the mean; in reports compare the median of parts"
        )
    if any(r.times_s and not r.launches_s and launch_of(r.run) for r in rows):
        which = "other rows" if counts else "rows"
        notes.append(f"{which} of one launch: its median, and 95 % within it")
    return replace(shown, footnote="; ".join(notes))


def _ends(row: Measurement) -> tuple[float, float] | None:
    """The 95 % interval of a row's time in seconds; of a step that of its `figures`."""
    if row.step is not None and (known := figures(row)) is not None:
        return known.step.ends
    return None if row.low_s is None or row.high_s is None else (row.low_s, row.high_s)


def _interval_text(row: Measurement) -> str:
    low, high = _ends(row) or (None, None)
    return format_interval(low, high, row.time_s)


def time_texts(rows: Sequence[Measurement]) -> list[str]:
    """The column of times: empty for a row with another metric, ``N/A`` for a skipped row."""
    return ["" if metric_of(r) is not TIME else TIME.words(r.time_s) for r in rows]


def _step_columns(rows: Sequence[Measurement]) -> list[Column]:
    """What steps have beside their time, such as exposed seconds; none for other rows."""
    if not any(row.step for row in rows):
        return []
    known = [figures(row) for row in rows]
    return [
        (head, "right", [_value(None if one is None else figure(one), form) for one in known])
        for head, figure, form in _OF_STEPS
    ]


_OF_STEPS: tuple[
    tuple[str, Callable[[StepFigures], Uncertain | None], Callable[[float], str]], ...
] = (
    ("exposed", lambda one: one.exposed, exposed_text),
    ("hidden", lambda one: one.hidden, hidden_text),
    ("samples/s", lambda one: one.rate, format_digits),
    ("eff.", lambda one: one.efficiency, share_text),
)


def _value(figure: Uncertain | None, form: Callable[[float], str]) -> str:
    return "-" if figure is None else form(figure.value)


def busbw_texts(rows: Sequence[Measurement]) -> list[str]:
    """The column of busbw; empty for steps, ``N/A`` if rows have neither busbw nor another rate."""
    if all(row.collective.startswith(STEP) for row in rows):
        return [""] * len(rows)
    return figures_of(rows, BUSBW) if present(rows, (BUSBW, *BESIDE)) else ["N/A"] * len(rows)


def texts(rows: Sequence[Measurement], width: int, ascii_only: bool = False) -> list[str]:
    """`tables` as lines of text."""
    return lines_of(tables(rows, width, ascii_only), width, ascii_only)


def lines_of(
    shown_tables: Iterable[RenderedTable], width: int, ascii_only: bool = False
) -> list[str]:
    """Tables as lines of text, each below its heading."""
    out = io.TextIOWrapper(io.BytesIO(), "ascii" if ascii_only else "utf-8", "replace")
    screen = open_console(file=out, width=width, color_system=None, highlight=False, emoji=False)
    for shown in shown_tables:
        screen.print(shown.heading, markup=False, soft_wrap=True)
        screen.print(shown.table, crop=False)
        if shown.footnote:
            screen.print(shown.footnote, markup=False)
    out.seek(0)
    return out.read().splitlines()


def _of_size(nbytes: int | None, row: Measurement) -> str:
    """Bytes in units of the size, such as ``1.5N``."""
    return "" if nbytes is None or not row.size else f"{nbytes / row.size:.4g}N"


def _energy(row: Measurement) -> float | None:
    """Joules per GB of the size; None if unknown."""
    if row.energy_per_op_j is None or not row.size:
        return None
    return joules_per_gb(row.energy_per_op_j, row.size)


def import_table(rows: Sequence[Measurement], width: int) -> RenderedTable:
    """All rows of an import in one table. What all rows share is in the title, not in columns."""
    same = (
        ("run", [str(r.run.number) for r in rows]),
        ("collective", [r.collective for r in rows]),
        ("ranks", [str(r.ranks or "") for r in rows]),
        ("type", [r.dtype for r in rows]),
        ("op", [r.op for r in rows]),
        ("algorithm", [r.algorithm for r in rows]),
        ("transport", [r.transport for r in rows]),
        ("time of", [r.reading for r in rows]),
    )
    columns: list[Column] = [
        ("line", "right", [str(r.line or "") for r in rows]),
        *((name, "left", texts) for name, texts in same if len(set(texts)) > 1),
        ("size", "right", [format_size(r.nbytes) for r in rows]),
        ("place", "left", [r.placement for r in rows]),
        ("time", "right", time_texts(rows)),
        ("algbw", "right", figures_of(rows, ALGBW) if width >= WIDE else [""] * len(rows)),
        ("busbw", "right", busbw_texts(rows)),
        *((f"{m.name} {m.unit}".rstrip(), "right", figures_of(rows, m)) for m in BESIDE),
        ("wrong", "right", ["" if r.wrong is None else str(r.wrong) for r in rows]),
    ]
    shared = {name: texts[0] for name, texts in same[1:] if len(set(texts)) == 1 and texts[0]}
    words = {"ranks": lambda text: format_count(int(text), "rank"), "time of": "time: {}".format}
    one = [words.get(name, str)(text) for name, text in shared.items()]
    title = ", ".join(
        [f"{rows[0].run.source}: {rows[0].run.format}, {format_count(len(rows), 'row')}", *one]
    )
    return render_rich(title, columns, skipped=[r.skipped for r in rows])
