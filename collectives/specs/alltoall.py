"""All-to-all: every rank has a part for every rank; part s·n + d goes from rank s to rank d."""

from collectives.schedule.spec import Collective, Unit

SPEC = Collective(
    name="alltoall",
    title="rank d ends with the part that every rank has for it, in rank order",
    parts=lambda n: n * n,
    inputs=lambda n, rank, root: range(rank * n, (rank + 1) * n),
    outputs=lambda n, rank, root: range(rank, n * n, n),
    # A rank must send n-1 of its n parts; the part for itself is not sent.
    bus_factor=lambda n: (n - 1) / n,
    unit=Unit.RANKS,
    in_place=False,
)
