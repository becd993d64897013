"""Ring all-reduce (Patarasuk, Yuan 2009): reduce-scatter round a ring, then all-gather round it."""

from collectives.algorithms.allgather.ring import ring as allgather_ring
from collectives.algorithms.reduce_scatter.ring import ring as reduce_scatter_ring
from collectives.schedule.passes import then
from collectives.schedule.schedule import Schedule


def ring(n: int) -> Schedule:
    """2(n−1) steps; every rank sends and receives 2(n−1)/n of the vector: bandwidth-optimal.

    The second half goes round the other way, since the all-gather is the reduce-scatter reversed:
    the moves that brought the parts of a chunk to one rank take their sum back. That costs the
    same, for one half follows the other, and a link has both directions.
    """
    return then(reduce_scatter_ring(n), allgather_ring(n))
