"""Bruck's all-gather (Bruck et al. 1997): the parts of a rank double in every step, for any n.

The original stores a rank's own part first and rotates all parts at the end. Here each part is
written to its final place, so a run of parts that passes the vector's end takes two moves.
"""

import numpy as np

from collectives.schedule.moves import Moves, moves
from collectives.schedule.schedule import Schedule, Step


def bruck(n: int) -> Schedule:
    """⌈lg n⌉ steps; (n−1)/n of the vector each way."""

    def step(have: int) -> Step:
        count = min(have, n - have)

        def make() -> Moves:
            src = np.arange(n)
            # Rank r has the parts r … r+have−1 and sends the first of them to rank r−have.
            before_end = np.minimum(count, n - src)
            head = moves(src, (src - have) % n, src, count=before_end)
            over = src[before_end < count]
            tail = moves(over, (over - have) % n, 0, count=count - (n - over))
            return Moves.concat([head, tail])

        return Step(make)

    steps = [step(1 << bit) for bit in range((n - 1).bit_length())]
    return Schedule(n, n, tuple(steps))
