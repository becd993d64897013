"""Direct all-to-all: every rank sends every other rank its part, at once."""

from collectives.algorithms.pairs import everyone
from collectives.schedule.moves import Moves, moves
from collectives.schedule.schedule import Schedule, Step


def direct(n: int) -> Schedule:
    """1 step; (n−1)/n of a rank's parts each way."""

    def make() -> Moves:
        src, dst = everyone(n)
        return moves(src, dst, src * n + dst)

    return Schedule(n, n * n, (Step(make),) if n > 1 else ())
