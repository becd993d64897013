"""Read nccl-tests' output, also with several runs, interleaved ranks and other programs' messages.

Dialects: ``bytes N … res`` in milliseconds before 2019, then ``size count`` in microseconds;
``error`` (a deviation, with a star by RCCL if too large) before version 2.13 and ``#wrong`` (a
count) after; redop and root columns or not; ``-I`` columns, bitwise columns, timestamps; columns
added by forks. The header shows the dialect; without a header it is inferred from the row.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from math import isclose, isfinite

from msgspec.structs import replace

from busbar.units import format_count
from reports.readers import names
from reports.readers.gathered import Printed, agreed, contradiction, span
from reports.readers.text import Line
from reports.records.measurement import NOT_READ, Measurement, Note, Reading, Run
from reports.records.metrics import CPU, PLACEMENT

#: The column of ``-C 1``: CPU time until the calls have returned, not the operation's time.
CPU_TIME = "cputime"
_TIMES = ("time", CPU_TIME)
# Names of columns before 2019, and their names today.
_OLD = {"N": "count", "op": "redop", "res": "error"}
# Columns with figures; columns added by forks may have words.
_FIGURES = {*_TIMES, "algbw", "busbw", "#wrong", "wrong", "error", "#bitdiff"}
_NUMBER = re.compile(
    r"(?:[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?|[+-]?nan|[+-]?inf)\*?", re.ASCII
)
_START = re.compile(
    r"(?:^|[\s:>|\]])(\d{1,19})\s+(\d{1,19})\s+([A-Za-z]\w*)(?=\s|$)(.*)$", re.ASCII
)
_MESSAGE = re.compile(
    r"(?:\[?\d{4}-\d\d-\d\d[ T][\d:.]+\]? )?[\w.-]+:\d+:\d+ (?:\[[-\d]+\] )?(?:\S+ ){0,2}NCCL "
    r"\w+.*$"
)
# Source positions that a tracing build prints before messages or before nccl-tests' own text.
_TRACE = re.compile(r"(?:[A-Za-z_]\w*\(\), )[\w./-]+\.(?:cu|cc|cpp|cxx|c|h):\d+,", re.ASCII)
_DEBUG = re.compile(r"\[[\w./-]+\.(?:cu|cc|cpp|cxx|c|h)[:\[\]].*$", re.ASCII)
# A message of the program under test, directly behind the whole number that was printed last.
_GLUED = re.compile(r"(-?\d{1,9})[A-Za-z_\[(<]", re.ASCII)
# Values of the type column. Prose that begins with two numbers has none of these.
_KIND = re.compile(r"u?int|u?char|half|float|double|bf|fp?\d", re.IGNORECASE)
_OPS = ("sum", "prod", "max", "min", "avg", "mulsum", "none", "all")


@dataclass(frozen=True)
class Header:
    """The columns in a header: before the first time, of one placement ("half"), after both halves.

    ``unit_s``: the unit of the time column in seconds.
    """

    before: tuple[str, ...]
    half: tuple[str, ...]
    halves: int
    after: tuple[str, ...] = ()
    unit_s: float = 1e-6

    @property
    def cells(self) -> int:
        """The number of figures in a complete row."""
        return self.halves * len(self.half)


@dataclass
class Start:
    """A row as far as it has been read; further figures may follow on a later line.

    ``tokens``: the number of words and figures behind the type on the first line.
    """

    line: int
    size: int
    count: int
    dtype: str
    op: str
    root: int | None
    header: Header
    cells: list[str]
    first: int = 0
    surplus: int = 0
    after: tuple[str, ...] = ()
    tokens: int = 0


def header(text: str) -> Header | None:
    """The columns of a header line, None for any other line."""
    if "algbw" not in text:
        return None
    # Neuron's nccom-test writes units, and the statistic of the time, into the names.
    clean = re.sub(r"(?<=[a-z])(?::avg)?\((?:B|elems|us|GB/s)\)", "", text)
    names = clean.replace("#size", "# size").replace("#bytes", "# bytes").split()
    old = "size" not in names and "N" in names
    first = "bytes" if old else "size"
    if first not in names or not any(t in names for t in _TIMES):
        return None
    if "count" not in names and "type" not in names and not old:
        return None  # shortened by hand: reports.readers.shortened
    names = [_OLD.get(n, n) if old else n for n in names[names.index(first) + 1 :]]
    starts = [i for i, name in enumerate(names) if name in _TIMES]
    if not starts:
        return None
    before = tuple(n for n in names[: starts[0]] if n not in ("count", "type"))
    end = starts[1] if len(starts) > 1 else len(names)
    half = tuple(n for n in names[starts[0] : end] if n != "timestamp")
    rest = tuple(n for n in names[end:] if n != "timestamp")
    return Header(before, half, len(starts), rest[len(half) :], 1e-3 if old else 1e-6)


def without_messages(text: str, hosts: Sequence[str]) -> str:
    """Remove NCCL's messages from a line, also if a known host name directly follows a word."""
    if "()," in text:
        text = _TRACE.sub(" ", text)
    if ":" in text and "[" in text:
        text = _DEBUG.sub("", text)
    if "NCCL " not in text:
        return text
    for host in hosts:
        at = re.search(re.escape(host) + r":\d+:\d+ ", text)
        if at:
            return text[: at.start()]
    return _MESSAGE.sub("", text)


