"""Schedules that time messages of one size between disjoint pairs, for `measure --sweep`."""

from __future__ import annotations

from collections.abc import Sequence

from collectives.schedule.moves import Buffer, Move, Slot
from collectives.schedule.schedule import Schedule
from collectives.schedule.spec import Collective
from topology.measured.sweep import BURST

__all__ = ["STILL", "messages", "swaps"]

#: Swaps of data that stays as it is: one a firing, as firings repeat them anyway.
STILL = ("still", "sum")


def messages(quantity: str) -> int:
    """Messages each way that a swap of this quantity has."""
    return BURST if quantity == "burst" else 1


def swaps(
    quantity: str, pairs: Sequence[tuple[int, int]], nranks: int, times: int
) -> tuple[Schedule, Collective]:
    """The placed schedule where disjoint pairs swap messages ``times`` in a row, its collective.

    Each swap sends on what has just arrived, so that none can begin before the one before has
    ended; ``times`` is even, or 1. A rank has ``messages(quantity)`` parts and ends with its own
    and its partner's in turn, which keeps the messages of a burst apart. With ``add`` what arrives
    is added instead, to sums that are of no interest.
    """
    n, adds, still = messages(quantity), quantity in ("add", "sum"), quantity in STILL
    peers = {x: y for a, b in pairs for x, y in ((a, b), (b, a))}
    steps = [
        [
            Move(
                rank,
                peer,
                Slot(Buffer.OUT, 2 * i + number % 2)
                if number and not still
                else Slot(Buffer.IN, i),
                Slot(Buffer.OUT, 2 * i + (number + 1) % 2),
                adds,
            )
            for rank, peer in peers.items()
            for i in range(n)
        ]
        for number in range(times)
    ]

    def outputs(nranks: int, rank: int, root: int) -> list[int]:
        both = (rank, peers[rank]) if rank in peers else ()
        return [of * n + i for i in range(n) for of in both]

    spec = Collective(
        name=f"pairs_{quantity}",
        title="disjoint pairs of ranks swap vectors",
        parts=lambda nranks: nranks * n,
        inputs=lambda nranks, rank, root: range(rank * n, (rank + 1) * n),
        outputs=outputs,
        bus_factor=lambda nranks: 1.0,
        reduces=adds,
        in_place=False,
    )
    return Schedule.of(nranks, nranks * n, steps), spec
