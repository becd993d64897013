"""Find a device matrix in a text: the common part of ``topo -m`` and ``topo -p2p``.

A header names the devices. Each row repeats a device's name and has one word for each of them. Text
before the names in a line (a prompt, a time stamp, a quotation mark, markdown's bars) is skipped,
and text after the words is returned. A pasted matrix that cannot be read as it is (wrapped, run
together, fused) is repaired.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise

from busbar.errors import ProbeError

_HEAD = re.compile(r"\s*GPU ?0\s+(?!X\b)[A-Za-z]")
_FIRST_ROW = re.compile(r"\s*GPU ?0\s+X\b")
#: A row of 1,024 devices has some hundred lines of 80 characters.
_MOST = 128


_WORD = r"(?:NODE|SYS|SOC|PHB|PXB|PIX|PSB|NV[1-9][0-9]*|X)"
_ROW_LABEL = r"(?:GPU|NIC)[0-9]+"
#: Where a row begins, or the legend, in a text whose line ends became blanks.
_BEGINS = re.compile(rf" (?={_ROW_LABEL} {_WORD}(?: |$))| (?=Legend:|NIC Legend:)")
#: Where neighbours that a document's conversion fused come apart.
_FUSED = re.compile(
    rf"(?<=[0-9])(?=N/A)|({_ROW_LABEL})(?=[A-Z])|({_WORD})(?={_WORD})"
    r"|(?<=[A-Z])(?<!GPU)(?<!NIC)(?<!NV)(?=[0-9])"
)


def readings(lines: list[str]) -> Iterator[list[str]]:
    """Yield repaired lines, the most likely repair first; the first that can be parsed is used.

    Lines keep their numbers unless a whole matrix is on one line.
    """
    yield from unwrapped(lines)
    begun = [part for line in lines for part in _BEGINS.sub("\n", line).split("\n")]
    if len(begun) > len(lines):
        yield begun
    apart = [_FUSED.sub(r"\g<0> ", line) for line in lines]
    if apart != lines:
        yield apart


def unwrapped(lines: list[str]) -> Iterator[list[str]]:
    """Yield the text with every wrapped row joined on its first line; nothing if no row is wrapped.

    Lines keep their numbers: joined lines become blank. A terminal cuts words at its width, so the
    first version joins lines of the full width without a space, the second joins none so.
    """
    head = next((n for n, line in enumerate(lines) if _HEAD.match(line)), None)
    if head is None:
        return
    first = next((n for n in range(head + 1, len(lines)) if _FIRST_ROW.match(lines[n])), None)
    if first is None or first - head > _MOST:
        return
    parts = _parts(lines, head, first)
    if all(len(part) == 1 for part in parts):
        return
    width = max(len(lines[n]) for part in parts for n in part[:-1])
    for full in (width, 0):
        out = list(lines)
        for part in parts:
            text = lines[part[0]]
            for before, after in pairwise(part):
                text += ("" if len(lines[before]) == full else " ") + lines[after]
                out[after] = ""
            out[part[0]] = text
        yield out


def _parts(lines: list[str], head: int, first: int) -> list[list[int]]:
    """The line numbers of the header and of each row of the matrix."""
    parts = [list(range(head, first))]
    labels = set(re.findall(r"[A-Za-z][\w.:-]*", " ".join(lines[head:first])))
    labels |= set(re.findall(r"[A-Za-z][\w.:-]*", "".join(lines[head:first])))
    after_blank = False
    for n in range(first, len(lines)):
        words = lines[n].split()
        if words and words[0].startswith("Legend"):
            break
        if not words:
            after_blank = True  # the wrapped end of a row may be blank
            continue
        named = words[0] in labels and not re.fullmatch(r"X|N/A|NV\d+", words[0])
        # A name that the header lacks begins a row too: the header is cut.
        foreign = _DEVICE.fullmatch(words[0]) and len(words) > 1 and re.fullmatch(_WORD, words[1])
        if n == first or named or foreign or re.fullmatch(_ROW_LABEL, words[0]):
            parts.append([n])
        elif after_blank:
            break
        elif len(parts[-1]) < _MOST:
            parts[-1].append(n)
        after_blank = False
    return parts


MAX_DEVICES = 1024
#: The words of ``topo -m`` and of ``topo -p2p``, as alternatives of a regular expression.
LEVELS = "NODE|SYS|SOC|PHB|PXB|PIX|PSB|NV[1-9][0-9]*|X"
STATUSES = "CNS|GNS|TNS|OK|DR|NS|U|X"
_LABEL = re.compile(r"[A-Za-z][\w.:-]*")
_FIRST = re.compile(r"(?<![\w.:-])GPU\d+(?![\w.:-])")
_DEVICE = re.compile(r"(?<![\w.:-])((?:GPU|NIC|DD)[0-9]{1,6}|[a-z]\w*_[\w.]*[0-9])(?![\w.:-])")
_SPACED = re.compile(r"\b(GPU|NIC) (\d+)(?![\d,-])")
_COLUMNS = re.compile(
    r"(?P<cpu>CPU\s*Affinity)|(?P<numa>NUMA\s*Affinity)|(?P<gpu>GPU\s*NUMA\s*ID)", re.I
)
#: The rest of the first such column's name if the text is cut on the right.
_FRAGMENT = re.compile(r"[ \t]C(?:P(?:U(?: ?A\w*)?)?)?[ \t]*$")
_TAG = re.compile(r"</?[a-z]{1,10}>|\*\*|`")
_DRAWN = str.maketrans(
    {**dict.fromkeys("│┃║", "|"), **dict.fromkeys("─━═┼╪╬├┤╞╡╠╣┌┐└┘┬┴╔╗╚╝╦╩", "-")}
)


@dataclass(frozen=True)
class Matrix:
    """A matrix in a text; ``cells[row][column]`` is a word, by labels.

    ``rest[row]``: the texts before the label and after the words. ``rows[row]``: the line's number.
    ``columns``: the additional columns (cpu, numa, gpu). ``before``: whether these are before the
    labels. ``end``: the 0-based line after the matrix. ``beyond``: labels of rows without a column,
    because the text was cut on the right.
    """

    line: int
    labels: tuple[str, ...]
    columns: tuple[str, ...]
    cells: Mapping[str, Mapping[str, str]]
    rest: Mapping[str, tuple[str, str]]
    rows: Mapping[str, int]
    before: bool
    end: int
    beyond: tuple[str, ...] = ()


def find(source: str, lines: list[str], words: str) -> list[Matrix]:
    """Find every matrix of ``words``: LEVELS (PIX, NV4 …) or STATUSES; others are skipped.

    Rows that were wrapped by a terminal or fused by a document are repaired. Raises ProbeError,
    with the line, for a matrix that is incomplete or has another word, and if there is no matrix.
    """
    lines = [plain(line) for line in lines]
    try:
        return _find_matrices(source, lines, words)
    except ProbeError as error:
        for attempt in readings(lines):
            with suppress(ProbeError):
                return _find_matrices(source, attempt, words)
        raise error from None


def _find_matrices(source: str, lines: list[str], words: str) -> list[Matrix]:
    cells, at = [], 0
    while at < len(lines):
        header = _header(lines, at, words)
        if header is None:
            at += 1
            continue
        matrix = _read(source, lines, at, *header, words)
        cells.append(matrix)
        at = matrix.end
    if not cells:
        raise ProbeError(source, "no matrix: expected a line with GPU0 GPU1 … and a row for each")
    return cells


def check_symmetric(source: str, matrix: Matrix) -> None:
    """Raise ProbeError, with the line, if a pair has different words in its two directions."""
    for a, row in matrix.cells.items():
        for b, word in row.items():
            back = matrix.cells.get(b, {}).get(a, word)
            if back != word:
                reason = (
                    f"{a} to {b} is {word}, but {b} to {a} is {back}: the text was edited or cut"
                )
                raise ProbeError(source, reason, matrix.rows[a])


def _header(lines: list[str], at: int, words: str) -> tuple[tuple[str, ...], str] | None:
    """The labels, and the line with marked affinity columns, if the next line is the first row."""
    line = _SPACED.sub(r"\1\2", lines[at])
    line = _FRAGMENT.sub("", _COLUMNS.sub(lambda match: f" \0{match.lastgroup} ", line))
    first = _FIRST.search(line)
    if first is None:
        return None
    labels = re.split(r"[\s|,;]+", line[first.start() :].split("\0")[0].strip(" \t|,;"))
    following = next((n for n in range(at + 1, len(lines)) if not _rule(lines[n])), None)
    if following is None or not all(_LABEL.fullmatch(label) for label in labels):
        return None
    if _row(lines[following], labels[0], words) is None:
        return None
    either = _row(lines[following], labels[0], f"{LEVELS}|{STATUSES}")
    foreign = either and any(not re.fullmatch(words, word) for word in either[1])
    return None if foreign else (tuple(labels), line)


def plain(line: str) -> str:
    """The line without what a document adds to it: emphasis, tags, lines of drawn tables."""
    return _TAG.sub(" ", line).translate(_DRAWN)


def _rule(line: str) -> bool:
    """True if a line has only blanks and a table's rules."""
    return not line.strip(" \t|-:+=")


