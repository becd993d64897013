"""All-reduce: every rank has a vector, and every rank ends with the reduction of all vectors."""

from collectives.schedule.spec import Collective

SPEC = Collective(
    name="allreduce",
    title="every rank ends with the reduction of all ranks' vectors",
    parts=lambda n: 1,
    inputs=lambda n, rank, root: (0,),
    outputs=lambda n, rank, root: (0,),
    # Each element takes 2(n-1) transfers, which the n ranks share: n-1 to add up the ranks' values,
    # and n-1 to distribute the sum (nccl-tests, doc/PERFORMANCE.md).
    bus_factor=lambda n: 2 * (n - 1) / n,
    reduces=True,
)
