"""Rows that were measured or read, for programs and notebooks: `MeasuredRows`."""

from __future__ import annotations

from base64 import b64encode
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from html import escape
from itertools import chain
from math import nan
from operator import attrgetter
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Literal, get_args, overload

from msgspec import structs

from bench.api.keywords import Collective, DataTypes, Placement, Transport
from bench.api.public import public
from bench.api.remedies import in_keywords
from bench.api.results import BestAlgorithm, ResultTable, finished, item
from busbar.arguments import each, unknown
from busbar.errors import MissingFile, MissingLibrary, ReportError, StoreError, Unsupported
from busbar.files import FIGURE_FORMS, FigureForm, has_content, make_folder, write_all
from busbar.terminal import wrap_line
from busbar.units import format_count, format_rate, format_seconds, format_size, parse_size
from collectives.schedule.dtypes import canonical
from reports.analysis.answer import answers, on_launches, verdict
from reports.analysis.cautions import (
    causes,
    disturbance,
    launch_disturbance,
    too_disturbed,
    warnings_of,
)
from reports.analysis.launches import over_launches
from reports.analysis.steps import figures as step_figures
from reports.analysis.winners import Winner, plain_name
from reports.exports.store import save
from reports.figures.every import every_figure
from reports.figures.plot import figures
from reports.readers import names
from reports.readers.codec import with_details
from reports.readers.frame import frame
from reports.readers.reading import read_each
from reports.records.measurement import Measurement, grouped
from reports.records.metrics import PLACEMENT
from reports.records.table import COLUMNS, KEYS, Coded, as_columns, distinct, folded, launch_name
from reports.statistics.quantities import LATENCY_BOUND
from reports.tables.scaling import answer, best_lines
from reports.tables.show import texts

if TYPE_CHECKING:
    from pandas import DataFrame


_WIDTH = 100
# What the rows of a table in a notebook have in common.
_TABLE = attrgetter("collective", "dtype", "op", "root", "ranks", "placement", "reading")
# What records are read with, beside the facts of the run.
_FIGURES = attrgetter(*(name for name in COLUMNS if name != "line"))
# What two measurements of the same in a run have in common.
_KEYS = attrgetter(*KEYS)
#: What a line of `MeasuredRows.frame` is of.
_Over = Literal["rows", "launches"]
_CELL = '<td style="text-align:right;padding:0 0.8em">'


