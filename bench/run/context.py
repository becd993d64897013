"""The world, the transports and the control socket of a run on one rank."""

from __future__ import annotations

from typing import NamedTuple

from bench.launch.control_socket import ControlSocket
from collectives.execution.transport import Transport
from collectives.execution.world import World


class RunContext(NamedTuple):
    """The world and transports of a run on one rank.

    ``transport`` as asked for; ``baseline``: the one whose library it is compared with, perhaps the
    same; ``library``: that one's name and version. ``line``: to whoever started this rank.
    """

    world: World
    transport: Transport
    baseline: Transport
    library: str
    line: ControlSocket
