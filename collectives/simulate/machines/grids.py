"""Machines whose ranks are wired to each other: rings, tori, fully connected ones, DGX-1."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import prod

import numpy as np

from collectives.errors import Unsupported
from collectives.simulate.machines.machine import (
    NO_LINK,
    Ids,
    Links,
    Machine,
    Numbers,
    Router,
    cables,
    held,
)

__all__ = ["dgx1", "full", "ring", "torus"]

GB = 1e9
_MOST = 1 << 20
_MOST_FULL = 2048
_BLOCK = 1 << 14


def torus(grid: Sequence[int], gbs: float = 25.0, latency_us: float = 0.5) -> Machine:
    """A torus of any number of dimensions; rank r stands at x = r mod X, y = r div X mod Y, ….

    ``gbs``: of one link one way. Routing goes dimension by dimension, x first, the shorter way
    round, upwards where both are as long. A side of 1 has no links, a side of 2 two cables.
    """
    sides = tuple(grid)
    n = prod(sides)
    if not sides or min(sides) < 1 or n > _MOST:
        raise Unsupported(f"torus: a grid has sides of at least 1 and at most {_MOST} places")
    name = f"torus {'x'.join(map(str, sides))}"
    return Machine(name, n, n, *_torus(sides, gbs * GB, latency_us * 1e-6), grid=sides)


def _torus(sides: tuple[int, ...], rate: float, latency: float) -> tuple[Links, Router]:
    n = prod(sides)
    r = np.arange(n)
    real = [d for d, side in enumerate(sides) if side > 1]
    unit = {d: prod(sides[:d]) for d in real}

    def along(at: Numbers, d: int, by: Numbers | int) -> Numbers:
        here = at // unit[d] % sides[d]
        return at + ((here + by) % sides[d] - here) * unit[d]

    # Link (d, r) goes up from rank r in dimension d; its way back is that of rank r downwards.
    up = [along(r, d, 1) for d in real]
    tails = np.concatenate([np.tile(r, len(real)), *up]) if real else r[:0]
    heads = np.concatenate([*up, np.tile(r, len(real))]) if real else r[:0]
    links = Links(
        tails.astype(np.int32),
        heads.astype(np.int32),
        np.full(len(tails), rate),
        np.full(len(tails), latency),
    )

    def router(src: Numbers, dst: Numbers) -> Ids:
        ways = []
        at = src
        for i, d in enumerate(real):
            side = sides[d]
            here = at // unit[d] % side
            apart = (dst // unit[d] - here) % side
            down = apart > side // 2
            hops = np.where(down, side - apart, apart)
            held(len(src), int(hops.max(initial=0)))
            zero = i * n + at - here * unit[d] + np.where(down, len(real) * n, 0)
            # A cable goes by the number of its lower end.
            first, way = here - down, np.where(down, -1, 1)
            ways.append(_straight(first, way, hops, side, zero, unit[d]))
            at = along(at, d, apart)
        return np.concatenate(ways, axis=1) if ways else np.empty((len(src), 0), np.int32)

    return links, router


def _straight(
    first: Numbers, way: Numbers, hops: Numbers, side: int, zero: Numbers, unit: int
) -> Ids:
    """Links ``zero + unit·x`` over the places x that are passed from ``first`` on, round ``side``."""
    longest = int(hops.max(initial=0))
    found = np.full((len(first), longest), NO_LINK, np.int32)
    step = np.arange(longest, dtype=np.int32)
    columns = [of.astype(np.int32)[:, None] for of in (first, way, hops, zero)]
    for at in range(0, len(first), _BLOCK):
        start, sign, left, base = (column[at : at + _BLOCK] for column in columns)
        x = start + sign * step
        x += np.where(x < 0, side, 0).astype(np.int32)
        x -= np.where(x >= side, side, 0).astype(np.int32)
        np.copyto(found[at : at + _BLOCK], x * unit + base, where=step < left)
    return found


def ring(n: int, gbs: float = 25.0, latency_us: float = 0.5) -> Machine:
    """A ring of n ranks: a torus of one dimension, the shorter way round."""
    if not 1 <= n <= _MOST:
        raise Unsupported(f"ring: n={n}; a ring has 1 to {_MOST} places")
    return Machine(f"ring {n}", n, n, *_torus((n,), gbs * GB, latency_us * 1e-6))


def full(n: int, gbs: float = 25.0, latency_us: float = 0.5) -> Machine:
    """A cable between every two ranks, which is the way between them."""
    if not 1 <= n <= _MOST_FULL:
        raise Unsupported(f"full: n={n}; from 1 to {_MOST_FULL} places are fully connected")
    a, b = np.divmod(np.arange(n * n), n)
    links = Links(
        a.astype(np.int32),
        b.astype(np.int32),
        np.full(n * n, gbs * GB),
        np.full(n * n, latency_us * 1e-6),
    )
    apart = a != b
    number: Ids = np.where(apart, np.cumsum(apart) - 1, NO_LINK).astype(np.int32)
    links = Links(*(column[apart] for column in vars(links).values()))

    def router(src: Numbers, dst: Numbers) -> Ids:
        way: Ids = number[src * n + dst][:, None]
        return way

    return Machine(f"full {n}", n, n, links, router)


# NVLinks of a DGX-1 with V100s between GPUs a < b (NVIDIA's DGX-1 white paper; nvidia-smi topo -m).
_NVLINKS = {
    (0, 1): 1, (0, 2): 1, (0, 3): 2, (0, 4): 2, (1, 2): 2, (1, 3): 1, (1, 5): 2, (2, 3): 2,
    (2, 6): 1, (3, 7): 1, (4, 5): 1, (4, 6): 1, (4, 7): 2, (5, 6): 2, (5, 7): 1, (6, 7): 2,
}  # fmt: skip
# Two GPUs share a PCIe switch (nodes 8 to 11), two switches a socket (12 and 13).
_PCIE = [(0, 8), (1, 8), (2, 9), (3, 9), (4, 10), (5, 10), (6, 11), (7, 11)]
_UP = [(8, 12), (9, 12), (10, 13), (11, 13)]


def dgx1(
    gbs: float = 20.0, pcie_gbs: float = 12.0, cpu_gbs: float = 10.0, latency_us: float = 0.5
) -> Machine:
    """DGX-1 with V100s: a hybrid cube mesh of NVLinks, PCIe for pairs without one.

    ``gbs``: of one NVLink one way (NCCL plans 20, of PCIe 12, between sockets 10). A pair with
    NVLinks takes them, others go up the PCIe tree to where it joins.
    """
    lines = [*_NVLINKS, *_PCIE, *_UP, (12, 13)]
    rates = [count * gbs for count in _NVLINKS.values()]
    rates += [pcie_gbs] * (len(_PCIE) + len(_UP)) + [cpu_gbs]
    a, b = np.array(lines).T
    links = cables(a, b, np.array(rates) * GB, latency_us * 1e-6)
    number = {
        (int(t), int(h)): i for i, (t, h) in enumerate(zip(links.tail, links.head, strict=True))
    }

    def way(src: int, dst: int) -> list[int]:
        if (src, dst) in number:
            return [number[src, dst]]
        up, down = [src, 8 + src // 2, 12 + src // 4], [dst, 8 + dst // 2, 12 + dst // 4]
        while up[-2:] == down[-2:]:
            up, down = up[:-1], down[:-1]
        nodes = up + down[::-1] if up[-1] != down[-1] else up + down[-2::-1]
        return [number[pair] for pair in pairwise(nodes)]

    table = np.full((8, 8, 5), NO_LINK, np.int32)
    for src, dst in ((s, d) for s in range(8) for d in range(8) if s != d):
        path = way(src, dst)
        table[src, dst, : len(path)] = path

    def router(src: Numbers, dst: Numbers) -> Ids:
        return table[src, dst]

    names = (*(f"GPU{i}" for i in range(8)), *(f"PCIe{i}" for i in range(4)), "CPU0", "CPU1")
    return Machine("dgx1", 8, 14, links, router, names=names)
