"""Repairs of a pasted matrix that cannot be parsed: wrapped, joined, or fused lines."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise

_HEAD = re.compile(r"\s*GPU ?0\s+(?!X\b)[A-Za-z]")
_FIRST_ROW = re.compile(r"\s*GPU ?0\s+X\b")
#: A row of 1,024 devices has about a hundred lines of 80 characters.
_MOST = 128


_WORD = r"(?:NODE|SYS|SOC|PHB|PXB|PIX|PSB|NV[1-9][0-9]*|X)"
_LABEL = r"(?:GPU|NIC)[0-9]+"
#: Where a row or the legend begins in a text whose line ends became blanks.
_BEGINS = re.compile(rf" (?={_LABEL} {_WORD}(?: |$))| (?=Legend:|NIC Legend:)")
#: Where to split neighbouring words that a document's conversion fused.
_FUSED = re.compile(
    rf"(?<=[0-9])(?=N/A)|({_LABEL})(?=[A-Z])|({_WORD})(?={_WORD})"
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
    for n in range(first, len(lines)):
        words = lines[n].split()
        if not words or words[0].startswith("Legend"):
            break
        named = words[0] in labels and not re.fullmatch(r"X|N/A|NV\d+", words[0])
        if n == first or named or re.fullmatch(_LABEL, words[0]):
            parts.append([n])
        elif len(parts[-1]) < _MOST:
            parts[-1].append(n)
    return parts
