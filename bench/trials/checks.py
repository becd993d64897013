"""The counts of the self-check: verdicts on equal and slowed sides, and coverage. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from busbar.statistics import interval
from reports.analysis.compare import compare, join
from reports.records.rows import Row

#: A window of a row's iterations, and of how many windows the median is that its interval is to
#: hold.
WINDOW, WINDOWS = 100, 10


@dataclass(frozen=True)
class CheckLine:
    """A figure of the check. ``kept``: whether it is as it should be; None: it is only told."""

    name: str
    found: str
    target: str = ""
    kept: bool | None = None

    def __str__(self) -> str:
        """One line."""
        if self.kept is None:
            return f"{self.name}: {self.found}"
        return f"{self.name}: {self.found} ({self.target}): {'kept' if self.kept else 'NOT KEPT'}"


def words(a: Sequence[Sequence[Row]], b: Sequence[Sequence[Row]]) -> Counter[str]:
    """How often compare says what of launches of A and of B, each row by itself.

    Without the correction for the number of rows, which would make false alarms rarer still.
    """
    joined = join([r for rows in a for r in rows], [r for rows in b for r in rows])[0]
    return Counter(compare([one])[0].word for one in joined)


def equal_sides(found: Counter[str], launches: int) -> CheckLine:
    """The result for equal sides."""
    total = sum(found.values())
    if launches == 1:
        told = sum(found[word] for word in ("faster", "slower", "indistinguishable"))
        text = f"{found['cannot tell']} of {total} pairs cannot tell"
        return CheckLine("A/A, one launch a side", text, "no verdict", not told and total > 0)
    share = found["indistinguishable"] / total if total else 0.0
    text = f"{100 * share:.1f} % of {total} pairs indistinguishable"
    return CheckLine(f"A/A, {launches} launches a side", text, "95 % at least", share >= 0.95)


def slowed_side(found: Counter[str], share: float, launches: int) -> CheckLine:
    """Of one side slowed by a share: 95 % are to be found at 5 % and above, none called faster."""
    total = sum(found.values())
    slower = found["slower"] / total if total else 0.0
    text = f"{100 * slower:.1f} % of {total} pairs slower, {found['faster']} faster"
    name = f"slowed by {100 * share:g} %, {launches} launches a side"
    if share < 0.05:
        return CheckLine(name, text, "never faster", not found["faster"] and total > 0)
    return CheckLine(
        name, text, "95 % slower, never faster", slower >= 0.95 and not found["faster"]
    )


def coverage(rows: Iterable[Row]) -> tuple[int, int]:
    """How many windows of iterations have an interval that holds the median of ten times as many.

    Gives (hits, windows). The window is one of the ten.
    """
    hits = total = 0
    for row in rows:
        series = np.asarray(row.times_s)
        for start in range(0, len(series) - WINDOW * WINDOWS + 1, WINDOW * WINDOWS):
            block = series[start : start + WINDOW * WINDOWS]
            middle = float(np.median(block))
            for window in block.reshape(WINDOWS, WINDOW):
                low, high = interval(window) or (np.inf, -np.inf)
                hits += bool(low <= middle <= high)
                total += 1
    return hits, total


def covered(hits: int, total: int) -> CheckLine:
    """The share over all windows."""
    share = hits / total if total else 0.0
    text = f"{100 * share:.1f} % of {total} intervals hold the median of {WINDOWS} times as many"
    return CheckLine("coverage", text, "93 to 97 %", 0.93 <= share <= 0.97)