def _row(line: str, label: str, words: str) -> tuple[str, list[str], str] | None:
    """The text before the label, the words after it, and the rest; None for any other line."""
    line = _SPACED.sub(r"\1\2", line)
    cell = re.compile(rf"[\s|,;]+((?:{words})+)(?=[\s|,;]|$)")
    for start in re.finditer(rf"(?<![\w.-]){re.escape(label)}(?![\w.:-])", line):
        cells, at = [], start.end()
        while match := cell.match(line, at):
            # Pasted text may fuse words (NODENODE); they split in one way only; cells are counted.
            cells += re.findall(words, match[1])
            at = match.end()
        if cells:
            return line[: start.start()], cells, line[at:]
    return None


def _read(
    source: str, lines: list[str], at: int, labels: tuple[str, ...], header: str, words: str
) -> Matrix:
    if len(set(labels)) < len(labels):
        twice = next(label for label in labels if labels.count(label) > 1)
        raise ProbeError(source, f"the header names {twice} twice", at + 1)
    if labels[-1] in ("G", "GP", "GPU", "N", "NI", "NIC", "D", "DD"):
        reason = f"the header ends in {labels[-1]!r}: the text is cut on the right"
        raise ProbeError(source, reason, at + 1)
    if len(labels) > MAX_DEVICES:
        raise ProbeError(source, f"{len(labels)} devices; at most {MAX_DEVICES} are read", at + 1)
    cells: dict[str, dict[str, str]] = {}
    rest: dict[str, tuple[str, str]] = {}
    rows: dict[str, int] = {}
    end = at + 1
    while end < len(lines) and len(cells) < len(labels):
        if not _rule(lines[end]):
            label = labels[len(cells)]
            row = _row(lines[end], label, words)
            if row is None:
                break
            cells[label] = _checked(source, end + 1, label, labels, row[1], row[2])
            rest[label], rows[label] = (row[0], row[2]), end + 1
        end += 1
    missing = labels[len(cells) :]
    if any(_FIRST.fullmatch(label) for label in missing):
        place = min(end, len(lines) - 1) + 1
        raise ProbeError(
            source, f"expected the row of {missing[0]}; the matrix is cut short", place
        )
    marks = re.findall("\0(cpu|numa|gpu)", header)
    before = bool(marks) and header.index("\0") < header.index(labels[0])
    beyond = _beyond(source, lines, end, words)
    if missing and (strange := [label for label in beyond if label not in labels]):
        reason = f"the row of {strange[0]}, where the header has {missing[0]}: a name is cut"
        raise ProbeError(source, reason, end + 1)
    return Matrix(at + 1, labels, tuple(marks), cells, rest, rows, before, end, beyond)


