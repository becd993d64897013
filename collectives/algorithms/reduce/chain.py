"""Chain reduce, pipelined: the chain broadcast, reversed."""

from collectives.algorithms.broadcast.chain import chain as broadcast_chain
from collectives.schedule.passes import reverse
from collectives.schedule.schedule import Schedule


def chain(
    n: int,
    root: int = 0,
    segments: int | None = None,
    nbytes: float | None = None,
    alpha: float | None = None,
    beta: float | None = None,
) -> Schedule:
    """n−2+segments steps; every rank but the root sends one vector, all but the last receive one.

    Parameters and errors as in the chain broadcast.
    """
    return reverse(broadcast_chain(n, root, segments, nbytes, alpha, beta), reduce=True)
