"""The lines of an nccl-tests table, each on its own: headers, rows, cells, devices, messages.

Dialects: ``bytes N … res`` in milliseconds before 2019, then ``size count`` in microseconds;
``error`` (a deviation, starred by RCCL where too large) before version 2.13 and ``#wrong`` (a
count) after; redop and root columns or not; ``-I`` columns, bitwise columns, timestamps; forks with
columns of their own. The header says which; without one the row itself does.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from math import isfinite

#: The column of ``-C 1``: the CPU's time until the calls had returned, not the operation's.
CPU_TIME = "cputime"
_TIMES = ("time", CPU_TIME)
# What the columns were called before 2019, in our words of today.
_OLD = {"N": "count", "op": "redop", "res": "error"}
# Columns that hold figures; what a fork adds may hold words.
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
# Where a build that traces itself says so: before its message, or before nccl-tests' own text.
_TRACE = re.compile(r"(?:[A-Za-z_]\w*\(\), )[\w./-]+\.(?:cu|cc|cpp|cxx|c|h):\d+,", re.ASCII)
_DEBUG = re.compile(r"\[[\w./-]+\.(?:cu|cc|cpp|cxx|c|h)[:\[\]].*$", re.ASCII)
# A message of the program under test, glued to the whole number that was printed last.
_GLUED = re.compile(r"(-?\d{1,9})[A-Za-z_\[(<]", re.ASCII)
# What may stand in the column of the type; prose that begins with two numbers has none of these.
_KIND = re.compile(r"u?int|u?char|half|float|double|bf|fp?\d", re.IGNORECASE)
_OPS = ("sum", "prod", "max", "min", "avg", "mulsum", "none", "all")


@dataclass(frozen=True)
class Header:
    """The columns of a header: between type and the first time, of a half, after both.

    ``unit_s``: seconds of the unit of the time column.
    """

    before: tuple[str, ...]
    half: tuple[str, ...]
    halves: int
    after: tuple[str, ...] = ()
    unit_s: float = 1e-6

    @property
    def cells(self) -> int:
        """The number of figures of a whole row."""
        return self.halves * len(self.half)


@dataclass
class Start:
    """A row as far as it was read: figures may follow on a later line.

    ``tokens``: the number of words and figures behind the type, on the first line.
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
    # Neuron's nccom-test writes units into the names, and of which iterations the time is.
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
    """A line without what NCCL wrote into it, host names known to be glued to a word included."""
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
    """A figure, with or without a star; None for ``N/A``, a fork's word, what is not finite."""
    if not _NUMBER.fullmatch(cell):
        return None
    value = float(cell.rstrip("*"))
    return value if isfinite(value) else None


def cells(text: str) -> list[str] | None:
    """The figures of a line that has nothing else, None for any other line."""
    words = text.split()
    return words if words and all(_is_cell(c) for c in words) else None


def _is_cell(token: str) -> bool:
    return _NUMBER.fullmatch(token) is not None or token.upper() in ("N/A", "NA")


def _leading(tokens: Sequence[str]) -> list[str]:
    return list(takewhile(_is_cell, tokens))


def _guess(tokens: Sequence[str]) -> Header | None:
    """Columns of a row without a header: words are redop, an odd leading integer is the root.

    None where these columns would make a whole number of less than four digits a time, which is
    printed with decimals: a cell is missing.
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
    # A deviation was printed with one digit and an exponent, a count is not.
    deviates = any(re.fullmatch(r"\de[+-]\d\d\*?", token) for token in rest)
    half = ["time", "algbw", "busbw", "error" if deviates else "#wrong"]
    if figures >= 16:
        half += ["i_min", "i_max", "i_p99", "i_cv%"]
    return Header(tuple(before), tuple(half), 1 if 0 < figures < 8 else 2)


def _figures(tokens: Sequence[str], columns: Header) -> tuple[list[str], bool]:
    """The cells of a row as far as they are figures, or stand in a column that a fork added.

    And whether a message, glued to a count of wrong elements, takes the rest of the line.
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
    """(operation, root, how many tokens they took), or what is odd about them.

    Older all-to-alls leave the cell of the operation blank, so that a figure stands there.
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
    """The row that begins on this line; why not, when it looks like one; None for other lines.

    ``before``: the row above, whose columns a shorter row without a header has.
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
    # A replayed trace leaves the out-of-place half blank.
    blank = re.match(rf"(?:\s+\S+){{{at}}}\s{{34,}}\S", rest) if at else None
    first = len(columns.half) if blank and len(figures) == len(columns.half) else 0
    figures, more = figures[: columns.cells], figures[columns.cells :]
    after, surplus = tuple(more[: len(columns.after)]), max(0, len(more) - len(columns.after))
    size, count = int(bytes_), int(elements)
    end = len(tokens)
    return Start(line, size, count, kind, op, root, columns, figures, first, surplus, after, end)