class MeasuredRows(Sequence[Measurement]):
    """Rows in the order in which they were measured, one for each size and placement.

    A sequence of `reports.records.measurement.Measurement` (seconds, bytes, bytes per second).
    ``notes``: remarks of the readers and the run.
    ``str()`` gives the tables, the answer and the warnings, as ``busbar reports show`` prints them.
    Remedies name keywords and calls. A notebook shows a plot, too.
    """

    def __init__(self, rows: Iterable[Measurement] = (), notes: Iterable[str] = ()) -> None:
        self.rows = tuple(_only_rows(rows))
        # All rows of their launches, of which `filter` and slices choose some.
        self._launches = self.rows
        self.notes = tuple(map(in_keywords, notes))

    @overload
    def __getitem__(self, at: int) -> Measurement: ...

    @overload
    def __getitem__(self, at: slice) -> MeasuredRows: ...

    def __getitem__(self, at: int | slice) -> Measurement | MeasuredRows:
        """A row; a slice gives another MeasuredRows. Raises IndexError with the number of rows."""
        instead = 'rows.filter(algorithms="ring") chooses rows, rows.frame() has columns'
        chosen = item(self.rows, at, "row", instead)
        return chosen if isinstance(chosen, Measurement) else self._part(chosen)

    def __len__(self) -> int:
        """The number of rows."""
        return len(self.rows)

    def __add__(self, other: Iterable[Measurement]) -> MeasuredRows:
        """The rows of both, in this order; a launch that both have counts once."""
        more = other if isinstance(other, MeasuredRows) else MeasuredRows(other)
        both = MeasuredRows(
            distinct((*self.rows, *more.rows)),
            dict.fromkeys((*self.notes, *more.notes)),
        )
        both._launches = tuple(distinct((*self._launches, *more._launches)))
        return both

    def __radd__(self, other: Iterable[Measurement] | int) -> MeasuredRows:
        """The rows of both, also for ``sum(...)`` without a start, which begins with 0."""
        begins = isinstance(other, int) and other == 0
        return MeasuredRows(() if begins else _only_rows(other)) + self

    def __eq__(self, other: object) -> bool:
        """True for the same rows in the same order; notes and files do not count."""
        if not isinstance(other, MeasuredRows):
            return NotImplemented
        return list(map(_values, self.rows)) == list(map(_values, other.rows))

    @public
    def filter(
        self,
        *,
        collective: Collective | str | Sequence[Collective | str] | None = None,
        algorithms: str | Sequence[str] | None = None,
        sizes: int | str | Sequence[int | str] | None = None,
        ranks: int | Sequence[int] | None = None,
        placement: Placement | Sequence[Placement] | None = None,
        transport: Transport | str | Sequence[Transport | str] | None = None,
        dtype: DataTypes | None = None,
        op: str | Sequence[str] | None = None,
        arrival: str | Sequence[str] | None = None,
    ) -> MeasuredRows:
        """The rows with these values, one or several each: ``filter(sizes="64K", ranks=[2, 4])``.

        ``arrival``: a pattern without its delay, such as ``late:0``. Raises Unsupported for a value
        that no row has, which names those that there are. The result is empty if no row has all
        values together, and of no rows.
        """
        from bench.api.calls import type_names  # loads slowly, and few programs filter

        wanted = {
            "collective": collective,
            "algorithm": algorithms,
            "size": None if sizes is None else [parse_size(str(one)) for one in each(sizes)],
            "ranks": None if ranks is None else [_number(one) for one in each(ranks)],
            "placement": placement,
            "transport": transport,
            "dtype": None if dtype is None else list(map(canonical, type_names(dtype))),
            "op": op,
            "arrival": arrival,
        }
        values = {name: list(each(one)) for name, one in wanted.items() if one is not None}
        for name, chosen in values.items():
            _check_values(name, chosen, self.rows)
        return self._part(
            row for row in self.rows if all(_value(row, n) in one for n, one in values.items())
        )

    def _part(self, rows: Iterable[Measurement]) -> MeasuredRows:
        """Some of the rows, with the notes, and what disturbed the launches of these rows."""
        chosen = tuple(rows)
        part = MeasuredRows(chosen, self.notes if chosen else ())
        runs = {id(row.run): row.run for row in (*chosen, *self._launches)}
        names = {key: launch_name(run) for key, run in runs.items()}
        launches = {names[id(row.run)] for row in chosen}
        part._launches = tuple(r for r in self._launches if names[id(r.run)] in launches)
        return part

    @property
    def wrong(self) -> int | None:
        """The number of wrong elements in all rows that were checked; None if none was."""
        checked = [row.wrong for row in self.rows if row.wrong is not None]
        return sum(checked) if checked else None

    @property
    def answer(self) -> str:
        """The fastest algorithm by size, with intervals and the sizes where it changes."""
        return in_keywords("\n".join(answer(self._together, _WIDTH, self._launches)))

    @property
    def warnings(self) -> list[str]:
        """Reasons not to trust rows, one line per kind: ranks that shared cores, drift, noise.

        Of rows that `filter` or a slice chose also that other programs disturbed their launch. The
        last says that the intervals of an answer do not cover another launch, or a later one.
        """
        uncovered = in_keywords(on_launches(self._together, self._launches))
        return [*doubts(self), *filter(None, [uncovered])]

    @property
    def _of_launch(self) -> str:
        """What disturbed the launches, if these rows do not show it; else empty."""
        return launch_disturbance(self._together, self._launches)

    @cached_property
    def _together(self) -> Sequence[Measurement]:
        """The rows, with repeated measurements of a run as one, if they have their raw times."""
        settings = {(id(row.run), *_KEYS(row)) for row in self.rows}
        if len(settings) == len(self.rows) or any(row.step is not None for row in self.rows):
            return self.rows
        return self.rows if _no_record(self.rows) else folded(as_columns(self.rows))

    @public
    def frame(self, over: _Over = "rows") -> DataFrame:
        """The rows as a pandas DataFrame, see docs/logs.md. Raises MissingLibrary.

        A line per row, in their order: ``frame().iloc[3]`` is ``rows[3]``. Several launches measure
        in random order; ``frame().sort_values(["algorithm", "size"], kind="stable")`` sorts.
        ``over="launches"`` gives the lines of the table that ``print(rows)`` shows, with the rows
        of several launches of a command as one (not those of `busbar.step`): ``time_s`` is the
        geometric mean of their medians, ``low_s`` and ``high_s`` are its 95 % interval, and
        ``launches`` is their number, in place of ``launch``.
        In addition to the columns in bytes per second, ``algbw`` and ``busbw`` are in GB/s (10^9
        bytes), NaN where no data is moved, as of a barrier. The columns of a result table come
        first and last, where pandas prints them.
        ``launch`` numbers the launches from 0, in the order of their first rows.
        ``arrival`` is the pattern of rows that have one, such as ``late:0``, without its delay.
        Training steps have ``step_update``, ``step_fusion`` and ``step_overlap`` (True or False),
        ``step_exposed_s``, ``step_compute_s``, ``step_exchange_s``, ``step_hidden`` (the share of
        the exchange), ``step_efficiency`` and ``samples_per_s`` as well. A negative
        ``step_exposed_s`` is noise, see docs/steps.md.
        ``attrs["units"]`` maps columns to units; ``attrs["disturbance"]`` says what other programs
        did in these launches, and is empty if they did little.
        """
        if over not in get_args(_Over):
            raise Unsupported(f"frame: over is rows or launches, not {over!r}")
        rows = self.rows if over == "rows" else over_launches(self._together)
        table = frame(rows)
        if over == "rows":
            table["launch"] = Coded.of(launch_name(row.run) for row in rows).codes.tolist()
        else:
            table["launches"] = [len(row.launches_s) or 1 for row in rows]
        arrivals = [_value(row, "arrival") for row in rows]
        if any(arrivals):
            table["arrival"] = arrivals
        if any(row.step is not None for row in rows):
            for name, values in _step_columns(rows).items():
                table[name] = values
        empty = [row.size == 0 for row in rows]
        table.loc[empty, "algbw_bytes_per_s"] = nan
        table.loc[[row.bus_factor == 0 for row in rows], "busbw_bytes_per_s"] = nan
        table = finished(table)
        table.attrs["disturbance"] = in_keywords(self._of_launch or causes(self._together))
        return table

    @public
    def save(self, path: str | Path, *, overwrite: bool = False) -> None:
        """Write the rows to a file as ``out`` of `busbar.run` does, by its ending.

        `busbar.load` of ``.jsonl``, ``.jsonl.gz`` and ``.json`` gives equal rows; ``.parquet`` and
        ``.csv`` have less (docs/reports.md). The file has all of the rows or is as it was. Notes
        are not written, such as that a run ended early. ``overwrite``: replace a file that has
        content.

        Raises StoreError, also for such a file without ``overwrite``. Raises Unsupported for rows
        whose source lacks what records hold, such as raw times: other logs, CSV, most of Parquet.
        """
        if not isinstance(path, (str, Path)):
            raise Unsupported(f"save: path is a file, not {path!r}")
        if not self.rows:
            raise Unsupported("save: there are no rows")
        if other := _no_record(self.rows):
            raise Unsupported(
                f"save: {other.run.source} lacks what records hold, such as raw times; keep that"
                " file, or use rows.frame().to_csv"
            )
        target = Path(path)
        if has_content(target) and not overwrite:
            raise StoreError(f"{target}: has content already; overwrite=True replaces it")
        save(target, self.rows)

    def best(self) -> ResultTable[BestAlgorithm]:
        """The fastest algorithm at each size, by the same procedure as `answer`.

        Of a single launch the verdict is on that launch: its intervals are of iterations.
        `busbar.compare` asks about launches, and tells nothing from one.
        A line for each setting, number of ranks and size where the answer compares algorithms; none
        for rows of one algorithm, of one rank, or of training steps.
        """
        named = [
            winner.row
            for ranges in answers(self._together, self._launches).values()
            for one in ranges
            for winner in one.won
        ]
        by_size = answers(self._together, self._launches, each_size=True)
        ranges = chain.from_iterable(by_size.values())
        lines = [_best(one.won[0], row) for one, row in zip(ranges, named, strict=True)]
        text = best_lines(self._together, by_size, _WIDTH, self._launches)
        # If the launches are too disturbed, the text begins with that.
        of_launch = "" if too_disturbed(self._launches) else self._of_launch
        known = of_launch or disturbance(self._together)
        for note in (known, on_launches(self._together, self._launches)):
            text += wrap_line(in_keywords(note), _WIDTH, 2)
        return ResultTable(BestAlgorithm, lines, in_keywords("\n".join(text)))

    @public
    def figures(self, form: FigureForm = "svg") -> dict[str, bytes]:
        """The plots that ``busbar reports plot`` writes: file content by name.

        ``form``: svg, png or pdf. Raises MissingLibrary without matplotlib, Unsupported for another
        form, and ReportError if there is nothing to plot.
        """
        if form not in FIGURE_FORMS:
            raise unknown("form", str(form), FIGURE_FORMS)
        return every_figure(self.rows, [row for row in self.rows if row.step is not None], form)

    @public
    def plot(self, folder: str | Path = ".", form: FigureForm = "png") -> list[Path]:
        """Write `figures` to files in a folder, which is made. Returns their paths.

        Raises also StoreError.
        """
        if not isinstance(folder, (str, Path)):
            raise Unsupported(f"plot: folder is a path, not {folder!r}")
        drawn = self.figures(form)
        make_folder(Path(folder))
        paths = [Path(folder) / f"{name}.{form}" for name in drawn]
        write_all(zip(paths, drawn.values(), strict=True))
        return paths

    if not TYPE_CHECKING:  # for a checker, any attribute would be there

        def __getattr__(self, name: str) -> Any:
            """Raise AttributeError, which names `frame`: pandas shows it, too."""
            # pandas asks for ndim where the rows are given to its DataFrame.
            instead = "rows.frame() is a pandas DataFrame of them"
            if name == "compare":
                instead = "busbar.compare(rows, others) compares them"
            raise AttributeError(f"MeasuredRows have no {name}; {instead}", name=name, obj=self)

    def __repr__(self) -> str:
        named = (f"{r.collective or 'unnamed collective'} {r.algorithm}" for r in self.rows)
        what = ", ".join(dict.fromkeys(map(str.strip, named)))
        skipped = sum(bool(row.skipped) for row in self.rows)
        rows = format_count(len(self.rows), "row") + (f", {skipped} skipped" if skipped else "")
        return f"<MeasuredRows: {rows}: {what or 'nothing'}>"

    def __str__(self) -> str:
        if not self.rows:
            return "no rows"
        shown = map(in_keywords, texts(over_launches(self._together), _WIDTH))
        return "\n".join([*shown, *self._remarks()])

    def _remarks(self) -> list[str]:
        """The answer, the warnings and the notes, as lines."""
        return [*self.answer.splitlines(), *self.warnings, *self.notes]

    def _repr_html_(self) -> str:
        """Tables by size and algorithm, answer, warnings, and the plot of busbw if there is one."""
        if not self.rows:
            return "<p>no rows</p>"
        remarks = f"<pre>{escape(chr(10).join(self._remarks()))}</pre>"
        groups = grouped(over_launches(self._together), _TABLE)
        return "".join([*map(_table, groups.values()), remarks, *self._drawn()])

    def _drawn(self) -> Iterator[str]:
        try:
            pictures = figures([r for r in self.rows if r.busbw_bytes_per_s], "svg")
        except (MissingLibrary, ReportError):
            return
        for name, drawn in pictures.items():
            if "busbw" in name:
                source = f"data:image/svg+xml;base64,{b64encode(drawn).decode()}"
                yield f'<img style="max-width:100%" alt="{escape(name)}" src="{source}">'


