"""Barrier: no rank continues before all ranks have arrived; only tokens are sent."""

from collectives.schedule.spec import Collective, Unit

SPEC = Collective(
    name="barrier",
    title="no rank goes on before every rank has arrived",
    # A rank has one token, which says that it has arrived, and needs every rank's token, directly
    # or through others. To receive a token twice does no harm, so tokens are reduced by max.
    parts=lambda n: 1,
    inputs=lambda n, rank, root: (0,),
    outputs=lambda n, rank, root: (0,),
    # No data is moved, so there is no bandwidth, only a time.
    bus_factor=lambda n: 0.0,
    unit=Unit.NOTHING,
    reduces=True,
    idempotent=True,
    in_place=False,
)
