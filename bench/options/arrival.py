"""``--arrival``: the delay with which each rank enters a collective."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from busbar.errors import MissingFile, Unsupported
from busbar.files import read_text

# Longest delay in seconds. Ranks spin during a delay.
_LONGEST_S = 10.0
_MOST_BYTES = 1 << 24
_NUMBER = r"([0-9]{1,8}(?:\.[0-9]{1,6})?)"
#: Seed of ``random``, with the iteration's number: delays are the same for every algorithm.
SEED = 20180911


@dataclass(frozen=True)
class ArrivalPattern:
    """The delay with which each rank enters each iteration (``--arrival``).

    ``seconds``: the longest delay; None until the fastest algorithm's time is known. ``rank``: the
    delayed rank of kind ``late``; negative numbers count from the last rank. ``table``: delays from
    a file in seconds, a line for each iteration, by rank; lines are used in turn.
    """

    kind: str = "zero"
    seconds: float | None = 0.0
    rank: int = 0
    table: tuple[tuple[float, ...], ...] = ()
    path: str = ""

    def __str__(self) -> str:
        """The pattern as written on the command line."""
        if self.kind == "file":
            return self.path
        who = f":{self.rank}" if self.kind == "late" else ""
        long = "" if self.kind == "zero" or self.seconds is None else f":{self.seconds * 1e6:.6g}"
        return f"{self.kind}{who}{long}"

    @property
    def pattern(self) -> str:
        """The pattern's name without its delay: the same at every size."""
        return str(replace(self, seconds=None))

    def on(self, nranks: int, seconds: float | None = None) -> ArrivalPattern:
        """The pattern on ``nranks`` ranks; ``seconds``: its longest delay if it has none yet.

        Raises Unsupported if the pattern does not fit the number of ranks.
        """
        if self.kind == "late" and not -nranks <= self.rank < nranks:
            raise Unsupported(f"--arrival {self}: there are only ranks 0 to {nranks - 1}")
        if self.table and len(self.table[0]) != nranks:
            raise Unsupported(
                f"--arrival {self}: lines of {len(self.table[0])} delays for {nranks} ranks"
            )
        return replace(
            self,
            rank=self.rank % nranks if self.kind == "late" else 0,
            seconds=seconds if self.seconds is None else self.seconds,
        )

    def delays(self, nranks: int, n: int, before: int) -> NDArray[np.float64]:
        """Delays in seconds for n iterations from ``before`` on; the same on all ranks."""
        delays = np.zeros((n, nranks))
        long = self.seconds or 0.0
        if self.kind == "ramp":
            delays[:] = long * np.arange(nranks) / max(1, nranks - 1)
        elif self.kind == "late":
            delays[:, self.rank] = long
        elif self.kind == "random":
            for row, iteration in zip(delays, range(before, before + n), strict=True):
                row[:] = np.random.default_rng([SEED, iteration]).uniform(0, long, nranks)
        elif self.kind == "file":
            delays[:] = np.array(self.table)[np.arange(before, before + n) % len(self.table)]
        return delays


ZERO = ArrivalPattern()
_ALL = (
    ArrivalPattern("ramp", None),
    ArrivalPattern("late", None, 0),
    ArrivalPattern("late", None, -1),
    ArrivalPattern("random", None),
)


def _late(text: str) -> float:
    seconds = float(text) * 1e-6
    if seconds > _LONGEST_S:
        raise argparse.ArgumentTypeError(f"{text} us; at most {_LONGEST_S:g} s")
    return seconds


def arrivals(text: str) -> tuple[ArrivalPattern, ...]:
    """Patterns from ``zero``, ``ramp:US``, ``late:RANK:US``, ``random:US``, a file, ``all[:US]``.

    For ``all`` without US, the longest delay is the fastest algorithm's time with no rank late.
    """
    if text == "zero":
        return (ZERO,)
    if text == "all":
        return (ZERO, *_ALL)
    if match := re.fullmatch(f"all:{_NUMBER}", text):
        return (ZERO, *(replace(one, seconds=_late(match[1])) for one in _ALL))
    if match := re.fullmatch(f"(ramp|random):{_NUMBER}", text):
        return (ArrivalPattern(match[1], _late(match[2])),)
    if match := re.fullmatch(f"late:([0-9]{{1,6}}):{_NUMBER}", text):
        return (ArrivalPattern("late", _late(match[2]), int(match[1])),)
    if re.match("(zero|ramp|late|random|all)(:|$)", text):
        raise argparse.ArgumentTypeError(
            f"{text[:40]!r}: write zero, ramp:US, late:RANK:US, random:US, all, or a file's name"
        )
    return (_from_file(Path(text)),)


def _from_file(path: Path) -> ArrivalPattern:
    """Delays from a file: a line for each iteration, microseconds by rank (commas or spaces)."""
    try:
        text = read_text(path, _MOST_BYTES)
    except Unsupported as error:
        text = f"{error}; or write zero, ramp:US, late:RANK:US, random:US, all"
        if isinstance(error, MissingFile):
            raise MissingFile(text, path) from None
        raise argparse.ArgumentTypeError(text) from None
    table = [_line(path, n, line) for n, line in enumerate(text.splitlines(), 1)]
    rows = tuple(line for line in table if line)
    if not rows or len({len(line) for line in rows}) > 1:
        raise argparse.ArgumentTypeError(f"{path}: every line must have one delay a rank")
    return ArrivalPattern("file", max(map(max, rows)), table=rows, path=str(path))


def _line(path: Path, number: int, line: str) -> tuple[float, ...]:
    words: Sequence[str] = line.partition("#")[0].replace(",", " ").split()
    try:
        delays = tuple(float(word) * 1e-6 for word in words)
    except ValueError:
        delays = (-1.0,)
    if not all(0 <= one <= _LONGEST_S for one in delays):
        raise argparse.ArgumentTypeError(
            f"{path}, line {number}: {line.strip()[:40]!r}: write microseconds from 0 to"
            f" {_LONGEST_S * 1e6:.0f}, one a rank"
        )
    return delays
