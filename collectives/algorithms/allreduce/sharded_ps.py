"""Sharded parameter server: every rank serves one shard (all-pairs, two-shot; BytePS, Downpour)."""

from collectives.algorithms.allgather.direct import direct as allgather_direct
from collectives.algorithms.reduce_scatter.direct import direct as reduce_scatter_direct
from collectives.schedule.passes import then
from collectives.schedule.schedule import Schedule


def sharded_ps(n: int) -> Schedule:
    """2 steps; 2(n−1)/n of the vector each way, to and from everyone."""
    return then(reduce_scatter_direct(n), allgather_direct(n))
