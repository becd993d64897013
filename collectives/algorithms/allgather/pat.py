"""PAT, parallel aggregated trees (Jeaugey 2025, arXiv:2506.20252; in NCCL since 2.23).

Each rank's part is broadcast down a binomial tree. The trees of all ranks are the same tree,
shifted by the rank. The farthest ranks come first, as in Bruck's all-gather with its distances in
reverse order, so that only single parts travel far. ``aggregate`` limits the number of parts per
step. Further parts travel one tree edge per step, depth first, so that few parts are under way at
any time. The parts of a step are packed into one message.
"""

from collections.abc import Iterator

import numpy as np

from busbar.errors import Unsupported
from collectives.schedule.moves import Moves, moves
from collectives.schedule.schedule import Schedule, Step


def _edges(offset: int, span: int) -> Iterator[tuple[int, int]]:
    """The edges (place, distance) of a binomial tree over ``span`` places, depth first."""
    while span > 1:
        span //= 2
        yield offset, span
        yield from _edges(offset + span, span)


def _rounds(n: int, aggregate: int) -> Iterator[tuple[int, range]]:
    """For each step the distance of its messages, and how far their parts have come before."""
    whole = 1 << (n - 1).bit_length()
    narrow = whole // min(aggregate, whole)
    distance = whole // 2
    while distance >= narrow:
        yield distance, range(0, n - distance, 2 * distance)
        distance //= 2
    for place, hop in _edges(0, narrow):
        yield hop, range(place, n - hop, narrow)


def pat(n: int, aggregate: int | None = None) -> Schedule:
    """⌈lg n⌉ steps, (n−1)/n of the vector each way, if everything may be aggregated (the default).

    With ``aggregate`` = a, a power of two, lg a + ⌈n/a⌉ − 1 steps or so. Raises Unsupported for any
    other ``aggregate``.
    """
    if aggregate is None:
        aggregate = 1 << (n - 1).bit_length()
    if aggregate < 1 or aggregate & (aggregate - 1):
        raise Unsupported(f"pat: aggregate={aggregate}; it must be a power of two")

    def step(distance: int, come: range) -> Step:
        offset = np.array(come)

        def make() -> Moves:
            src = np.repeat(np.arange(n), len(offset))
            part = src - np.tile(offset, n)
            return moves(src, (src + distance) % n, part % n)

        return Step(make)

    steps = [step(distance, come) for distance, come in _rounds(n, aggregate) if come]
    return Schedule(n, n, tuple(steps), packed=True)