def doubts(rows: MeasuredRows) -> list[str]:
    """The ``warnings`` of rows without that on the number of launches, which `compare` judges."""
    reasons = Counter(row.skipped for row in rows if row.skipped)
    skipped = [f"{format_count(n, 'row')} skipped: {why}" for why, n in reasons.items()]
    warnings = [*skipped, *filter(None, [rows._of_launch]), *warnings_of(rows._together)]
    return list(map(in_keywords, warnings))


@public
def load(
    *paths: str | Path | Iterable[str | Path],
    ranks: int | None = None,
    collective: Collective | str | None = None,
) -> MeasuredRows:
    """The rows of files or folders: Busbar's records, and logs of nccl-tests, OSU and IMB.

    A list of paths is accepted as well, and a pattern such as ``"*.log"``, which stands for the
    files that it matches, by name. Of a folder the records are read, or else the logs: ``.log``,
    ``.out`` and ``.txt``. ``ranks`` and ``collective`` are those of logs that do not state them;
    ReportError is raised if rows state others, which `MeasuredRows.filter` chooses from.
    A launch that several files have counts once. ``notes`` says so, and which files cannot be read;
    if none can, ReportError is raised, which is MissingFile for a file that does not exist.
    A CSV file has no raw times and nothing of the run, see docs/reports.md.
    """
    if ranks is not None and (not isinstance(ranks, int) or ranks < 1):
        raise Unsupported(f"busbar.load: ranks is a number of ranks from 1, not {ranks!r}")
    if collective is not None and not names.is_collective(str(collective)):
        raise unknown("collective", str(collective), sorted(names.KNOWN), "busbar.load")
    files: list[str | Path] = []
    for path in paths:
        if not isinstance(path, (str, Path, Iterable)) or hasattr(path, "read"):
            raise Unsupported(f"busbar.load reads files, not {path!r}")
        for one in each(path):
            # Iterating over a table or a dict gives its columns or keys, which are texts, too.
            if hasattr(path, "keys") or not isinstance(one, (str, Path)):
                kind = type(path if hasattr(path, "keys") else one).__name__
                raise Unsupported(f"busbar.load reads files, not a value of type {kind}")
            files += _matching(one)
    if not files:
        raise ReportError("busbar.load: no file to read")
    known, readings, errors = read_each(files, ranks, str(collective or ""))
    for error in errors:
        error.args = (in_keywords(str(error)),)
    if not readings:
        raise errors[0]
    notes = dict.fromkeys(str(note) for one in readings for note in one.notes)
    for name, value in (("ranks", ranks), ("collective", collective)):
        _check_stated(name, value, [row for one in readings for row in one.rows])
    both = zip(known, readings, strict=True)
    return MeasuredRows(
        (row for path, one in both for row in with_details(path, one.rows)),
        [*map(str, errors), *notes],
    )


