"""All-gather: rank r has the r-th part of a vector, and every rank ends with the whole vector."""

from collectives.schedule.spec import Collective, Unit

SPEC = Collective(
    name="allgather",
    title="every rank ends with all ranks' parts, in rank order",
    parts=lambda n: n,
    inputs=lambda n, rank, root: (rank,),
    outputs=lambda n, rank, root: range(n),
    # Every rank must receive the n-1 parts of n that it lacks.
    bus_factor=lambda n: (n - 1) / n,
    unit=Unit.RANKS,
)
