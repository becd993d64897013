"""Broadcast: the root has a vector, every rank wants it."""

from collectives.schedule.spec import Collective

SPEC = Collective(
    name="broadcast",
    title="every rank ends with the root's vector",
    parts=lambda n: 1,
    inputs=lambda n, rank, root: (0,) if rank == root else (),
    outputs=lambda n, rank, root: (0,),
    # The whole vector must leave the root's port once, and n ranks cannot share that.
    bus_factor=lambda n: 1.0,
    rooted=True,
)