def _beyond(source: str, lines: list[str], end: int, words: str) -> tuple[str, ...]:
    """Labels of rows after the last column's. Raises ProbeError if one is a GPU's."""
    further: list[str] = []
    for number in range(end, len(lines)):
        if _rule(lines[number]):
            continue
        label = next((m[1] for m in _DEVICE.finditer(lines[number])), "")
        if not label or _row(lines[number], label, words) is None:
            break
        if label.startswith("GPU"):
            reason = f"the row of {label}, but no column: the text is cut on the right"
            raise ProbeError(source, reason, number + 1)
        further.append(label)
    return tuple(further)


def _checked(
    source: str, line: int, label: str, labels: tuple[str, ...], words: list[str], after: str
) -> dict[str, str]:
    if len(words) != len(labels):
        rest = after.strip(" \t|,;").split()
        foreign = rest[0][:40] if rest else "the end of the line"
        reason = f"row {label} has {len(words)} of {len(labels)} cells, then {foreign!r}"
        raise ProbeError(source, reason, line)
    row = dict(zip(labels, words, strict=True))
    crossed = next(
        (other for other, word in row.items() if (word == "X") != (other == label)), None
    )
    if crossed is not None:
        reason = f"row {label} has {row[crossed]!r} for {crossed}; X stands for the device itself"
        raise ProbeError(source, reason, line)
    return row