def number(cell: str) -> float | None:
    """The number in a cell, with or without a star; None for words and non-finite numbers."""
    if not _NUMBER.fullmatch(cell):
        return None
    value = float(cell.rstrip("*"))
    return value if isfinite(value) else None


def cells(text: str) -> list[str] | None:
    """The cells of a line that has only figures; None for any other line."""
    words = text.split()
    return words if words and all(_is_cell(c) for c in words) else None


def _is_cell(token: str) -> bool:
    return _NUMBER.fullmatch(token) is not None or token.upper() in ("N/A", "NA")


def _leading(tokens: Sequence[str]) -> list[str]:
    return list(takewhile(_is_cell, tokens))


def _guess(tokens: Sequence[str]) -> Header | None:
    """Guess the columns of a row without a header: a word is redop, an extra integer the root.

    None if the time would then be an integer of less than four digits: times are printed with
    decimals, so a cell is missing.
    """
    before: list[str] = []
    rest = list(tokens)
    if rest and not _is_cell(rest[0]):
        before.append("redop")
        rest = rest[1:]
    figures = len(_leading(rest))
    if figures % 4 == 1 and re.fullmatch(r"-?\d+", rest[0]):
        before.append("root")
        rest = rest[1:]
        figures -= 1
    if rest and re.fullmatch(r"-?\d{1,3}", rest[0]):
        return None
    # A deviation is printed with one digit and an exponent, a count is not.
    deviates = any(re.fullmatch(r"\de[+-]\d\d\*?", token) for token in rest)
    half = ["time", "algbw", "busbw", "error" if deviates else "#wrong"]
    if figures >= 16:
        half += ["i_min", "i_max", "i_p99", "i_cv%"]
    return Header(tuple(before), tuple(half), 1 if 0 < figures < 8 else 2)


def _figures(tokens: Sequence[str], columns: Header) -> tuple[list[str], bool]:
    """The leading cells of a row that are figures, or any text in columns added by forks.

    The second value is True if a message behind the count of wrong elements fills the line.
    """
    figures: list[str] = []
    for n, token in enumerate(tokens):
        column = columns.half[n % len(columns.half)] if n < columns.cells else "time"
        if not _is_cell(token) and (column in _FIGURES or column.startswith("i_")):
            glued = _GLUED.match(token) if column in ("#wrong", "wrong") else None
            return ([*figures, glued.group(1)], True) if glued else (figures, False)
        figures.append(token)
    return figures, False


