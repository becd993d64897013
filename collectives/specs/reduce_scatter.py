"""Reduce-scatter: every rank has a vector, and rank r ends with the r-th part of the reduction."""

from collectives.schedule.spec import Collective, Unit

SPEC = Collective(
    name="reduce_scatter",
    title="rank r ends with the r-th part of the reduction of all ranks' vectors",
    parts=lambda n: n,
    inputs=lambda n, rank, root: range(n),
    outputs=lambda n, rank, root: (rank,),
    # n-1 transfers per element, shared by n ranks.
    bus_factor=lambda n: (n - 1) / n,
    unit=Unit.RANKS,
    reduces=True,
)
