"""Gather: rank r has the r-th part of a vector, and the root ends with the whole vector."""

from collectives.schedule.spec import Collective, Unit

SPEC = Collective(
    name="gather",
    title="the root ends with all ranks' parts, in rank order",
    parts=lambda n: n,
    inputs=lambda n, rank, root: (rank,),
    outputs=lambda n, rank, root: range(n) if rank == root else (),
    # The root must receive the n-1 parts of n that it lacks, through its own port.
    bus_factor=lambda n: (n - 1) / n,
    unit=Unit.RANKS,
    rooted=True,
)
