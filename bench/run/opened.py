"""What a run has open on one rank: the world, the transports and the line to its starter."""

from __future__ import annotations

from typing import NamedTuple

from bench.launch.line import Hotline
from collectives.execution.transport import Transport
from collectives.execution.world import World


class Opened(NamedTuple):
    """The world and transports of a run on one rank.

    ``transport`` as asked for; ``baseline``: the one whose library it is compared with, perhaps the
    same; ``library``: that one's name and version. ``line``: to whoever started this rank.
    """

    world: World
    transport: Transport
    baseline: Transport
    library: str
    line: Hotline
