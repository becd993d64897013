"""Scatter: the root has a vector, rank r wants its r-th part."""

from collectives.schedule.spec import Collective, Unit

SPEC = Collective(
    name="scatter",
    title="rank r ends with the r-th part of the root's vector",
    parts=lambda n: n,
    inputs=lambda n, rank, root: range(n) if rank == root else (),
    outputs=lambda n, rank, root: (rank,),
    # The root must send the n-1 parts of n that others want, through its own port.
    bus_factor=lambda n: (n - 1) / n,
    unit=Unit.RANKS,
    rooted=True,
)
