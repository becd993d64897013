"""Where a run's results go: rank 0's standard output and the requested files."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import count as numbers
from itertools import pairwise
from pathlib import Path
from shlex import join, quote
from threading import Lock

from bench.launch.control_socket import ControlSocket
from bench.options.options import RunOptions
from bench.run.environment import machine
from bench.run.screen import Screen
from bench.run.table_text import comment, report_width
from busbar.errors import ReportError, StoreError, Unavailable, Unsupported
from busbar.files import has_content
from busbar.status import EARLY
from busbar.terminal import make_lines_printable
from busbar.units import format_count
from collectives.execution.world import World
from reports.exports.store import SINKS, Earlier, Store, check_target, launches_in, nccl_sink, sink
from reports.readers.codec import Writer, file_blocks, measurements, read_blocks
from reports.readers.text import read_bytes
from reports.records.measurement import Measurement, grouped, level_of, placements
from reports.records.metrics import TESTS
from reports.tables.summary import arrivals_table, pairs

# Seconds that the end of a run waits for a row that is being written or printed. If the output goes
# to a pager that shows a full page, printing never ends.
_PATIENCE_S = 2.0


class Recorder:
    """Prints and stores results on rank 0. Other ranks only collect them.

    All ranks create it together. If a file cannot be written, all ranks raise Unsupported
    (Unavailable if a library is missing). ``results``: the measurements so far. If a file cannot be
    written later, measuring continues without it, and the end of the run says so again.

    One thread may end a run while another measures. A row is then both on disk and printed, or
    neither; after `end` no row is added.
    """

    def __init__(
        self,
        world: World,
        screen: Screen,
        options: RunOptions,
        line: ControlSocket,
        *,
        sentences: Callable[[Sequence[Measurement]], Sequence[str]] | None = None,
    ) -> None:
        """``sentences``: computes all text to print, at the end; None prints rows as they come."""
        self._screen, self._line, self._errors = screen, line, list[str]()
        self.results: list[Measurement] = []
        self._lock, self._over = Lock(), False
        self._stores: list[Store] = []
        self._rank, self._lines, self._sentences = world.rank, Writer(), sentences
        problem, status = "", 0
        if world.rank == 0:
            try:
                self._stores = _opened(options)
            except ReportError as error:
                problem, status = str(error), error.exit_status
        problem, status = world.broadcast([problem, status])
        if status:
            raise (Unavailable if status == Unavailable.exit_status else Unsupported)(problem)

    @property
    def failed(self) -> bool:
        """True if a file could not be written."""
        return bool(self._errors)

    def row(self, row: Sequence[Measurement], lines: Sequence[str]) -> None:
        """Write a row to disk, then print it."""
        with self._lock:
            if self._over:
                return
            self._each(lambda store: store.add(row))
            if self._rank == 0 and self._line.connected:
                self._line.record(self._lines.lines(row))
            self.results.extend(row)
            self._say(lines)

    def say(self, lines: Sequence[str]) -> None:
        """Print results, and store the text if a run directory was requested."""
        with self._lock:
            if not self._over:
                self._say(lines)

    def end(
        self,
        closing: Callable[[], Sequence[str]],
        reason: str | None = None,
        early: Callable[[], Sequence[str]] = tuple,
    ) -> None:
        """Print the closing report and close the files; only the first call does anything.

        ``early``: why the run ends early, and what it measured, as lines before the report; a quiet
        run prints them as well. ``reason``: a note on standard error, after which no thread prints
        one.
        """
        if not self._lock.acquire(timeout=_PATIENCE_S):
            return  # the rows are on disk, and the output is not being read
        try:
            if self._over:
                return
            self._over = True
            self._screen.close()
            earlier = list(self._errors)
            try:
                before = early()
                why = before[0].removeprefix(EARLY).strip() if before else ""
                # Before the report, which a closed pipe or a full pager may not take.
                self._each(lambda store: store.end(why))
                self._say([*before, *closing()])
                if self._sentences is not None:
                    self._screen.lines([*before, *self._sentences(self.results)])
                if self._rank == 0 and reason is None:
                    self._line.send(reported=True)
            finally:
                self._each(lambda store: store.close())
                for error in earlier:  # its line is far above by now
                    self._screen.note(f"busbar: rows are missing: {error}")
                if reason is not None:
                    self._screen.end(reason)
        finally:
            self._lock.release()

    def _say(self, lines: Sequence[str]) -> None:
        if self._sentences is None:
            self._screen.lines(lines)
        texts = list(map(make_lines_printable, lines))
        self._each(lambda store: store.say(texts))

    def _each(self, action: Callable[[Store], None]) -> None:
        for store in list(self._stores):
            try:
                action(store)
            except StoreError as error:
                self._errors.append(str(error))
                self._stores.remove(store)
                with suppress(StoreError):
                    store.close()
                self._screen.note(f"busbar: {error}; measuring goes on without it")


def closing(rows: Sequence[Measurement], statistic: str, *, more: str = "") -> list[str]:
    """The closing report, as wide as the terminal; ``more``: see `repeated`."""
    from reports.tables.summary import summary  # not before the first row

    levels = {level_of(row) for row in rows}
    lines = [f"# MPI thread level {level}" for level in levels if level]
    tables, others = _tables_apart(rows, statistic, more)
    return [*lines, *tables, *summary(others, statistic, report_width(), more=more)]


def closing_sentences(rows: Sequence[Measurement], statistic: str, *, more: str = "") -> list[str]:
    """The conclusions, one sentence each; for arrival patterns and pair tests their table.

    ``more``: see `repeated`.
    """
    from reports.tables.scaling import caution_lines, conclusion_lines  # see above

    lines, others = _tables_apart(rows, statistic, more)
    for mine in grouped(others, lambda row: row.collective).values():
        lines += conclusion_lines(mine, report_width(), more)
    return [*lines, *caution_lines(others, report_width(), more=more)]


def so_far(rows: Sequence[Measurement], planned: Sequence[str], *, by_size: bool) -> list[str]:
    """How many of the planned rows of each algorithm were measured, for a run that ended early.

    ``planned``: the algorithm of each planned row. If no size has two algorithms yet although
    several were planned, the text says so, and unless rows are in order of size (``by_size``) how
    to compare sooner. No lines if all rows were measured.
    """
    from reports.analysis.answer import answers  # not before the first row

    done = Counter(pair.every[0].algorithm for pair in placements(rows))
    wanted = Counter(planned)
    if done.total() >= wanted.total():
        return []
    text = ", ".join(f"{name} {done[name]} of {count}" for name, count in wanted.items())
    text = f"rows measured: {text}"
    if len(wanted) > 1 and not answers(rows):
        text += "; nothing to compare yet"
        text += "" if by_size else ": --order size measures all algorithms at a size first"
    return comment(text, report_width())


def _tables_apart(
    rows: Sequence[Measurement], statistic: str, more: str
) -> tuple[list[str], list[Measurement]]:
    """The tables of pair tests and of several arrival patterns, and the rows of all others.

    With several arrival patterns, an algorithm has no single time. The last lines say what
    disturbed the rows of these tables.
    """
    from reports.tables.scaling import disturbance_lines, foreword  # not before the first row

    lines, others, apart = list[str](), list[Measurement](), list[Measurement]()
    for name, mine in grouped(rows, lambda row: row.collective).items():
        if table := pairs(mine, statistic) if name in TESTS else arrivals_table(mine):
            lines += table
            apart += mine
        elif name not in TESTS:
            others += mine
    width = report_width() - len("# ")
    texts = foreword(apart, width, more=more) + disturbance_lines(apart, width)
    return lines + [f"# {line}".rstrip() for line in ["", *texts] if texts], others


#: Options of files that a run does not write twice.
_WRITTEN = ("--out", "-J", "--trace")


def repeated(options: RunOptions) -> str:
    """The words of the command to repeat a run that its record lacks, such as ``--quiet``.

    Files that the run has written, and would not replace or add to, get the next name that is free.
    Empty for a launch of several, whose rows another process shows.
    """
    if options.after is not None:
        return ""
    words = list(options.unrecorded)
    if not (options.append or options.overwrite):
        for at, (name, word) in enumerate(pairwise(options.unrecorded), 1):
            words[at] = _free_name(word) if name in _WRITTEN else word
    return join(words)


def _free_name(name: str) -> str:
    """The first of ``run-2.jsonl``, ``run-3.jsonl``, … that does not exist."""
    path = Path(name)
    ending = "".join(path.suffixes[-2:]) if path.suffix == ".gz" else path.suffix
    stem = path.name.removesuffix(ending)
    named = (path.with_name(f"{stem}-{n}{ending}") for n in numbers(2))
    return str(next(one for one in named if not one.exists())) + "/" * name.endswith("/")


def kept_in(options: RunOptions) -> str:
    """How to see the rows of a run that was interrupted, for the end of a note; empty without any.

    For a launch of several, whose rows another process shows, it is empty too.
    """
    files = [one for one in options.out if Path(one).is_dir() or has_content(Path(one))]
    if not files or options.after is not None:
        return ""
    return f"; for what was measured: busbar reports show {quote(files[0])}"


def refuse_results(options: RunOptions) -> None:
    """Raise StoreError if a run would replace results in a file of ``--out`` or -J unasked.

    Also if a file of ``--out`` cannot be written, unless rank 0 may be on another host.
    """
    for target in options.out:
        if not options.on_hosts:
            check_target(target)
        _earlier(Path(target), options, ())
    _refuse_nccl_json(options)


def added_to(options: RunOptions) -> list[str]:
    """A line for each run directory of ``--out`` that has records, unless --append is given."""
    folders = {} if options.append else {one: launches_in(one) for one in options.out}
    return [
        f"{one}: has the records of {format_count(count, 'launch')}, to which this run's are added"
        for one, count in folders.items()
        if count
    ]


def _refuse_nccl_json(options: RunOptions) -> None:
    path = options.nccl_json
    if path is not None and not options.overwrite and has_content(path):
        why = "-J adds nothing to them, --overwrite replaces them"
        raise StoreError(f"{path}: has results already; {why}")


def _earlier(path: Path, options: RunOptions, launches: Sequence[Measurement]) -> Earlier:
    """The earlier content to keep in a file; ``launches``: rows of the launches before this one.

    Raises StoreError if the file has results and neither --append nor --overwrite is given.
    """
    known = path.name.endswith(tuple(SINKS))  # for other names, `sink` raises the error
    if options.append and known and not path.name.endswith((".jsonl", ".jsonl.gz")):
        raise StoreError(f"{path}: --append takes JSON lines (.jsonl, .jsonl.gz) alone")
    if options.overwrite or not (known and has_content(path)):
        return Earlier(launches)
    if not options.append:
        if launches:
            return Earlier(launches)
        raise StoreError(f"{path}: has results already; --append keeps them, --overwrite does not")
    return Earlier(lines=_record_lines(path))


def _record_lines(path: Path) -> bytes:
    """The lines of a file of records. A last line without a line end (a killed run's) gets one.

    Raises StoreError if the file has no records.
    """
    try:
        data, _ = read_bytes(path)
    except ReportError as error:
        raise StoreError(str(error)) from None
    reading = read_blocks(str(path), file_blocks(io.BytesIO(data)))
    if not len(reading.rows):
        why = f": {reading.notes[0].text}" if reading.notes else ""
        raise StoreError(f"{path}: --append finds no records in it{why}")
    return data if data.endswith(b"\n") else data + b"\n"


def _opened(options: RunOptions) -> list[Store]:
    earlier: Sequence[Measurement] = ()
    if options.after is not None and options.after.exists():
        earlier = measurements(options.after.read_text())
    stores: list[Store] = []
    _refuse_nccl_json(options)
    try:
        for target in options.out:
            stores.append(Store(sink(target, machine, _earlier(Path(target), options, earlier))))
        if options.nccl_json is not None:
            statistic = "mean" if options.timing == "loop" else options.statistic
            stores.append(Store(nccl_sink(options.nccl_json, statistic)))
    except ReportError:
        for store in stores:
            store.close()
        raise
    return stores