def _check_stated(name: str, value: object, rows: Iterable[Measurement]) -> None:
    """Raise ReportError if rows state another value than that of an argument of `load`."""
    for row in rows if value else ():
        stated = getattr(row, name)
        if stated not in (None, "", value):
            raise ReportError(
                f"busbar.load: {name} is for logs that do not state it, and {row.run.source} has"
                f" {stated}, not {value}; leave {name} out, and choose with rows.filter({name}=...)"
            )


def _value(row: Measurement, name: str) -> Any:
    """The value by which `MeasuredRows.filter` chooses a row."""
    if name == "arrival":
        return row.window.pattern if row.window is not None else ""
    return getattr(row, name)


def _check_values(name: str, chosen: Iterable[Any], rows: Sequence[Measurement]) -> None:
    """Raise Unsupported for a value that no row has; of no rows everything can be chosen."""
    show = format_size if name == "size" else str
    of_rows = list(dict.fromkeys(_value(row, name) for row in rows))
    known = [one for one in of_rows if one not in (None, "")]
    there_are = ", ".join(map(show, sorted(known) if name in ("size", "ranks") else known))
    for one in chosen if rows else ():
        if one not in of_rows:
            shown = show(one) if name == "size" else repr(one)
            have = f"there are: {there_are}" if there_are else "these rows have none"
            raise Unsupported(f"filter: no {name} {shown}; {have}")


