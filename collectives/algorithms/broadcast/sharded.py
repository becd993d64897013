"""Scatter, then direct all-gather: `scatter_allgather` in two steps, for shared memory."""

from collectives.algorithms.pairs import everyone
from collectives.algorithms.scatter.flat import flat
from collectives.schedule.moves import moves
from collectives.schedule.passes import rotate, then
from collectives.schedule.schedule import Schedule, Step


def sharded(n: int, root: int = 0, back: int = 1) -> Schedule:
    """2 steps; every rank serves one shard of the vector, which it has from the root, to all.

    ``back``: 1 if ranks send their shards to the root, too. Out of place they thus store the root's
    result for it. In place the root has the vector already, and 0 moves less.
    """
    src, dst = everyone(n)
    wanted = (dst != 0) | bool(back)
    src, dst = src[wanted], dst[wanted]
    serve = Step.fixed(moves(src, dst, src))
    return rotate(then(flat(n), Schedule(n, n, (serve,) if n > 1 else ())), root)