def _words(tokens: Sequence[str], columns: Header) -> tuple[str, int | None, int] | str:
    """(operation, root, number of tokens used), or a text that says what is wrong.

    Older all-to-all tests leave the operation blank, so that its token is a figure.
    """
    op, root, at = "", None, 0
    for name in columns.before:
        if at >= len(tokens):
            break
        token = tokens[at]
        if name == "redop" and not _is_cell(token):
            op, at = ("" if token.lower() == "none" else token), at + 1
            if token.lower() not in _OPS:
                return f"{token!r} stands where the operation should"
        elif name == "root":
            glued = _GLUED.match(token)
            if glued:
                return op, int(glued.group(1)), len(tokens)
            if not re.fullmatch(r"-?\d{1,9}", token):
                return f"{token!r} stands where the root should"
            root, at = int(token), at + 1
    return op, root, at


def row_start(
    line: int, text: str, known: Header | None, before: Start | None = None
) -> Start | str | None:
    """The row that begins on this line, the reason why it cannot be read, or None for other lines.

    ``before``: the row above. A shorter row without a header has the columns of that row.
    """
    match = _START.search(text)
    if not match:
        return None
    bytes_, elements, kind, rest = match.groups()
    tokens = rest.split()
    columns = known
    if columns is None and before is not None and len(tokens) < before.tokens:
        columns = before.header
    elif columns is None:
        columns = _guess(tokens)
        if columns is None or len(_leading(tokens[len(columns.before) :])) < 4:
            return None
    words = _words(tokens, columns)
    if isinstance(words, str):
        return words if _KIND.match(kind) else None
    op, root, at = words
    figures, message = _figures(tokens[at:], columns)
    odd = tokens[at + len(figures) : at + columns.cells]
    if odd and not message and len(figures) < columns.cells and "timestamp" not in odd:
        column = columns.half[len(figures) % len(columns.half)]
        return f"{odd[0]!r} is no figure ({column})" if _KIND.match(kind) else None
    # For a replayed trace the out-of-place half is blank.
    blank = re.match(rf"(?:\s+\S+){{{at}}}\s{{34,}}\S", rest) if at else None
    first = len(columns.half) if blank and len(figures) == len(columns.half) else 0
    figures, more = figures[: columns.cells], figures[columns.cells :]
    after, surplus = tuple(more[: len(columns.after)]), max(0, len(more) - len(columns.after))
    size, count = int(bytes_), int(elements)
    end = len(tokens)
    return Start(line, size, count, kind, op, root, columns, figures, first, surplus, after, end)


_OURS = re.compile(r"(\S+) (.+) \(([\w, ]+)\)$")


@dataclass
class PartialTable:
    """State of the table of one run while it is read."""

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
    #: Number of rows, or halves of rows, that could not be read.
    refused: int = 0
    #: Number of sizes that the run was to measure; None if the log does not say.
    announced: int | None = None
    rows: list[Start] = field(default_factory=list)
    #: True if several jobs print into this table.
    mixed: bool = False
    average: tuple[int, float] | None = None
    #: True if a line that nccl-tests prints below its last row was read.
    ended: bool = False
    out_of_bounds: tuple[int, int] | None = None

    def size_of_world(self) -> int | None:
        """Ranks of one communicator, from the lines above the table; None if not known."""
        if not self.ranks:
            return self.nranks
        if len(self.ranks) > 1:  # split into groups: ranks of one communicator
            return max(len(members) for members in self.ranks.values())
        return max(next(iter(self.ranks.values()))) + 1