def _number(ranks: object) -> object:
    """A number of ranks that is written as a text as a number; another value as it is."""
    return int(ranks) if isinstance(ranks, str) and ranks.isdigit() else ranks


def _no_record(rows: Sequence[Measurement]) -> Measurement | None:
    """The first row that is more, or less, than its record, as of other logs; None without one."""
    pairs = zip(rows, as_columns(rows), strict=True)
    return next((row for row, again in pairs if _FIGURES(row) != _FIGURES(again)), None)


def _only_rows(values: object) -> Iterator[Measurement]:
    """The values, which must be rows. Raises Unsupported."""
    for value in values if isinstance(values, Iterable) else [values]:
        if not isinstance(value, Measurement):
            kind = type(value).__name__
            raise Unsupported(f"MeasuredRows are made of rows, not of a value of type {kind}")
        yield value


def _values(row: Measurement) -> Measurement:
    """A row without the place in a file that it was read from."""
    return structs.replace(row, run=replace(row.run, source="", number=0, format=""), line=0)


def _matching(path: str | Path) -> Sequence[str | Path]:
    """The path, or the files that a pattern matches. Raises MissingFile if there are none."""
    if not any(mark in str(path) for mark in "*?[") or Path(path).exists():
        return [path]
    pattern = Path(path)
    try:
        files = sorted(Path(pattern.anchor).glob(str(pattern.relative_to(pattern.anchor))))
    except ValueError as error:  # such as **.log
        raise ReportError(f"busbar.load: {path}: {error}") from None
    if not files:
        raise MissingFile(f"busbar.load: no file matches {path}", path)
    return files


