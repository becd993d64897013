"""Bruck's all-to-all (Bruck et al. 1997): parts travel by the binary digits of their distance."""

import numpy as np

from collectives.schedule.moves import Moves, moves
from collectives.schedule.schedule import Schedule, Step


def bruck(n: int) -> Schedule:
    """⌈lg n⌉ steps, each moving about half of a rank's parts: n/2·lg n of them when n is 2^k.

    They travel packed into one message; scratch holds every part that passes through.
    """

    def step(hop: int) -> Step:
        far = np.arange(n)[np.arange(n) & hop != 0]

        def make() -> Moves:
            at, distance = np.repeat(np.arange(n), len(far)), np.tile(far, n)
            # A part that travels d places in all has moved by d's lower digits already.
            source = (at - distance % hop) % n
            return moves(at, (at + hop) % n, source * n + (source + distance) % n)

        return Step(make)

    steps = [step(1 << bit) for bit in range((n - 1).bit_length())]
    return Schedule(n, n * n, tuple(steps), packed=True)
