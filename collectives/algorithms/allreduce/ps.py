"""Hub-and-spoke parameter server: all send to the root, which adds and sends the result to all."""

import numpy as np

from collectives.schedule.moves import moves
from collectives.schedule.passes import reverse, then
from collectives.schedule.schedule import Schedule, Step


def ps(n: int, root: int = 0) -> Schedule:
    """2 steps; the server receives n−1 vectors and sends n−1 vectors, every worker one each way."""
    workers = np.delete(np.arange(n), root)

    step = Step.fixed(moves(workers, root, 0, reduce=True))
    push = Schedule(n, 1, (step,) if n > 1 else ())
    return then(push, reverse(push))
