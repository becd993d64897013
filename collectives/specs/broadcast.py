"""Broadcast: the root has a vector, and every rank ends with it."""

from collectives.schedule.spec import Collective

SPEC = Collective(
    name="broadcast",
    title="every rank ends with the root's vector",
    parts=lambda n: 1,
    inputs=lambda n, rank, root: (0,) if rank == root else (),
    outputs=lambda n, rank, root: (0,),
    # The root's port must send the whole vector once, and other ranks cannot share that.
    bus_factor=lambda n: 1.0,
    rooted=True,
)