def _best(winner: Winner, named: Measurement) -> BestAlgorithm:
    """A line of `MeasuredRows.best`; ``named``: a row of the algorithm that the answer names."""
    row, following = winner.row, winner.next_row
    return BestAlgorithm(
        size=row.size or 0,
        ranks=row.ranks or 0,
        placement=row.placement,
        algorithm=plain_name(row),
        transport=row.transport,
        verdict=verdict(winner),
        time_s=row.time_s or nan,
        busbw_bytes_per_s=row.busbw_bytes_per_s or nan,
        next="" if following is None else plain_name(following),
        next_transport="" if following is None else following.transport,
        ratio=winner.margin,
        ratio_low=winner.low,
        ratio_high=winner.high,
        library_ratio=winner.library,
        library_ratio_low=winner.library_low,
        library_ratio_high=winner.library_high,
        answer=plain_name(named),
        answer_transport=named.transport,
        collective=row.collective,
        dtype=row.dtype,
        op=row.op,
        root=row.root,
        arrival=_value(row, "arrival"),
        across=row.across,
    )


_STEP_FIGURES = (
    "step_exposed_s", "step_compute_s", "step_exchange_s", "step_hidden", "step_efficiency",
    "samples_per_s",
)  # fmt: skip


def _step_columns(rows: Sequence[Measurement]) -> dict[str, list[Any]]:
    """What was measured of training steps, and its figures, as columns; NaN if unknown.

    Figures are in seconds, shares and samples per second.
    """
    steps = [row.step for row in rows]
    columns: dict[str, list[Any]] = {
        "step_update": [None if step is None else step.update for step in steps],
        "step_fusion": [None if step is None else step.fusion for step in steps],
        "step_overlap": [None if step is None else step.overlap for step in steps],
    }
    figures = [_step_figures(row) for row in rows]
    return columns | {
        name: [nan if line[at] is None else line[at] for line in figures]
        for at, name in enumerate(_STEP_FIGURES)
    }


