"""The relation of two devices, in the terms of ``nvidia-smi topo -m``."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


class Level(IntEnum):
    """The nearest common PCIe ancestor of two devices; a smaller level is nearer.

    PIX at most one PCIe bridge, PXB several, PHB a host bridge, NODE several host bridges of one
    NUMA node, SYS the link between NUMA nodes. LOC is a device and itself.
    """

    LOC = 0
    PIX = 10
    PXB = 20
    PHB = 30
    NODE = 40
    SYS = 50


#: Other names of the same levels: SOC is SYS before driver 390, and PSB is DCGM's name for two GPUs
#: of one board, which nvidia-smi prints as PIX.
LEVEL_WORDS = {
    "X": Level.LOC,
    "LOC": Level.LOC,
    "PSB": Level.PIX,
    "PIX": Level.PIX,
    "PXB": Level.PXB,
    "PHB": Level.PHB,
    "NODE": Level.NODE,
    "SYS": Level.SYS,
    "SOC": Level.SYS,
}


@dataclass(frozen=True)
class Relation:
    """What is known of one pair: the PCIe ancestor and, independently, the NVLinks.

    ``nvidia-smi`` prints NV# instead of the ancestor, so a pair may have ``nvlinks`` and no
    ``level``. ``sources``: the sources of these values; ``derived`` means computed from the tree.
    """

    level: Level | None = None
    nvlinks: int = 0
    sources: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The cell of the matrix: ``X``, ``NV4``, ``PIX`` …, or ``?`` if unknown."""
        if self.level is Level.LOC:
            return "X"
        if self.nvlinks:
            return f"NV{self.nvlinks}"
        return "?" if self.level is None else self.level.name
