"""The table of ``busbar step``, a row for each kind of exchange, and that of ``--sweep ranks``."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from math import inf
from pathlib import Path
from statistics import median
from textwrap import wrap
from typing import NamedTuple

from bench.steps.job import update
from bench.steps.options import StepOptions
from busbar.errors import ReportError
from busbar.mpi import ThreadLevel, remarks
from busbar.terminal import wrap_line
from busbar.units import (
    format_count,
    format_digits,
    format_link_rate,
    format_seconds,
    format_size_argument,
)
from reports.analysis.cautions import disturbance, too_disturbed
from reports.analysis.steps import (
    StepFigures,
    answers,
    beyond_compute,
    exposed_text,
    figures,
    hidden_text,
    is_overlapped,
    lowest_loss,
    roles,
    share_text,
)
from reports.readers.codec import measurements
from reports.records.cores import Load
from reports.records.measurement import LIBRARY, Measurement
from reports.statistics.uncertain import Uncertain

# The width of the name reduce+broadcast/ddp; a longer name is printed on a separate line.
_NAME = 20


def header(
    options: StepOptions, nranks: int, crowd: Load | None, mpi: ThreadLevel | None, library: str
) -> list[str]:
    """The lines above the rows.

    ``crowd``: how many ranks share cores; ``mpi``: MPI's thread level, None if ranks are not MPI's.
    """
    workload = options.workload
    slow = "".join(f", rank {rank} x{factor:g}" for rank, factor in options.compute.slow.items())
    table = _table()
    texts = [
        f"training step of {workload.name}: {workload.elements:,} parameters in"
        f" {len(workload.tensors)} tensors, {format_count(nranks, 'rank')}",
        f"compute {options.compute.label}{slow}, {'burning' if options.burn else 'asleep'};"
        f" batch {options.batch} a rank; {_exchanges(options)}",
    ]
    if nranks == 1:
        swept = options.after is not None  # one of several counts of ranks
        texts.append("1 rank exchanges nothing" + ("" if swept else "; give --ranks 4"))
    if crowd is not None and crowd.per_core > 1:
        texts.append(crowd.remark(nranks))
    if mpi is not None:
        texts += remarks(mpi, library, crowd is not None and crowd.per_core > 1)
    servers = {
        one.label: 0 if update(one.name).fused else options.servers for one in options.updates
    }
    roles_of = roles(servers, nranks)
    texts += [roles_of, *_legend([name for name, count in servers.items() if count], roles_of)]
    if any(choice.name.startswith("k-") for choice in options.updates):
        texts.append("k-…:K: the server changes the weights with K gradients (--update list)")
    kinds = {update(choice.name).fused for choice in options.updates}
    if len(kinds) > 1 and not options.compute.constant:
        texts.append(
            "step: with a server the mean, else the median, which is less where times are skewed"
        )
    lines = [f"# {line}" for text in texts for line in wrap(text, table.terminal - 2)]
    names = "".join(f"{one.head:>{one.width}}" for one in table.columns)
    return [*lines, f"# {'update':<{_NAME}}{names}"]


def _legend(servers: Sequence[str], roles_of: str) -> list[str]:
    """What the columns are, a line each.

    ``servers``: the updates that have a server. ``roles_of``: a line above, which may have ``eff.``
    """
    efficiency = "" if roles_of else "; eff.: speed-up over all ranks"
    updates = f"; of {', '.join(servers)} of an update of the weights" if servers else ""
    return [
        f"step: time of a training step{updates}",
        "exposed: the part of it that the exchange of gradients adds to computing",
        "hidden: the share of the exchange during which ranks compute",
        f"speed-up: samples/s over those of one rank that only computes{efficiency}",
        "ratio: step over predicted; below each figure: its 95 % interval",
    ]


def _exchanges(options: StepOptions) -> str:
    """A phrase for when gradients are sent: by all-reduces, or by pushes to a server."""
    fused = [update(choice.name).fused for choice in options.updates]
    when = {
        "on": "overlaps the backward pass",
        "off": "after the backward pass",
        "on,off": "overlaps the backward pass, or follows it (/after)",
    }[options.overlapping]
    if all(fused):
        return f"exchange {when}"
    pushes = "a push follows its gradient"
    return f"all-reduce {when}, {pushes}" if any(fused) else pushes


def row(one: Measurement) -> list[str]:
    """The lines of a kind of exchange: its figures, their intervals, columns that did not fit."""
    known = figures(one)
    if known is None:
        return [f"  {one.algorithm:<{_NAME}} skipped: {one.skipped}"]
    lines = list(_row(one, known, _table()))
    if one.wrong:
        lines.append(f"# {one.algorithm}: {one.wrong} gradients are not the ranks' average")
    return lines


def _row(one: Measurement, known: StepFigures, table: _Table) -> Iterator[str]:
    name = one.algorithm
    if len(name) > _NAME:
        yield f"  {name}"
        name = ""
    both = [column.cell(one, known, table.wide) for column in table.columns]
    widths = [column.width for column in table.columns]
    for head, cells in zip((name, ""), zip(*both, strict=True), strict=True):
        if any(cells):
            text = "".join(f"{cell:>{w}}" for cell, w in zip(cells, widths, strict=True))
            yield f"  {head:<{_NAME}}{text}".rstrip()
    more = [text for column in table.rest if (text := column.words(one, known))]
    margin = "    "
    yield from wrap(
        ", ".join(more),
        table.terminal - 1,
        initial_indent=margin,
        subsequent_indent=margin,
        break_on_hyphens=False,
    )


def closing_lines(
    rows: Sequence[Measurement], more: str = "", *, whole: bool = True, fusions: bool = False
) -> list[str]:
    """The lines below all rows: what figures without a number mean, the fastest update, noise.

    ``more``: see `too_disturbed`. ``whole``: False for a launch of several, below the last of which
    stands whether to repeat them. ``fusions``: also name the best fusion of each update.
    """
    from reports.analysis.answer import exchanges_alone  # slow to import

    known = [(row, one) for row in rows if (one := figures(row)) is not None]
    first, *others = answers(rows, fusions=fusions) or [""]
    texts = [
        too_disturbed(rows, more) if whole else "",
        f"answer: {first}" if first else "",
        *others,
        lowest_loss(rows),
        exchanges_alone(rows),
        ports_law([row for row, _ in known]),
        disturbance(rows),
        beyond_compute(one for _, one in known),
        *_without_numbers(known),
    ]
    return list(_comments(texts))


def _comments(texts: Iterable[str]) -> Iterator[str]:
    """Sentences as lines of the terminal's width, with a mark before each."""
    width = min(_table().terminal, 100) - 2
    return (f"# {line}" for text in texts for line in wrap_line(text, width, 2))


