"""Every rank sends its whole vector to every other, and each adds for itself."""

from collectives.algorithms.pairs import everyone
from collectives.moves import Moves, moves
from collectives.schedule import Schedule, Step


def one_shot(n: int) -> Schedule:
    """1 step; n−1 vectors each way: the least latency, the most bytes."""

    def make(rank: int | None) -> Moves:
        return moves(*everyone(n, rank), 0, reduce=True)

    return Schedule(n, 1, (Step(make),) if n > 1 else ())
