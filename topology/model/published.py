"""NVIDIA's published link rates of its GPUs, by the drivers' model names.

PCIe is the card's own: a slot may give less. NVLinks are those of boards that are soldered to
their neighbours (SXM); a card that takes an optional bridge has none to miss.

Sources, all NVIDIA's: the architecture white papers of Pascal (WP-08019-001), Volta (WP-08608-001),
Ampere A100 (2020) and Hopper H100 (2022); the data sheets of A800, H800, H20, H200 and B200; the
product briefs of T4, A10, A30, A40, L4, L40 and L40S; the specification pages of GeForce 10 to 50
and of RTX A and RTX PRO cards.
"""

from __future__ import annotations

import re
from typing import NamedTuple


class Published(NamedTuple):
    """``nvlinks`` that a board always has; the PCIe generation and lanes of the card."""

    pcie_gen: int
    pcie_width: int = 16
    nvlinks: int = 0


#: The first pattern that is found in the name counts.
_MODELS: tuple[tuple[str, Published], ...] = (
    (r"\bP100-SXM2", Published(3, nvlinks=4)),
    (r"\bV100-SXM[23]", Published(3, nvlinks=6)),
    (r"\bA100-SXM", Published(4, nvlinks=12)),
    (r"\bA800-SXM", Published(4, nvlinks=8)),
    (r"\bH100 (80|64|96)GB HBM[23]", Published(5, nvlinks=18)),
    (r"\bH100 SXM", Published(5, nvlinks=18)),
    (r"\bH800( SXM5?)?$", Published(5, nvlinks=8)),
    (r"\bH20(-3e)?$", Published(5, nvlinks=18)),
    (r"\bH200$", Published(5, nvlinks=18)),
    (r"\bG?B[23]00\b", Published(5, nvlinks=18)),
    (r"\b(GH200|H100|H200|H800)\b", Published(5)),
    (r"\b(A100|A800|A30|A40|A10G?|A16|L4|L40S?|L20)\b", Published(4)),
    (r"\bA2\b", Published(4, 8)),
    (r"\bRTX PRO \d{4}", Published(5)),
    (r"\bRTX (A\d{4}|\d{4} Ada)", Published(4)),
    (r"\b(RTX 5060|RTX 5050)\b", Published(5, 8)),
    (r"\bRTX 50\d0", Published(5)),
    (r"\b(RTX 4060|RTX 3050)\b", Published(4, 8)),
    (r"\bRTX [34]0\d0", Published(4)),
    (r"\b(RTX|GTX) (20|16|10)\d0", Published(3)),
    (r"\b(T4|V100|P100|P40|P4|M60|M40|K80|TITAN)\b", Published(3)),
)


def published(model: object) -> Published | None:
    """The row of a model, or None for one that the table does not have."""
    name = str(model or "")
    return next((row for pattern, row in _MODELS if re.search(pattern, name)), None)