def _step_figures(row: Measurement) -> tuple[float | None, ...]:
    """The values of `_STEP_FIGURES`."""
    known = None if row.step is None else step_figures(row)
    if row.step is None or known is None:
        return (None,) * len(_STEP_FIGURES)
    exposed, hidden, efficiency = (
        None if one is None else one.value
        for one in (known.exposed, known.hidden, known.efficiency)
    )
    exchange = median(row.step.exchange_s) if row.step.exchange_s else None
    rate = known.rate.value if row.step.batch else None
    return exposed, known.compute, exchange, hidden, efficiency, rate


def _table(rows: Sequence[Measurement]) -> str:
    """An HTML table by size and algorithm. The fastest of a line is bold, wrong results are red."""
    first = rows[0]
    carried: dict[str, set[str]] = {}
    for row in rows:
        carried.setdefault(row.algorithm, set()).add(row.transport)
    lines: dict[int | None, dict[str, Measurement]] = {}
    for row in rows:
        name = row.algorithm or "measured"
        name += f" {row.transport}" if len(carried[row.algorithm]) > 1 else ""
        lines.setdefault(row.nbytes, {})[name] = row
    names = list(dict.fromkeys(name for line in lines.values() for name in line))
    words = (first.collective, PLACEMENT.get(first.placement, first.placement), first.dtype)
    root = f"root {first.root}" if first.root is not None and first.root >= 0 else ""
    ranks = f", {format_count(first.ranks, 'rank')}" if first.ranks else ""
    reading = f", {first.reading}" if first.reading else ""
    what = " ".join(filter(None, (*words, first.op, root)))
    title = f"{what}{ranks}{reading}: busbw in GB/s, or the time"
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    body = "".join(
        f"<tr><th>{format_size(size)}</th>"
        f"{''.join(_cell(line.get(name), line.values()) for name in names)}</tr>"
        for size, line in sorted(lines.items(), key=lambda item: item[0] or 0)
    )
    caption = f'<caption style="white-space:nowrap;text-align:left">{escape(title)}</caption>'
    head = f"<thead><tr><th>size</th>{head}</tr></thead>"
    return f"<table>{caption}{head}<tbody>{body}</tbody></table>"


def _cell(row: Measurement | None, line: Iterable[Measurement]) -> str:
    if row is None or row.time_s is None:
        return _CELL + "</td>"
    rated = row.busbw_bytes_per_s and (row.size or 0) >= LATENCY_BOUND
    text = escape(format_rate(row.busbw_bytes_per_s) if rated else format_seconds(row.time_s))
    if row.wrong:
        return f'{_CELL}<span style="color:#c00">{text} ({row.wrong} wrong)</span></td>'
    best = min((one.time_s for one in line if one.time_s and not one.wrong), default=None)
    return f"{_CELL}{f'<b>{text}</b>' if row.time_s == best else text}</td>"
