"""Reduce: every rank has a vector, the root wants the reduction of all of them."""

from collectives.schedule.spec import Collective

SPEC = Collective(
    name="reduce",
    title="the root ends with the reduction of all ranks' vectors",
    parts=lambda n: 1,
    inputs=lambda n, rank, root: (0,),
    outputs=lambda n, rank, root: (0,) if rank == root else (),
    # The whole vector must enter the root's port once, and n ranks cannot share that.
    bus_factor=lambda n: 1.0,
    reduces=True,
    rooted=True,
)
