"""Whether other programs ran while rows were measured, and may have moved their times. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

from busbar.counters import MUCH, OTHERS, SHORTEST_S
from reports.records.measurement import Measurement, grouped
from reports.records.table import KEYS


def is_disturbed(row: Measurement, share: float = OTHERS) -> bool:
    """True if other programs used this share of the cores while the row was measured."""
    return (row.others_share or 0.0) >= share


def tells_others(row: Measurement) -> bool:
    """False for a row that was too short to tell what other programs used (`gathered`)."""
    seconds = sum(row.times_s)
    if row.timing == "loop" and row.times_s:  # times are means over parts of the iterations
        seconds *= max(1.0, (row.iterations or 0) / len(row.times_s))
    return row.others_share is not None or seconds >= SHORTEST_S


def moved_by_others(rows: Sequence[Measurement], unknown: bool) -> bool:
    """True if other programs may have moved all iterations of one of these rows of single launches.

    That is if a row was much disturbed (`MUCH`), or if ``unknown`` (`mostly_disturbed`) where it
    may have been disturbed at all. Iterations of one launch do not show it.
    """
    doubt = any(is_disturbed(r, OTHERS if unknown else MUCH) for r in rows)
    return doubt or (unknown and not all(map(tells_others, rows)))


def mostly_disturbed(rows: Sequence[Measurement]) -> bool:
    """True if more than half of the rows that tell were much disturbed in their only launch.

    Intervals over several launches cover what other programs did; of training steps there is none.
    """
    timed = [r for r in rows if r.time_s is not None]
    telling = sum(map(tells_others, timed))
    if 2 * sum(is_disturbed(r, MUCH) for r in timed if tells_others(r)) <= telling:
        return False
    alone = _of_one_launch(timed)  # also of rows in other launches that are too short to tell
    return 2 * sum(is_disturbed(r, MUCH) for r in alone if tells_others(r)) > telling


def _of_one_launch(rows: Sequence[Measurement]) -> list[Measurement]:
    """The rows whose setting a single launch measured, and those of training steps."""
    return [
        row
        for same in grouped(rows, attrgetter(*KEYS)).values()
        for row in same
        if row.step is not None or not (row.launches_s or len({id(r.run) for r in same}) > 1)
    ]
