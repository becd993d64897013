"""Send-receive round a ring: every rank ends with the vector of the rank before it."""

from collectives.schedule.spec import Collective

SPEC = Collective(
    name="sendrecv",
    title="every rank sends its vector to the next rank and receives the one before's",
    parts=lambda n: n,
    inputs=lambda n, rank, root: (rank,),
    outputs=lambda n, rank, root: ((rank - 1) % n,),
    # A rank's whole vector leaves through its port once, while another one enters.
    bus_factor=lambda n: 1.0,
    in_place=False,
)