def rows_of(
    source: str, n: int, table: PartialTable, notes: list[Note], guesses: dict[str, list[int]]
) -> list[Measurement]:
    """The rows of the ``n``-th table of a file. Adds inferences to ``guesses``: lines by text."""
    ours = _OURS.match(table.program)
    name, algorithm, transport = ours.groups() if ours else (table.program, "", "")
    collective = names.collective(name)
    if not collective or _contradicted(table, collective):
        collective, by = _inferred(table), "its columns"
        named = "" if collective else names.in_file_name(source)
        if named and not _contradicted(table, named):
            collective, by = named, "the file's name"
        text = f": taken for {collective} by {by}" if collective else ""
        text = f"no line names the collective of this table{text}"
        guesses.setdefault(text, []).append(table.rows[0].line)
    unit_s = _unit_s(source, table, notes)
    if collective in ("", *_OWN_PART) and _restate(table, unit_s):
        notes.append(Note(source, table.rows[0].line, _RESTATED))
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
        average_busbw_bytes_per_s=None if table.average is None else table.average[1] * 1e9,
    )
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
    _check_end(source, table, notes)
    _check_values(source, table, rows, notes)
    return rows


#: Until June 2020 nccl-tests left each rank's own part out of these algbw (its issue 45).
_OWN_PART = ("allgather", "reduce_scatter")
_RESTATED = (
    "this version of nccl-tests leaves each rank's own part out of algbw (until 2020), so algbw is"
    " given as size / time; busbw is as printed"
)


