"""Every rank sends its whole vector to every other rank, and every rank adds all vectors."""

from collectives.algorithms.pairs import everyone
from collectives.schedule.moves import moves
from collectives.schedule.schedule import Schedule, Step


def one_shot(n: int) -> Schedule:
    """1 step, in which every rank sends its vector to all others; n−1 vectors each way."""
    step = Step(lambda: moves(*everyone(n), 0, reduce=True))
    return Schedule(n, 1, (step,) if n > 1 else ())
