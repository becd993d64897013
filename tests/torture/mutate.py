"""Damage to bytes, as disks, editors, terminals, people and attackers cause it."""

from __future__ import annotations

import gzip
import json
import random
import re
import zlib
from collections.abc import Callable, Sequence
from typing import Any

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
_NUMBER = re.compile(rb"[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")
_WORD = re.compile(rb"[A-Za-z_][\w.:-]*|[<>{}\[\]\"',:=|#/]|\s+")
VALUES: tuple[Any, ...] = (
    None, True, 0, -1, 2**63, 10**400, 1e308, float("nan"), float("inf"), "", "x", "\x1b[2J",
    "=1", "1", [], {}, [[]],
    [None], [1, "x"], {"a": 1}, "A" * 3000, [1] * 3000, [[1.0], [1.0, 2.0]], "9" * 5000, "\ud800",
    -0.5,
)  # fmt: skip


def mutated(data: bytes, others: Sequence[bytes], rng: random.Random) -> bytes:
    """Return the bytes with one to four kinds of damage. Parts are taken from ``others``."""
    for _ in range(rng.choice((1, 1, 1, 2, 3, 4))):
        data = rng.choice(_WAYS)(data, others, rng)
    if data[:2] != b"\x1f\x8b" and rng.random() < 0.02:
        data = gzip.compress(data)
    if rng.random() < 0.01:
        data = data.decode("utf-8", "replace").encode("utf-16")
    return data[: 4 << 20]


def _spot(data: bytes, rng: random.Random, most: int = 200) -> tuple[int, int]:
    start = rng.randint(0, len(data))
    return start, min(len(data), start + int(rng.expovariate(8 / most)))


def _flipped(data: bytes, others: Sequence[bytes], rng: random.Random) -> bytes:
    found = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 8, 64)) if found else 0):
        found[rng.randrange(len(found))] ^= 1 << rng.randrange(8)
    return bytes(found)


def _cut(data: bytes, others: Sequence[bytes], rng: random.Random) -> bytes:
    at = rng.randint(0, len(data))
    return data[:at] if rng.random() < 0.7 else data[at:]


def _dropped(data: bytes, others: Sequence[bytes], rng: random.Random) -> bytes:
    start, end = _spot(data, rng)
    return data[:start] + data[end:]


def _doubled(data: bytes, others: Sequence[bytes], rng: random.Random) -> bytes:
    start, end = _spot(data, rng)
    return data[:end] + data[start:end] * rng.choice((1, 1, 2, 40)) + data[end:]


def _moved(data: bytes, others: Sequence[bytes], rng: random.Random) -> bytes:
    start, end = _spot(data, rng)
    rest, at = data[:start] + data[end:], rng.randint(0, len(data) - (end - start))
    return rest[:at] + data[start:end] + rest[at:]


def _spliced(data: bytes, others: Sequence[bytes], rng: random.Random) -> bytes:
    other = rng.choice(others)
    (a, b), (c, d) = _spot(data, rng, 2000), _spot(other, rng, 2000)
    return data[:a] + other[c:d] + data[b if rng.random() < 0.5 else a :]


def _lines(data: bytes, others: Sequence[bytes], rng: random.Random) -> bytes:
    lines = data.split(b"\n")
    at, to = rng.randrange(len(lines)), rng.randrange(len(lines))
    way = rng.randrange(4)
    if way == 0:
        del lines[at]
    elif way == 1:
        lines.insert(to, lines[at])
    elif way == 2:
        lines[at], lines[to] = lines[to], lines[at]
    else:
        lines[at : at + 2] = [b" ".join(lines[at : at + 2])]
    return b"\n".join(lines)


def _token(pattern: re.Pattern[bytes], choices: Sequence[bytes]) -> Callable[..., bytes]:
    def changed(data: bytes, others: Sequence[bytes], rng: random.Random) -> bytes:
        found = [match.span() for match in pattern.finditer(data[: 1 << 20])]
        for start, end in sorted(
            rng.sample(found, min(len(found), rng.choice((1, 1, 2, 5)))), reverse=True
        ):
            data = data[:start] + rng.choice(choices) + data[end:]
        return data

    return changed


def _json(data: bytes, others: Sequence[bytes], rng: random.Random) -> bytes:
    """Put a strange value somewhere into a JSON document, or into a line of JSON lines."""
    whole = rng.random() < 0.5
    lines = [data] if whole else data.split(b"\n")
    at = rng.randrange(len(lines))
    try:
        document = json.loads(lines[at])
    except (ValueError, RecursionError):
        return data
    here: Any = document
    while isinstance(here, (dict, list)) and here:
        key = rng.choice(list(here) if isinstance(here, dict) else range(len(here)))
        if not isinstance(here[key], (dict, list)) or not here[key] or rng.random() < 0.25:
            way = rng.random()
            if way < 0.75:
                here[key] = rng.choice(VALUES)
            elif isinstance(here, dict) and way < 0.9:
                del here[key]
            elif isinstance(here, list):
                here.insert(rng.randint(0, len(here)), rng.choice([*VALUES, here[key]]))
            break
        here = here[key]
    lines[at] = json.dumps(document).encode("utf-8", "surrogatepass")
    return b"\n".join(lines)


def _packed(data: bytes, others: Sequence[bytes], rng: random.Random) -> bytes:
    """Damage the content of a gzip file and pack it again, sometimes with zeros appended."""
    if data[:2] != b"\x1f\x8b":
        return _flipped(data, others, rng)
    try:
        inside = gzip.decompress(data)
    except (OSError, EOFError, ValueError, zlib.error):
        return data
    if rng.random() < 0.1:
        return gzip.compress(inside + bytes(rng.choice((1 << 20, 300 << 20))))
    return gzip.compress(mutated(inside, others, rng))


_WAYS = (
    _flipped, _cut, _dropped, _doubled, _moved, _spliced, _lines, _json, _json, _packed,
    _token(_NUMBER, NUMBERS), _token(_NUMBER, NUMBERS), _token(_WORD, WORDS), _token(_WORD, WORDS),
)  # fmt: skip