def _restate(table: PartialTable, unit_s: float) -> bool:
    """Put size / time in place of algbw that leave out a rank's own part; False if none do.

    They are (n - 1)/n of size / time, and busbw is the same. Rows with too few digits to tell
    follow the others.
    """
    world = table.size_of_world()
    least, most = ((world - 1) / world,) * 2 if world else (0.5, 1.0)
    votes, restated = 0, []
    for start in table.rows:
        for half in range(start.first // len(start.header.half), start.header.halves):
            cells = _cells(start, half)
            time, printed, bus = (span(cells.get(n, "")) for n in ("time", "algbw", "busbw"))
            if time is None or printed is None or bus is None or time.low <= 0:
                continue
            rate = Printed(start.size / time.high, start.size / time.low).scaled(1 / unit_s / 1e9)
            part = Printed(rate.low * least, rate.high * most)
            old = printed.meets(bus) and printed.meets(part)
            votes += old - printed.meets(rate)
            if old:
                restated.append((start, half, start.size / float(cells["time"]) / unit_s / 1e9))
    if votes <= 0:
        return False
    for start, half, algbw in restated:
        width = len(start.header.half)
        at = half * width - start.first + start.header.half.index("algbw")
        start.cells[at] = f"{algbw:.9g}"
    return True


def _cells(start: Start, half: int) -> dict[str, str]:
    """The cells of a half by column; empty if the row ends before or inside it."""
    width = len(start.header.half)
    cells = start.cells[half * width - start.first : (half + 1) * width - start.first]
    return dict(zip(start.header.half, cells, strict=True)) if len(cells) == width else {}


def _contradiction(
    start: Start, half: int, collective: str, factor: float | None, unit_s: float
) -> str:
    """Why a row's time and rates contradict each other; empty if they do not.

    CPU times and hypercube are exempt, because their algbw is not size / time.
    """
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
    """True if the collective needs an operation but the table's rows have none."""
    needs = collective in ("allreduce", "reduce", "reduce_scatter")
    return needs and "redop" in table.rows[0].header.before and not any(s.op for s in table.rows)


def _inferred(table: PartialTable) -> str:
    """Infer the collective from the columns that have values; "" if several would fit."""
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
    """Ranks and bus factor, from the lines above, sizes that are multiples of counts, and rates."""
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
    """Algbw and busbw of all rows and halves, as printed texts."""
    halves = [_cells(s, h) for s in table.rows for h in range(s.header.halves)]
    return [(cells.get("algbw", ""), cells.get("busbw", "")) for cells in halves]


def _unit_s(source: str, table: PartialTable, notes: list[Note]) -> float:
    """The unit of times in seconds: the header's, or the one that is consistent with the rates."""
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
    """Add notes that fail the run for wrong values of no row: stars, the count below the table."""
    starred = [s.line for s in table.rows if any(cell.endswith("*") for cell in s.cells)]
    if starred:
        count = format_count(len(starred), "row")
        text = f"the log stars the error of {count} from here on as too large"
        notes.append(Note(source, starred[0], text, broken=True))
    elif table.out_of_bounds is not None and not any(row.wrong for row in rows):
        line, values = table.out_of_bounds
        notes.append(
            Note(source, line, f"the log counts {values} values out of bounds", broken=True)
        )


def _check_end(source: str, table: PartialTable, notes: list[Note]) -> None:
    """Add a note if the table has fewer sizes than announced, and nccl-tests' last lines lack."""
    lacking = (table.announced or 0) - len({row.size for row in table.rows})
    if lacking > 0 and not table.ended and not table.refused:
        last = table.rows[-1]
        sizes = format_count(lacking, "announced size")
        text = f"{sizes}{NOT_READ}the log ends here, before nccl-tests' last lines"
        notes.append(Note(source, last.line, text))


def _check_average(
    source: str, table: PartialTable, rows: list[Measurement], notes: list[Note]
) -> None:
    """Add a note if the log's average busbw differs from the average of the rows that were read."""
    rates = [r.busbw_bytes_per_s / 1e9 for r in rows if r.busbw_bytes_per_s is not None]
    if table.average is None or not rates:
        return
    line, average = table.average
    mean = sum(rates) / len(rates)
    if isclose(mean, average, rel_tol=0.01, abs_tol=0.006):
        return
    text = f"the log's average busbw, {average:g} GB/s, does not match that of its rows, {mean:.4g}"
    if table.refused:
        why = "rows were refused"
    elif len(table.rows) < (table.announced or 0):
        why = "rows are missing"
    else:
        why = "a figure was changed, or a row is missing"
    notes.append(Note(source, line, f"{text}: {why}"))


_DEVICE = re.compile(
    r"Rank\s+(\d{1,7})\s+(?:Group\s+(\d{1,9})\s+)?Pid\s+\d+ on\s+(\S+)\s+device\s+\d+ "
    r"\[[^\]]*\]\s*(.*)"
)
_AS_ABOVE = re.compile(r"Using devices as above: \d{1,7} ranks, group (\d{1,9})")
_STARTING = re.compile(r"Collective test (?:starting|concluded): (.+)")
_PERF = re.compile(r"\b([a-z]+(?:_[a-z]+)*)_perf(?:_mpi)?\b")
_MIXED = (
    "several jobs print into one log, as those of nccl-tests built without MPI do, and each row is"
    " of one of them"
)
# A command after a shell's prompt: arguments of a script may name the collective.
_PROMPT = re.compile(r"^(?:\S+@\S+[#$]|\$) (.+)")
_LIBRARY = re.compile(r"(?:^#?\s*|INFO )([NR]CCL) version ?:? ?(\d\S+)")
_VERSION = re.compile(r"nccl-tests version|busbar version|rccl-tests: Version")
_HEADER_LIBRARY = re.compile(r"\bnccl-library=(\d{4,6})\b")
_ITERATIONS = re.compile(r"(?<!warmup )(?<!agg )iters: (\d{1,9})\b")
_NRANKS = re.compile(r"\bnranks[ =](\d{1,7})\b")
_CALLED = re.compile(r"NCCL INFO (\w+): opCount ")
_SIZES = re.compile(r"minBytes (\d{1,19}) maxBytes (\d{1,19}) step: (\d{1,19})\((factor|bytes)\)")
_AVERAGE = re.compile(
    r"Avg bus bandwidth\s*:\s*(\d{1,18}(?:\.\d{0,18})?(?:e[+-]?\d{1,2})?)(?![\w.])"
)
_BOUNDS = re.compile(r"Out of bounds values\s*:\s*(\d{1,18})")
# Further lines below a table that are quoted as notes.
_TOLD = re.compile(r"^\s*# *(Bitwise mismatches\s*:\s*[1-9]\d{0,17}|error: .{1,200})")
# What Busbar prints below a row that something disturbed (`bench.run.noise.disturbances`).
_DISTURBED = re.compile(
    r"^\s*# ((?:(?:out-of|in)-place: )?"
    r"(?:(?:rank \d{1,7}|\d{1,7} ranks) waited for a core \(|rank \d{1,7}'s core at \d"
    r"|(?:other programs took|steal) \d{1,3} %).{0,200})"
)
_HOST = re.compile(r"^([\w.-]+):\d+:\d+ (?:\[[-\d]+\] )?(?:\S+ ){0,2}NCCL ")


class _Stream:
    """The tables in one rank's output, or in a file without rank labels."""

    def __init__(self, source: str, notes: list[Note]) -> None:
        self.tables: list[PartialTable] = []
        self._source, self._notes = source, notes
        self._table = PartialTable()
        self._pending: Start | None = None
        self._listed: dict[int, PartialTable] = {}  # by group, the table that lists its ranks

    def note(self, line: int, text: str) -> None:
        self._notes.append(Note(self._source, line, text))

    def feed(self, line: Line, hosts: Mapping[str, None], program: str) -> None:
        if self._comment(line, program):
            return
        text = without_messages(line.text, tuple(hosts))
        if not text.strip():
            return
        if self._pending and self._continued(text):
            return
        start = (
            None
            if text.lstrip().startswith("#")
            else row_start(line.number, text, self._table.header, self._above())
        )
        if isinstance(start, str):
            self._flush()
            self._table.refused += 1
            self.note(line.number, f"row not read: {start}")
        elif start is not None:
            self._flush()
            if not self._table.rows and not self._table.program:
                self._table.program = program
            self._pending = start
            if len(start.cells) + start.first >= start.header.cells:
                self._flush()

    def _above(self) -> Start | None:
        """The row above; None if there is none."""
        return self._pending or (self._table.rows[-1] if self._table.rows else None)

    def _continued(self, text: str) -> bool:
        words = cells(text)
        if not words or self._pending is None:
            return False
        room = self._pending.header.cells - self._pending.first - len(self._pending.cells)
        if len(words) > room:
            return False
        self._pending.cells += words
        if len(words) == room:
            self._flush()
        return True

    def _flush(self) -> None:
        """Store the row that was being read, or add a note on its missing figures."""
        start, self._pending = self._pending, None
        if start is None:
            return
        width = len(start.header.half)
        if len(start.cells) < width:
            self._table.refused += 1
            self.note(start.line, f"row of {start.size} B not read: its figures are missing")
            return
        if len(start.cells) % width:
            self._table.refused += 1
            self.note(start.line, f"row of {start.size} B, in-place, not read: this half is cut")
        if start.surplus:
            self.note(
                start.line,
                f"row of {start.size} B: {start.surplus} figures beyond the header left out",
            )
        self._table.rows.append(start)

    def end_of_table(self) -> None:
        """Finish the current row and table, and begin a new table."""
        self._flush()
        if self._table.rows:
            self.tables.append(self._table)
        elif self._table.header is not None and not self._table.refused:
            self.note(self._table.began, "a table's header with no row below it")
        self._table = PartialTable()

    def _comment(self, line: Line, program: str) -> bool:
        """Read a line that is no row. Returns True if the line is fully handled."""
        text, table = line.text, self._table
        columns = header(text)
        opens = (
            columns
            or ("nThread " in text and "minBytes" in text)
            or "nccl-tests version" in text
            or "test starting" in text
        )
        # A run that failed has its devices or header in the log, but no row below them.
        failed = not columns and (table.header or table.ranks)
        if opens and (table.rows or self._pending or failed):
            self.end_of_table()
            table = self._table
        if columns:
            table.header, table.began = columns, line.number
            table.program = table.program or program
            return True
        device = _DEVICE.search(text)
        if device:
            rank, group, host, name = device.groups()
            known = table.ranks.setdefault(int(group or 0), set())
            if int(rank) in known and not table.mixed:
                self.note(line.number, f"rank {rank} is listed again: {_MIXED}")
                table.mixed = True
            known.add(int(rank))
            table.hosts[host] = table.devices[name.strip()] = None
            self._listed[int(group or 0)] = table
            return True
        above = _AS_ABOVE.search(text)
        if above and (listed := self._listed.get(int(above.group(1)))):
            table.ranks = {int(above.group(1)): listed.ranks[int(above.group(1))]}
            table.hosts, table.devices = listed.hosts, listed.devices
            return True
        average = _AVERAGE.search(text)
        if average:
            self._flush()
            table.ended = True
            table.average = (line.number, float(average.group(1)))
            return True
        bounds = _BOUNDS.search(text)
        if bounds:
            self._flush()
            table.ended = True
            if int(bounds.group(1)):
                table.out_of_bounds = (line.number, int(bounds.group(1)))
            return True
        stated = _TOLD.match(text)
        if stated:
            self.note(line.number, f"the log says: {' '.join(stated.group(1).split())}")
        row, disturbed = self._above(), _DISTURBED.match(text)
        if row and disturbed:
            self.note(line.number, f"row of {row.size} B: {disturbed.group(1).strip()}")
        self._facts(text)
        return False

    def _facts(self, text: str) -> None:
        table = self._table
        starting = _STARTING.search(text)
        if starting:
            table.program = starting.group(1).strip()
        if _VERSION.search(text):
            table.version = text.lstrip("# ").strip()
            library = _HEADER_LIBRARY.search(text)
            if library and not table.library:
                table.library = f"NCCL {names.nccl_version(int(library.group(1)))}"
        library = _LIBRARY.search(text)
        if library:
            table.library = " ".join(library.groups())
        if "nThread" in text:
            iterations = _ITERATIONS.search(text)
            table.iterations = int(iterations.group(1)) if iterations else None
            table.announced = _sizes(text)
        called = _CALLED.search(text)
        if called and not table.program:
            table.program = called.group(1)
        nranks = _NRANKS.search(text)
        if nranks:
            table.nranks = max(int(nranks.group(1)), table.nranks or 0)


def _sizes(text: str) -> int | None:
    """The number of sizes in a line ``minBytes … maxBytes … step``; None for other lines."""
    match = _SIZES.search(text)
    if not match:
        return None
    low, high, step = map(int, match.groups()[:3])
    if match.group(4) == "bytes":
        return 1 + (high - low) // step if step and high >= low else 1
    count, size = 1, low
    while step > 1 and 0 < size * step <= high:
        count, size = count + 1, size * step
    return count


def read(source: str, lines: Iterable[Line]) -> Reading:
    """Read all tables in a log. Notes say which lines cannot be read and what was inferred."""
    notes: list[Note] = []
    streams: dict[str, _Stream] = {}
    hosts: dict[str, None] = {}
    program = ""
    for line in lines:
        host = _HOST.match(line.text)
        if host:
            hosts[host.group(1)] = None
        named = _PERF.search(line.text)
        if named and names.collective(named.group(1)) in names.KNOWN:
            program = named.group(0)
        elif prompt := _PROMPT.match(line.text):
            program = names.in_words(prompt.group(1))
        device = _DEVICE.search(line.text)
        if device:
            hosts[device.group(3)] = None
        if line.stream not in streams:
            streams[line.stream] = _Stream(source, notes)
        streams[line.stream].feed(line, hosts, program)
    tables = []
    for stream in streams.values():
        stream.end_of_table()
        tables += stream.tables
    tables.sort(key=lambda table: table.rows[0].line)
    rows: list[Measurement] = []
    guesses: dict[str, list[int]] = {}
    for n, table in enumerate(tables):
        rows += rows_of(source, n, table, notes, guesses)
    for text, where in guesses.items():
        more = f" (and {len(where) - 1} tables more)" if len(where) > 1 else ""
        notes.append(Note(source, where[0], text + more, inferred=True))
    return Reading(rows, sorted(notes, key=lambda note: note.line))
