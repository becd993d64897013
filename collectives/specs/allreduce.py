"""All-reduce: every rank has a whole vector, every rank wants the reduction of all of them."""

from collectives.schedule.spec import Collective

SPEC = Collective(
    name="allreduce",
    title="every rank ends with the reduction of all ranks' vectors",
    parts=lambda n: 1,
    inputs=lambda n, rank, root: (0,),
    outputs=lambda n, rank, root: (0,),
    # Each rank must send what it has and receive what it lacks of every element's reduction:
    # 2(n-1) transfers per element shared by n ranks (nccl-tests, doc/PERFORMANCE.md).
    bus_factor=lambda n: 2 * (n - 1) / n,
    reduces=True,
)
