"""Measured rates between GPUs for a pick: the slower direction, similar rates made equal."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from topology.measured.matrix import matrix
from topology.model.topology import Topology

#: Rates within this share of the greatest of them count as equal, so that noise does not rank sets.
ALIKE = 0.1


def measured(topology: Topology, ids: Sequence[str]) -> dict[tuple[int, int], float]:
    """Bytes/s of measured pairs by positions (lower, higher); alike rates are their median."""
    at = {id: n for n, id in enumerate(ids)}
    found: dict[tuple[int, int], float] = {}
    for (a, b), cell in matrix(topology, "bandwidth").items():
        if a in at and b in at and a != b and cell.value > 0:
            pair = (min(at[a], at[b]), max(at[a], at[b]))
            found[pair] = min(cell.value, found.get(pair, cell.value))
    ordered = sorted(found, key=lambda pair: -found[pair])
    alike: list[list[tuple[int, int]]] = []
    for pair in ordered:
        if alike and found[pair] >= (1 - ALIKE) * found[alike[-1][0]]:
            alike[-1].append(pair)
        else:
            alike.append([pair])
    typical = [median(found[pair] for pair in group) for group in alike]
    return {pair: rate for group, rate in zip(alike, typical, strict=True) for pair in group}