def _without_numbers(known: Sequence[tuple[Measurement, StepFigures]]) -> Iterator[str]:
    """What ``none`` and ``-`` mean in the rows that have them, with names if these are not all."""
    every = [row for row, _ in known]
    steps = [(row, row.step) for row, _ in known if row.step is not None]
    if any(one.hidden is not None and one.hidden.value < 0 for _, one in known):
        yield (
            "hidden none: the exchange made the step longer than it takes alone, so overlap hid"
            " nothing of it"
        )
    alone = [row for row, step in steps if row.ranks == 1 and step.compute != "none"]
    if alone:
        yield f"hidden -{_of(alone, every)}: 1 rank exchanges nothing"
    pushes = [row for row, step in steps if step.learners is not None]
    if pushes:
        yield f"hidden -{_of(pushes, every)}: a push to a server follows its gradient"
    after = [row for row, step in steps if step.learners is None and not is_overlapped(step)]
    if after:
        yield f"hidden -{_of(after, every)}: --overlap off exchanges after the backward pass"
    if any(step.compute == "none" for _, step in steps):
        yield "hidden, eff., speed-up -: nothing is computed; --compute gives steps a time"
    bare = [row for row, one in known if one.predicted is None]
    library = [row for row in bare if row.algorithm.startswith(LIBRARY)]
    if library:
        of = _of(library, every)
        yield f"predicted, ratio -{of}: the library has no schedule to predict by"
    if others := [row for row in bare if row not in library]:
        yield (
            f"predicted, ratio -{_of(others, every)}: --fit FILE or --topology MAP gives the costs"
            " of the links"
        )


def _of(rows: Sequence[Measurement], every: Sequence[Measurement]) -> str:
    """The words `` of ring/ddp, ps/ddp`` for some of all rows; empty if they are all."""
    names = dict.fromkeys(row.algorithm for row in rows)
    return "" if len(rows) == len(every) else f" of {', '.join(names)}"


def ports_law(rows: Sequence[Measurement]) -> str:
    """Each exchange, measured alone, beside the law of the ports; empty without ports of a rate."""
    texts = []
    for row in rows:
        step = row.step
        if step is not None and step.port_s and step.exchange_s:
            alone = median(step.exchange_s)
            texts.append(
                f"{row.algorithm} {format_seconds(alone)} / {format_seconds(step.port_s)}"
                f" = {format_digits(alone / step.port_s)}"
            )
    rates = {row.step.port_rate for row in rows if row.step is not None and row.step.port_rate}
    if not texts or len(rates) != 1:
        return ""
    port = format_link_rate(rates.pop())
    return f"exchange alone / its bytes through the busiest port of {port}: {', '.join(texts)}"


