"""Send-receive in pairs: ranks 0 and 1, 2 and 3, … exchange their vectors."""

from collectives.schedule.spec import Collective

SPEC = Collective(
    name="sendrecv_pairs",
    title="ranks 0 and 1, 2 and 3, ... exchange vectors; an odd one out keeps its own",
    parts=lambda n: n,
    inputs=lambda n, rank, root: (rank,),
    outputs=lambda n, rank, root: (rank ^ 1 if rank ^ 1 < n else rank,),
    # A rank's whole vector leaves through its port once, while another one enters.
    bus_factor=lambda n: 1.0,
    in_place=False,
)
