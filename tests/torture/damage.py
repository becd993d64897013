"""Damage to bytes as strategies: what disks, editors, terminals, people and attackers cause."""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

NUMBERS = (
    b"0", b"-1", b"-0", b"1", b"2", b"7", b"4294967296", b"9223372036854775807",
    b"9223372036854775808",
    b"1" + b"0" * 22, b"9" * 400, b"9" * 5000, b"1e308", b"1e309", b"-1e308", b"1e-400",
    b"1e99999999",
    b"NaN", b"Infinity", b"-Infinity", b"nan", b"inf", b"0x7fffffff", b"14.9.9966", b"1.2.3",
    b"..", b"1_000",
    "²".encode(), "१२".encode(), "٣".encode(), b"1e", b"+", b"--5", b"1,5", b"", b"true", b"null",
    b"1*", b"N/A",
)  # fmt: skip
WORDS = (
    b"\x1b[2J\x1b]0;title\x07", b"\x9b31m", b"\r", b"\n", b"\r\n", b"\x00", b"\x7f", b"\xff",
    b"\xed\xa0\x80",
    "\u2028".encode(), "\u202e".encode(), "\ufeff".encode(), b"=1+1", b"@SUM(A1)", b"+1", b"-1",
    b"|", b"\t",
    b'"', b"'", b"<", b">", b"&", b"&lt;", b"]]>", b"<!--", b"{", b"}", b"[", b"]", b"[]", b"{}",
    b"{{", b"%s", b"%n",
    b"\\", b"\\u0000", b"\\ud800", b"../../etc/passwd", b"A" * 5000, b"(" * 2000, b"[" * 5000,
    b" " * 20000,
    b"GPU0", b"X", b"NV18", b"SYS", b"null", b"# size", b"size", b"us", b"GB/s", b"float", b"sum",
    b"out", b"in", b"1M",
)  # fmt: skip
VALUES: tuple[Any, ...] = (
    None, True, 0, -1, 2**63, 10**400, 1e308, float("nan"), float("inf"), "", "x", "\x1b[2J",
    "=1", "1", [], {}, [[]],
    [None], [1, "x"], {"a": 1}, "A" * 3000, [1] * 3000, [[1.0], [1.0, 2.0]], "9" * 5000, "\ud800",
    -0.5,
)  # fmt: skip
_TOKENS = (
    (re.compile(rb"[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?"), NUMBERS),
    (re.compile(rb"[A-Za-z_][\w.:-]*|[<>{}\[\]\"',:=|#/]|\s+"), WORDS),
)
_KINDS = ("flip", "cut", "splice", "lines", "number", "number", "word", "word", "json", "json")
_LARGEST = 4 << 20


@st.composite
def damaged(draw: st.DrawFn, texts: Sequence[bytes]) -> bytes:
    """One of the texts with up to four kinds of damage; parts come from the other texts."""
    data = draw(st.sampled_from(texts))
    packed = data[:2] == b"\x1f\x8b" and draw(st.booleans())
    if packed:
        try:
            data = gzip.decompress(data)
        except (OSError, EOFError, ValueError, zlib.error):
            packed = False
    for kind in draw(st.lists(st.sampled_from(_KINDS), max_size=4)):
        data = _damage(draw, kind, data, texts)
    form = draw(st.integers(0, 50))
    if packed or form == 1:
        data = gzip.compress(data + bytes(300 << 20 if form == 2 else 0))
    elif form == 3:
        data = data.decode("utf-8", "replace").encode("utf-16")
    return data[:_LARGEST]


def _damage(draw: st.DrawFn, kind: str, data: bytes, texts: Sequence[bytes]) -> bytes:
    if kind in ("number", "word"):
        return _replace_tokens(draw, data, *_TOKENS[kind == "word"])
    if kind == "json":
        return _replace_json(draw, data)
    if kind == "lines":
        return _move_lines(draw, data)
    start, end = _span(draw, data, 200)
    if kind == "cut":
        return data[:end] if draw(st.booleans()) else data[start:]
    if kind == "flip":
        flips = bytes(byte ^ 1 << draw(st.integers(0, 7)) for byte in data[start:end][:8])
        return data[:start] + flips + data[start + len(flips) :]
    # A span of this text or of another stands in the place of a span, once, or twice, or 40 times.
    other = draw(st.sampled_from((data, *texts)))
    first, last = _span(draw, other, 2000)
    part = other[first:last] * draw(st.sampled_from((0, 1, 1, 2, 40)))
    return data[:start] + part + data[end if draw(st.booleans()) else start :]


def _span(draw: st.DrawFn, data: bytes, longest: int) -> tuple[int, int]:
    """First and last of a part of the bytes."""
    start = draw(st.integers(0, len(data)))
    return start, min(len(data), start + draw(st.integers(0, longest)))


def _move_lines(draw: st.DrawFn, data: bytes) -> bytes:
    """Remove a line, move it, repeat it, or join it with the next."""
    lines = data.split(b"\n")
    place = st.integers(0, len(lines) - 1)
    source, target = draw(place), draw(place)
    line, kind = lines[source], draw(st.integers(0, 3))
    if kind == 3:
        lines[source : source + 2] = [b" ".join(lines[source : source + 2])]
    else:
        if kind != 2:
            del lines[source]
        if kind:
            lines.insert(target, line)
    return b"\n".join(lines)


def _replace_tokens(
    draw: st.DrawFn, data: bytes, pattern: re.Pattern[bytes], choices: Sequence[bytes]
) -> bytes:
    """Put something else in the place of up to five numbers or words."""
    spans = [match.span() for match in pattern.finditer(data[: 1 << 20])]
    if not spans:
        return data
    chosen = draw(st.sets(st.integers(0, len(spans) - 1), min_size=1, max_size=5))
    for start, end in sorted((spans[index] for index in chosen), reverse=True):
        data = data[:start] + draw(st.sampled_from(choices)) + data[end:]
    return data


def _replace_json(draw: st.DrawFn, data: bytes) -> bytes:
    """Put a strange value somewhere into a JSON document, or into a line of JSON lines."""
    lines = [data] if draw(st.booleans()) else data.split(b"\n")
    index = draw(st.integers(0, len(lines) - 1))
    try:
        document = json.loads(lines[index])
    except (ValueError, RecursionError):
        return data
    parent: Any = document
    while isinstance(parent, (dict, list)) and parent:
        keys = list(parent) if isinstance(parent, dict) else range(len(parent))
        key = draw(st.sampled_from(keys))
        if isinstance(parent[key], (dict, list)) and parent[key] and draw(st.integers(0, 3)):
            parent = parent[key]
            continue
        if draw(st.integers(0, 3)):
            parent[key] = draw(st.sampled_from(VALUES))
        else:
            del parent[key]
        break
    lines[index] = json.dumps(document).encode("utf-8", "surrogatepass")
    return b"\n".join(lines)
