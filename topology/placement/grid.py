"""Grids and groups of chosen GPUs, for torus and hierarchical algorithms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from topology.model.topology import Kind
from topology.placement.load import DirectedLinks, Flow, ring_flows
from topology.placement.routes import GpuRoutes

Rows = tuple[tuple[int, ...], ...]
#: Above so many members a grid is drafted from one stretch of the ring for each shape.
MANY = 128


@dataclass(frozen=True)
class Grid:
    """Rows of ids, all of one length; ``row_rate`` and ``column_rate`` are bytes per second a ring.

    ``busbw`` is that of an all-reduce: reduce-scatter in all rows at once, all-reduce of the shares
    in all columns, all-gather in the rows; one ring each.
    """

    rows: tuple[tuple[str, ...], ...]
    row_rate: float
    column_rate: float
    busbw: float


def best_grid(routes: GpuRoutes, links: DirectedLinks, order: Sequence[int]) -> Grid | None:
    """Return the fastest r x c grid, r and c at least 2, out of a ring order; None if k has none.

    Rows are stretches of the ring; each further row is turned and mirrored so that its columns
    fit the row above. All stretches and shapes are tried, k**2 drafts at most, but of orders of
    more than ``MANY`` only the first stretch of each shape.
    """
    k, found = len(order), []
    ranks = np.array([[routes.rank[a][b] for b in order] for a in order])
    for across in range(2, k // 2 + 1):
        if k % across:
            continue
        for shift in range(across if k <= MANY else 1):
            turned = [*range(shift, k), *range(shift)]
            drafts = _aligned(ranks, [turned[at : at + across] for at in range(0, k, across)])
            rows = tuple(tuple(order[at] for at in row) for row in drafts)
            row_rate, column_rate = _rates(links, rows)
            if row_rate and column_rate:
                busbw = _busbw(k, across, row_rate, column_rate)
                found.append((-busbw, -across, rows, row_rate, column_rate))
    if not found:
        return None
    busbw, _, rows, row_rate, column_rate = min(found)
    ids = tuple(tuple(routes.ids[at] for at in row) for row in rows)
    return Grid(ids, row_rate, column_rate, -busbw)


def _aligned(ranks: npt.NDArray[np.int64], rows: list[list[int]]) -> Rows:
    """Turn and mirror each row to fit the one above: fewest hops of the worst class, and so on."""
    done = [tuple(rows[0])]
    size = len(rows[0])
    turns = (np.arange(size)[:, None] + np.arange(size)) % size
    turns = np.concatenate([turns, turns[:, ::-1]])
    for row in rows[1:]:
        choices = np.array(row)[turns]
        hops = np.sort(ranks[np.array(done[-1]), choices], axis=1)
        # By the worst hop, then the second worst, …; among equals by the members themselves.
        keys = (*choices.T[::-1], *hops.T)
        done.append(tuple(choices[np.lexsort(keys)[0]].tolist()))
    return tuple(done)


def _rates(links: DirectedLinks, rows: Rows) -> tuple[float, float]:
    across: list[Flow] = [flow for row in rows for flow in ring_flows(row)]
    down: list[Flow] = [flow for column in zip(*rows, strict=True) for flow in ring_flows(column)]
    row_rate, column_rate = links.rates([across, down])
    return float(row_rate), float(column_rate)


def _busbw(k: int, across: int, row_rate: float, column_rate: float) -> float:
    """Bus bandwidth of the two-dimensional all-reduce per byte of the vector; latency left out."""
    down = k // across
    seconds = 2 * (across - 1) / across / row_rate
    seconds += 2 * (down - 1) / down / across / column_rate
    return 2 * (k - 1) / k / seconds


def groups(routes: GpuRoutes, order: Sequence[int]) -> tuple[tuple[str, ...], ...]:
    """Split an order by host, else by NUMA node, else by root complex or switch.

    A level that leaves everyone alone groups nothing and is passed over; one group if none splits.
    """
    topology = routes.topology.graph.topology
    for kind in (Kind.HOST, Kind.NUMA, Kind.ROOT, Kind.BRIDGE):
        split: dict[str, list[str]] = {}
        for at in order:
            above = topology.ancestor(routes.ids[at], kind)
            split.setdefault(above.id if above else "", []).append(routes.ids[at])
        if 1 < len(split) < len(order):
            return tuple(map(tuple, split.values()))
    return (tuple(routes.ids[at] for at in order),)
