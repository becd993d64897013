"""Bounds that no algorithm can beat with one port a rank, for comparison with a schedule's cost.

From Chan, Heimlich, Purkayastha, van de Geijn: Collective communication: theory, practice, and
experience (2007), for ranks with one port that sends and receives at once. Volumes and additions
are in units of the collective's own total N; None if that paper gives no bound.
"""

from __future__ import annotations

from typing import NamedTuple


class OnePortBound(NamedTuple):
    """Fewest rounds, least volume out of and into the busiest rank, least additions by one rank."""

    rounds: int
    out: float | None
    into: float | None
    reduced: float | None


def bound(collective: str, nranks: int) -> OnePortBound | None:
    """The one-port bounds of a collective, or None if the paper has none for it.

    The paper bounds the time of the busiest port. A direction that may need less (what the leaves
    of a broadcast send) is None.
    """
    rounds, others = (nranks - 1).bit_length(), (nranks - 1) / nranks
    whole = 0.0 if nranks == 1 else 1.0
    table = {
        "broadcast": OnePortBound(rounds, whole, whole, None),
        "reduce": OnePortBound(rounds, whole, whole, others),
        "gather": OnePortBound(rounds, None, others, None),
        "scatter": OnePortBound(rounds, others, None, None),
        "allgather": OnePortBound(rounds, others, others, None),
        "reduce_scatter": OnePortBound(rounds, others, others, others),
        "allreduce": OnePortBound(rounds, 2 * others, 2 * others, others),
    }
    return table.get(collective)