class _StepColumn(NamedTuple):
    """A column of the table: its head and width, and functions that take and format its figure.

    ``beside``: how much wider the column is if intervals are written with both ends.
    """

    head: str
    width: int
    beside: int
    figure: Callable[[Measurement, StepFigures], Uncertain | float | None]
    text: Callable[[float], str]

    def cell(self, one: Measurement, known: StepFigures, wide: bool) -> tuple[str, str]:
        """The figure and its interval: both ends if ``wide``, else ± the larger distance."""
        figure = self.figure(one, known)
        if not isinstance(figure, Uncertain):
            return "-" if figure is None else self.text(figure), ""
        if figure.ends is None or figure.half is None:
            return self.text(figure.value), ""
        if wide:
            return self.text(figure.value), "..".join(map(self.text, figure.ends))
        return self.text(figure.value), f"±{self.text(figure.half)}"

    def words(self, one: Measurement, known: StepFigures) -> str:
        """Head, figure and interval in one line; empty if the row has no such figure."""
        value, below = self.cell(one, known, wide=False)
        return "" if value == "-" else " ".join(filter(None, (self.head, value, below)))


class _Table(NamedTuple):
    """The columns that fit the terminal, and the ``rest``. ``wide``: intervals have both ends."""

    columns: Sequence[_StepColumn]
    wide: bool
    rest: Sequence[_StepColumn]
    terminal: int


def _table() -> _Table:
    """As many columns as fit the terminal; without a terminal, all columns and both ends."""
    terminal = shutil.get_terminal_size((160, 24)).columns
    left = terminal - 2 - _NAME
    if sum(one.width + one.beside for one in _COLUMNS) <= left:
        whole = [one._replace(width=one.width + one.beside) for one in _COLUMNS]
        return _Table(whole, True, (), terminal)
    count = 0
    while count < len(_COLUMNS) and (left := left - _COLUMNS[count].width) >= 0:
        count += 1
    count = max(1, count)
    return _Table(_COLUMNS[:count], False, _COLUMNS[count:], max(terminal, 40))


def _ratio(value: float) -> str:
    return f"{value:.3f}" if value < 10 else format_digits(value)


_COLUMNS = (
    _StepColumn("step", 8, 9, lambda r, f: f.step, format_seconds),
    _StepColumn("exposed", 9, 10, lambda r, f: f.exposed, exposed_text),
    _StepColumn("hidden", 7, 8, lambda r, f: f.hidden, hidden_text),
    _StepColumn("samples/s", 10, 4, lambda r, f: f.rate, format_digits),
    _StepColumn("eff.", 7, 6, lambda r, f: f.efficiency, share_text),
    _StepColumn("predicted", 10, 0, lambda r, f: f.predicted, format_seconds),
    _StepColumn("ratio", 7, 6, lambda r, f: f.over_predicted, _ratio),
    # The columns from here on need a wide terminal.
    _StepColumn("speed-up", 9, 3, lambda r, f: f.speedup, lambda x: f"{x:.2f}"),
    _StepColumn("messages", 9, 0, lambda r, f: r.step.messages if r.step else None, str),
    _StepColumn("sent", 8, 0, lambda r, f: r.sent_bytes, lambda n: format_size_argument(int(n))),
    _StepColumn(
        "buckets", 8, 0, lambda r, f: r.step.buckets if r.step else None, lambda x: f"{x:g}"
    ),
)


_BAR = 20


def scaling_lines(rows: Path, more: str = "") -> list[str]:
    """The table of ``--sweep ranks`` from a file of records; empty if it cannot be read.

    What disturbed the rows stands below, with the command of all launches. ``more``: see
    `too_disturbed`.
    """
    try:
        steps = measurements(rows.read_text())
    except (OSError, ValueError, ReportError):
        return []
    cautions = list(_comments([too_disturbed(steps, more), disturbance(steps)]))
    return [*_scaling(steps), *(["#", *cautions] if cautions else [])]


def _scaling(steps: Iterable[Measurement]) -> Iterable[str]:
    groups: dict[tuple[str, str], dict[int, tuple[Measurement, StepFigures]]] = {}
    for row in steps:
        one = figures(row)
        if one is not None:
            groups.setdefault((row.collective, row.algorithm), {})[row.ranks or 0] = row, one
    for (model, algorithm), by_ranks in groups.items():
        base, against = by_ranks.get(1), ": scaling against 1 rank"
        if base is not None and base[0].step and base[0].step.stragglers:
            base, against = None, ": no speed-up, for the 1 rank measured is a straggler"
        yield "#"
        yield f"# {model}, {algorithm}" + (against if 1 in by_ranks else "")
        yield f"# {'ranks':>5}{'step':>10}{'samples/s':>11}{'speed-up':>9}{'efficiency':>15}"
        shares = []
        for ranks, (_, one) in sorted(by_ranks.items()):
            line = f"# {ranks:>5}{format_seconds(one.step.value):>10}{one.rate.value:>11.4g}"
            if base is None:
                yield line
                continue
            speedup = one.rate.over(base[1].rate)
            share = speedup.times(1 / ranks)
            bar = "█" * round(_BAR * min(1.0, share.value))
            wide = "" if share.half is None else f" ±{100 * share.half:.1f}"
            shares.append(share_text(share.value))
            yield f"{line}{speedup.value:>9.2f}{shares[-1] + wide:>15}  {bar}"
        if share_text(inf) in shares:
            yield "# above 100% of as many times 1 rank: noise of the measurement"
