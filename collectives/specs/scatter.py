"""Scatter: the root has a vector, and rank r ends with its r-th part."""

from collectives.schedule.spec import Collective, Unit

SPEC = Collective(
    name="scatter",
    title="rank r ends with the r-th part of the root's vector",
    parts=lambda n: n,
    inputs=lambda n, rank, root: range(n) if rank == root else (),
    outputs=lambda n, rank, root: (rank,),
    # The root's port must send n-1 of the n parts to the other ranks.
    bus_factor=lambda n: (n - 1) / n,
    unit=Unit.RANKS,
    rooted=True,
)
