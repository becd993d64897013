"""Barrier: no rank leaves before every rank has come; only tokens travel."""

from collectives.schedule.spec import Collective, Unit

SPEC = Collective(
    name="barrier",
    title="no rank goes on before every rank has arrived",
    # A rank has one token, which says that it has come, and wants to have been told, directly or
    # not, by every rank. Being told twice does no harm, so tokens are joined by max.
    parts=lambda n: 1,
    inputs=lambda n, rank, root: (0,),
    outputs=lambda n, rank, root: (0,),
    # Nothing is moved, so there is no bandwidth: time is all there is to tell.
    bus_factor=lambda n: 0.0,
    unit=Unit.NOTHING,
    reduces=True,
    idempotent=True,
    in_place=False,
)
