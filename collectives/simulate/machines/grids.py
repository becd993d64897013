"""Machines without switches: rings, tori, full meshes, DGX-1."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import prod

import numpy as np

from busbar.errors import Unsupported
from collectives.simulate.machines.circles import Circle, Circles
from collectives.simulate.machines.machine import GB, MOST_PLACES, Links, Machine, Router, cables
from collectives.simulate.machines.routes import NO_LINK, Ids, Numbers

_MOST_FULL = 2048


def torus(grid: Sequence[int], gbs: float = 25.0, latency_us: float = 0.5) -> Machine:
    """A torus of any number of dimensions; rank r stands at x = r mod X, y = r div X mod Y, ….

    ``gbs``: of one link one way. Routing goes dimension by dimension, x first, the shorter way
    round, upwards where both are as long. A side of 1 has no links, a side of 2 two cables.
    """
    sides = tuple(grid)
    n = prod(sides)
    if not sides or min(sides) < 1 or n > MOST_PLACES:
        raise Unsupported(f"torus: a grid has sides of at least 1 and at most {MOST_PLACES} places")
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

    # Upwards, the circles of a dimension follow one another; a cable goes by the place of its lower
    # end in its circle. Its route back has the same number and half as many as there are on top.
    half = len(real) * n
    tails = [np.empty(0, np.int64)]
    for d in real:
        circle, x = np.divmod(r, sides[d])
        tails.append(circle % unit[d] + (circle // unit[d] * sides[d] + x) * unit[d])
    heads = [tails[0], *(along(at, d, 1) for at, d in zip(tails[1:], real, strict=True))]
    links = cables(np.concatenate(tails), np.concatenate(heads), rate, latency)

    def router(src: Numbers, dst: Numbers) -> Circles:
        found = []
        at = src
        for i, d in enumerate(real):
            side = sides[d]
            here = at // unit[d] % side
            apart = (dst // unit[d] - here) % side
            down = apart > side // 2
            circle = at % unit[d] + at // (unit[d] * side) * unit[d]
            zero = i * n + circle * side + np.where(down, half, 0)
            columns = here - down, np.where(down, apart - side, apart), zero
            found.append(Circle(side, *(of.astype(np.int32) for of in columns)))
            at = along(at, d, apart)
        return Circles(tuple(found), np.arange(2 * half, dtype=np.int32), 2 * half, len(src))

    return links, router


def ring(n: int, gbs: float = 25.0, latency_us: float = 0.5) -> Machine:
    """A ring of n ranks: a torus of one dimension, the shorter way round."""
    if not 1 <= n <= MOST_PLACES:
        raise Unsupported(f"ring: n={n}; a ring has 1 to {MOST_PLACES} places")
    return Machine(f"ring {n}", n, n, *_torus((n,), gbs * GB, latency_us * 1e-6))


def full(n: int, gbs: float = 25.0, latency_us: float = 0.5) -> Machine:
    """A cable between every two ranks, which is the route between them."""
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
        route: Ids = number[src * n + dst][:, None]
        return route

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

    def route(src: int, dst: int) -> list[int]:
        if (src, dst) in number:
            return [number[src, dst]]
        up, down = [src, 8 + src // 2, 12 + src // 4], [dst, 8 + dst // 2, 12 + dst // 4]
        while up[-2:] == down[-2:]:
            up, down = up[:-1], down[:-1]
        nodes = up + down[::-1] if up[-1] != down[-1] else up + down[-2::-1]
        return [number[pair] for pair in pairwise(nodes)]

    table = np.full((8, 8, 5), NO_LINK, np.int32)
    for src, dst in ((s, d) for s in range(8) for d in range(8) if s != d):
        path = route(src, dst)
        table[src, dst, : len(path)] = path

    def router(src: Numbers, dst: Numbers) -> Ids:
        return table[src, dst]

    names = (*(f"GPU{i}" for i in range(8)), *(f"PCIe{i}" for i in range(4)), "CPU0", "CPU1")
    return Machine("dgx1", 8, 14, links, router, names=names)
