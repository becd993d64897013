"""Reduce: every rank has a vector, and the root ends with the reduction of all vectors."""

from collectives.schedule.spec import Collective

SPEC = Collective(
    name="reduce",
    title="the root ends with the reduction of all ranks' vectors",
    parts=lambda n: 1,
    inputs=lambda n, rank, root: (0,),
    outputs=lambda n, rank, root: (0,) if rank == root else (),
    # The root's port must receive a whole vector once, and other ranks cannot share that.
    bus_factor=lambda n: 1.0,
    reduces=True,
    rooted=True,
)
