"""Verdicts on rows of two sides, round by round: B compared with A, or undecided. Pure; no I/O."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import exp, log
from operator import attrgetter

import numpy as np

from busbar.errors import ReportError
from busbar.tables import render_lines
from busbar.units import format_seconds, format_size
from reports.analysis.compare import samples
from reports.records.measurement import Measurement, grouped, level_of
from reports.statistics.inference import launch_center, within_run
from reports.statistics.sequential import always_interval

#: Fields that identify a row on both sides. A field with one value on A and another one on B is
#: what is compared.
_FIELDS = (
    "collective", "algorithm", "transport", "ranks", "size", "dtype", "op", "root", "placement",
    "timing", "across",
)  # fmt: skip
_LEVEL = 0.05
UNDECIDED = "undecided"
Key = tuple[object, ...]


@dataclass
class Pair:
    """A row with its times in seconds, one of A and one of B per round."""

    row: Measurement
    a: list[float] = field(default_factory=list)
    b: list[float] = field(default_factory=list)
    #: The logarithm of B's time divided by A's, one per round.
    logs: list[float] = field(default_factory=list)

    def interval(self, of: int) -> tuple[float, float] | None:
        """The interval of B's time over A's, valid at every round, for one of ``of`` rows."""
        interval = always_interval(self.logs, _LEVEL / of)
        return None if interval is None else (exp(interval[0]), exp(interval[1]))

    @property
    def ratio(self) -> float:
        """B's time divided by A's."""
        return exp(float(np.mean(self.logs)))

    def word(self, of: int, noise: float) -> str:
        """The verdict on B: slower, faster, indistinguishable (within the noise), or undecided."""
        interval = self.interval(of)
        if interval is None:
            return UNDECIDED
        low, high = interval
        if low > 1 and self.ratio > 1 + noise:
            return "slower"
        if high < 1 and self.ratio < 1 / (1 + noise):
            return "faster"
        return "indistinguishable" if 1 / (1 + noise) < low and high < 1 + noise else UNDECIDED


class PairedRows:
    """All rows that both sides measure, round by round."""

    def __init__(self, noise: float) -> None:
        self._noise = noise
        self.pairs: dict[Key, Pair] = {}
        self._dropped: tuple[str, ...] | None = None
        #: What is compared, as ``algorithm ring against tree``; empty if all fields are equal.
        self.against = ""

    def add(self, a: Sequence[Measurement], b: Sequence[Measurement]) -> None:
        """Add a round's rows. Raises ReportError if the sides have no row in common."""
        if self._dropped is None:
            self._dropped = self._compared(a, b)
        sides = [self._measured(rows) for rows in (a, b)]
        shared = [key for key in sides[0] if key in sides[1]]
        if not shared:
            raise ReportError("no row of A measured what a row of B did; nothing to compare")
        for key in shared:
            left, right = sides[0][key], sides[1][key]
            pair = self.pairs.setdefault(key, Pair(left[0]))
            times = [launch_center(samples(rows)) for rows in (left, right)]
            pair.a.append(times[0])
            pair.b.append(times[1])
            # In one launch the sides took turns; two separate launches are compared as wholes.
            together = left[0].run is right[0].run
            visits = ([r.times_s for r in rows] for rows in (left, right))
            pair.logs.append(within_run(*visits) if together else log(times[1] / times[0]))

    def _compared(self, a: Sequence[Measurement], b: Sequence[Measurement]) -> tuple[str, ...]:
        notes = {}
        for name in _FIELDS:
            values = [{attrgetter(name)(row) for row in rows} for rows in (a, b)]
            if values[0] != values[1] and len(values[0]) == len(values[1]) == 1:
                notes[name] = [str(one.pop()) for one in values]
        dropped = tuple(notes)
        levels = [", ".join(sorted({level_of(r) for r in rows} - {""})) for rows in (a, b)]
        if all(levels) and levels[0] != levels[1]:
            notes["MPI thread level"] = levels
        self.against = ", ".join(f"{name} {x} against {y}" for name, (x, y) in notes.items())
        return dropped

    def _measured(self, rows: Sequence[Measurement]) -> dict[Key, list[Measurement]]:
        """The rows that have a time, by their identifying fields."""
        getters = [attrgetter(name) for name in _FIELDS if name not in (self._dropped or ())]
        return grouped((r for r in rows if r.time_s), lambda r: tuple(get(r) for get in getters))

    @property
    def words(self) -> list[str]:
        """The verdict of each row."""
        return [p.word(len(self.pairs), self._noise) for p in self.pairs.values()]

    @property
    def decided(self) -> bool:
        """True if every row is decided."""
        return bool(self.pairs) and UNDECIDED not in self.words

    def lines(self) -> Iterator[str]:
        """The lines of the table: one per row, and the meaning of its columns."""
        if self.against:
            yield f"compared: {self.against}"
        head = ("size", "algorithm", "A", "B", "B to A", "95 %", "rounds", "B is")
        rows = sorted(zip(self.pairs.values(), self.words, strict=True), key=_place)
        columns = zip(head, *(self._cells(pair, word) for pair, word in rows), strict=True)
        words = ("algorithm", "B is")
        yield from render_lines(
            (name, "left" if name in words else "right", texts) for name, *texts in columns
        )

    def _cells(self, pair: Pair, word: str) -> tuple[str, ...]:
        row, bounds = pair.row, pair.interval(len(self.pairs))
        shown = row.algorithm if "algorithm" not in (self._dropped or ()) else ""
        place = " in" if row.placement == "in" else ""
        return (
            format_size(row.nbytes),
            f"{shown}{place}".strip(),
            format_seconds(launch_center([[t] for t in pair.a])),
            format_seconds(launch_center([[t] for t in pair.b])),
            _change(pair.ratio) + "%",
            "" if bounds is None else " ".join(map(_change, bounds)),
            str(len(pair.a)),
            word,
        )


def _place(one: tuple[Pair, str]) -> tuple[object, ...]:
    """The sort key of a pair: algorithm, then size."""
    row = one[0].row
    return row.collective, row.algorithm, row.transport, row.placement, row.size or 0


def _change(ratio: float) -> str:
    change = 100 * (ratio - 1)
    return f"{change:+.1f}" if abs(change) < 1000 else f"{change:+.0e}"
