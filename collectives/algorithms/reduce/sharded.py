"""Direct reduce-scatter, then flat gather: every rank adds one shard for the root."""

from collectives.algorithms.gather.flat import flat
from collectives.algorithms.reduce_scatter.direct import direct
from collectives.schedule.passes import rotate, then
from collectives.schedule.schedule import Schedule


def sharded(n: int, root: int = 0) -> Schedule:
    """2 steps; every rank receives its shard from all and adds, the root receives the sums."""
    return rotate(then(direct(n), flat(n)), root)
