"""Direct reduce-scatter: every rank sends every other rank the chunk that it reduces, at once."""

from collectives.algorithms.pairs import everyone
from collectives.schedule.moves import Moves, moves
from collectives.schedule.schedule import Schedule, Step


def direct(n: int) -> Schedule:
    """1 step, in which rank r sends chunk d to every rank d; (n−1)/n of the vector each way."""

    def make() -> Moves:
        src, dst = everyone(n)
        return moves(src, dst, dst, reduce=True)

    return Schedule(n, n, (Step(make),) if n > 1 else ())
