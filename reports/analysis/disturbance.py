"""Whether other programs ran while rows were measured, and may have moved their times. No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from math import inf
from operator import attrgetter

from busbar.counters import MUCH, OTHERS, SHORTEST_S
from busbar.errors import Unsupported
from busbar.host import emulated_port_rate
from reports.records.measurement import Measurement, grouped, listed
from reports.records.table import KEYS

#: The interval of a ratio of single launches that other programs may have changed without a limit.
UNKNOWN = (0.0, inf)
#: Seconds that messages wait for a core of their receivers beside other programs, at most in the
#: mean. Linux's time slice is 3 ms; beside other work they waited for 3.6 ms (docs/cluster.md).
LATE_S = 0.005


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


def widened(
    ends: tuple[float, float] | None,
    slower: Sequence[Measurement],
    faster: Sequence[Measurement],
    unknown: bool,
) -> tuple[float, float] | None:
    """The 95 % interval of a ratio of times, with what other programs can have done to it.

    ``ends``: the interval of the times as measured, None if not known. The rows ``slower`` may have
    taken `lengthening` times as long as without other programs, and so may ``faster``: the ends
    move by these factors. `UNKNOWN` if one of them has no limit. ``unknown``: see
    `moved_by_others`.
    """
    least, most = (lengthening(side, unknown) for side in (slower, faster))
    if inf in (least, most):
        return UNKNOWN
    return ends and (ends[0] / least, ends[1] * most)


def lengthening(rows: Sequence[Measurement], unknown: bool) -> float:
    """How many times as long as without other programs rows of one setting took, at most.

    1 if other programs moved none of them (`moved_by_others`). Programs that took a share s of all
    cores left 1 - s of them, with which all work takes 1 / (1 - s) times as long, and each message
    may have waited `LATE_S` for a core. No row takes less than `_port_s` without them. Infinite if
    these waits may be the whole time, or if the messages of an iteration were not counted, as those
    of a collective, and the ports have no known rate.
    """
    return max(map(_lengthening, rows)) if moved_by_others(rows, unknown) else 1.0


def _lengthening(row: Measurement) -> float:
    if not row.time_s:
        return inf
    least, messages = _port_s(row), None if row.step is None else row.step.messages
    if messages is not None and tells_others(row):
        least = max(least, row.time_s * (1 - (row.others_share or 0.0)) - messages * LATE_S)
    return max(1.0, row.time_s / least) if least > 0 else inf


def _port_s(row: Measurement) -> float:
    """Seconds that an iteration's bytes take through a port in one direction, at the port's rate.

    Of the rank that sent or received most; 0 if ranks have no ports of a known rate, or if bytes
    were not counted. Unlike `Step.port_s` it holds where the two directions overlap.
    """
    rate = _port_rate(row)
    return max(row.sent_bytes or 0, row.received_bytes or 0) / rate if rate else 0.0


def _port_rate(row: Measurement) -> float | None:
    """Bytes/s of each rank's port, each way; None if ranks have no port of a known rate."""
    if row.step is not None and row.step.port_rate:
        return row.step.port_rate
    environment = row.run.environment
    variables = environment.get("variables")
    if set(listed(environment.get("ranks_per_node"))) != {1} or not isinstance(variables, Mapping):
        return None  # ranks of one host share its port
    with suppress(Unsupported):
        return emulated_port_rate({name: str(value) for name, value in variables.items()})
    return None


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
