"""Networks by name, like ``fattree:32x32:taper=2:gbs=50``: generators with parameters.

Routes on rings and tori are arcs of circles of links, given by their beginnings and lengths. So a
sum over all links of a route is the difference of two prefix sums, however long the route is.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from math import isfinite, prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from busbar.arguments import unknown
from busbar.errors import MissingFile, Unsupported
from collectives.predict.machine import (
    GB,
    MOST_PLACES,
    NO_LINK,
    Amounts,
    Hashes,
    Ids,
    Links,
    Machine,
    Network,
    Numbers,
    RankRoutes,
    Router,
    cables,
    close_gaps,
    join_hops,
    message_slices,
    table_router,
)
from collectives.predict.maps import LATENCY_US, network_from_file
from collectives.schedule.catalogue import check_parameter, parse

_MOST_HOPS = 1 << 27  # 512 MiB of link numbers
# Up to so many different rates or latencies are counted one by one; more are looked up per link.
_FEW = 8


class Circle(NamedTuple):
    """Arcs on circles of ``side`` links: one arc of ``hops`` links for each message.

    The links of a message's circle are numbered from ``zero`` on. The route takes link ``first`` of
    the circle first and goes upwards, or downwards for a negative number of hops.
    """

    side: int
    first: Ids
    hops: Ids
    zero: Ids

    def links(self, rows: Numbers | slice) -> Ids:
        """Link numbers in the order of the route, then NO_LINK."""
        first, hops, zero = self.first[rows], self.hops[rows], self.zero[rows]
        longest = int(np.abs(hops).max(initial=0))
        table = np.full((len(first), longest), NO_LINK, np.int32)
        step = np.arange(longest, dtype=np.int32)
        for block in message_slices(len(first)):
            x = first[block, None] + np.sign(hops[block, None]) * step
            x += np.where(x < 0, self.side, 0).astype(np.int32)
            x -= np.where(x >= self.side, self.side, 0).astype(np.int32)
            left = np.abs(hops[block, None])
            np.copyto(table[block], x + zero[block, None], where=step < left)
        return table

    def ends(self, part: slice) -> tuple[Numbers, Numbers, Numbers, Numbers]:
        """Two ranges of link numbers per message: [a, b) and, beyond the circle's end, [c, d)."""
        hops, zero = self.hops[part].astype(np.int64), self.zero[part].astype(np.int64)
        low = self.first[part] + np.where(hops < 0, hops + 1, 0)
        low += np.where(low < 0, self.side, 0)
        high = low + np.abs(hops)
        return (
            zero + low,
            zero + np.minimum(high, self.side),
            zero,
            zero + np.maximum(high - self.side, 0),
        )


class Circles(RankRoutes):
    """Routes that consist of one arc for every dimension.

    ``number``: the number of each link of the circles, −1 for none.
    """

    def __init__(
        self, circles: tuple[Circle, ...], number: Ids, nlinks: int, messages: int
    ) -> None:
        self.circles, self.number = circles, number
        self.nlinks, self.messages = nlinks, messages

    def __len__(self) -> int:
        return self.messages

    @property
    def work(self) -> int:
        """How many numbers a computation over all routes reads."""
        return 4 * self.messages * len(self.circles)

    def cells(self, rows: slice = slice(None)) -> int:
        """The most numbers that `table` returns for these routes."""
        return len(range(*rows.indices(len(self)))) * self._longest(rows)

    def _longest(self, rows: Numbers | slice) -> int:
        return sum(int(np.abs(circle.hops[rows]).max(initial=0)) for circle in self.circles)

    def table(self, rows: Numbers | slice = slice(None)) -> Ids:
        """Link numbers in the order of the route, see `RankRoutes.table`."""
        messages = len(range(*rows.indices(len(self)))) if isinstance(rows, slice) else len(rows)
        hops = self._longest(rows)
        if messages * hops > _MOST_HOPS:
            raise Unsupported(
                f"{messages} messages of up to {hops} hops are too many at once; take fewer ranks,"
                " or a machine with shorter routes"
            )
        number = np.append(self.number, np.int32(NO_LINK))
        parts = [number[circle.links(rows)] for circle in self.circles]
        empty = np.empty((messages, 0), np.int32)
        return close_gaps(np.concatenate([empty, *parts], axis=1))

    def hashes(self, values: Hashes) -> Hashes:
        """The sum of the links' values for every message, modulo 2⁶⁴."""
        sums = np.zeros(len(self), np.uint64)
        each = np.where(
            self.number >= 0, np.append(values, np.uint64(0))[self.number], np.uint64(0)
        )
        upto = np.concatenate([np.zeros(1, np.uint64), np.cumsum(each, dtype=np.uint64)])
        for block in message_slices(len(self)):
            for circle in self.circles:
                a, b, c, d = circle.ends(block)
                sums[block] += upto[b] - upto[a] + upto[d] - upto[c]
        return sums

    def _counts(self, values: Amounts) -> list[tuple[float, Numbers]] | None:
        """For each distinct value, descending: its links on each route. None if many values."""
        different = np.unique(values)[::-1]
        if len(different) > _FEW:
            return None
        return [
            (float(value), self.hashes((values == value).astype(np.uint64)).astype(np.int64))
            for value in different
        ]

    def total(self, values: Amounts) -> Amounts:
        """The sum of the links' values for every message."""
        counts = self._counts(values)
        if counts is None:
            return super().total(values)
        sums = np.zeros(len(self))
        for value, count in counts:
            sums += value * count
        return sums

    def least(self, values: Amounts) -> Amounts:
        """The minimum of the links' values for every message; the greatest float without links."""
        counts = self._counts(values)
        if counts is None:
            return super().least(values)
        minimum = np.full(len(self), np.finfo(float).max)
        for value, count in counts:
            minimum[count > 0] = value
        return minimum

    def loads(self, weights: Amounts, part: slice = slice(None)) -> Amounts:
        """The sum of the messages' weights for every link, see `RankRoutes.loads`."""
        # In integers, so that additions and subtractions cancel exactly: the sum is below 2⁶².
        scale = 61 - np.frexp(max(float(weights.sum()), np.finfo(float).tiny))[1]
        whole = np.rint(np.ldexp(weights, scale)).astype(np.int64)
        sums = self._spread(whole.view(np.uint64), part).view(np.int64)
        loads: Amounts = np.ldexp(sums.astype(float), -scale)
        return loads

    def gather(self, values: Hashes) -> Hashes:
        """The sum of the messages' values for every link, modulo 2⁶⁴."""
        return self._spread(values, slice(None))

    def _spread(self, values: Hashes, part: slice) -> Hashes:
        changes = np.zeros(len(self.number) + 1, np.uint64)
        for circle in self.circles:
            a, b, c, d = circle.ends(part)
            np.add.at(changes, a, values)
            np.subtract.at(changes, b, values)
            over = d > c
            np.add.at(changes, c[over], values[over])
            np.subtract.at(changes, d[over], values[over])
        each = np.cumsum(changes, dtype=np.uint64)[:-1]
        has = self.number >= 0
        result = np.zeros(self.nlinks, np.uint64)
        result[self.number[has]] = each[has]
        return result

    def renumbered(self, number: Ids, nlinks: int) -> Circles:
        """The routes with new numbers of links; links with the number −1 are left out."""
        fresh = np.append(number, np.int32(NO_LINK))[self.number]
        return Circles(self.circles, fresh, nlinks, self.messages)


_MOST_FULL = 2048


def torus(grid: Sequence[int], gbs: float = 25.0, latency_us: float = 0.5) -> Network:
    """A torus of any number of dimensions; rank r stands at x = r mod X, y = r div X mod Y, ….

    ``gbs``: rate of one link in one direction. Routing goes dimension by dimension, x first, the
    shorter way round, upwards if both are equal. A side of 1 has no links, a side of 2 two cables.
    """
    sides = tuple(grid)
    n = prod(sides)
    if not sides or min(sides) < 1 or n > MOST_PLACES:
        raise Unsupported(f"torus: a grid has sides of at least 1 and at most {MOST_PLACES} places")
    name = f"torus {'x'.join(map(str, sides))}"
    return Network(name, n, n, *_torus(sides, gbs * GB, latency_us * 1e-6), grid=sides)


def _torus(sides: tuple[int, ...], rate: float, latency: float) -> tuple[Links, Router]:
    n = prod(sides)
    r = np.arange(n)
    real = [d for d, side in enumerate(sides) if side > 1]
    unit = {d: prod(sides[:d]) for d in real}

    def along(at: Numbers, d: int, by: Numbers | int) -> Numbers:
        here = at // unit[d] % sides[d]
        return at + ((here + by) % sides[d] - here) * unit[d]

    # Upwards, the circles of a dimension follow one another; a cable is numbered by the place of
    # its lower end in its circle. The link back has the same number plus ``half``.
    half = len(real) * n
    tails = [np.empty(0, np.int64)]
    for d in real:
        circle, x = np.divmod(r, sides[d])
        tails.append(circle % unit[d] + (circle // unit[d] * sides[d] + x) * unit[d])
    heads = [tails[0], *(along(at, d, 1) for at, d in zip(tails[1:], real, strict=True))]
    links = cables(np.concatenate(tails), np.concatenate(heads), rate, latency)

    def router(src: Numbers, dst: Numbers) -> Circles:
        circles = []
        at = src
        for i, d in enumerate(real):
            side = sides[d]
            here = at // unit[d] % side
            apart = (dst // unit[d] - here) % side
            down = apart > side // 2
            circle = at % unit[d] + at // (unit[d] * side) * unit[d]
            zero = i * n + circle * side + np.where(down, half, 0)
            columns = here - down, np.where(down, apart - side, apart), zero
            circles.append(Circle(side, *(of.astype(np.int32) for of in columns)))
            at = along(at, d, apart)
        return Circles(tuple(circles), np.arange(2 * half, dtype=np.int32), 2 * half, len(src))

    return links, router


def ring(n: int, gbs: float = 25.0, latency_us: float = 0.5) -> Network:
    """A ring of n ranks: a torus of one dimension, the shorter way round."""
    if not 1 <= n <= MOST_PLACES:
        raise Unsupported(f"ring: n={n}; a ring has 1 to {MOST_PLACES} places")
    return Network(f"ring {n}", n, n, *_torus((n,), gbs * GB, latency_us * 1e-6))


def full(n: int, gbs: float = 25.0, latency_us: float = 0.5) -> Network:
    """A full mesh: every two ranks have a cable of their own."""
    if not 1 <= n <= _MOST_FULL:
        raise Unsupported(f"full: n={n}; from 1 to {_MOST_FULL} places are fully connected")
    apart = ~np.eye(n, dtype=bool)
    a, b = (end.astype(np.int32) for end in np.nonzero(apart))
    links = Links(a, b, np.full(len(a), gbs * GB), np.full(len(a), latency_us * 1e-6))
    number = np.where(apart, np.cumsum(apart).reshape(n, n) - 1, NO_LINK).astype(np.int32)
    return Network(f"full {n}", n, n, links, table_router(number[:, :, None]))


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
) -> Network:
    """DGX-1 with V100s: a hybrid cube mesh of NVLinks, PCIe for pairs without one.

    ``gbs``: rate of one NVLink in one direction (NCCL assumes 20, for PCIe 12, between sockets 10).
    A pair with NVLinks uses them; others go up the PCIe tree to their common node.
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

    names = (*(f"GPU{i}" for i in range(8)), *(f"PCIe{i}" for i in range(4)), "CPU0", "CPU1")
    return Network("dgx1", 8, 14, links, table_router(table), names=names)


def _checked(kind: str, gpus: int, nodes: int) -> int:
    if min(gpus, nodes) < 1 or gpus * nodes > MOST_PLACES:
        raise Unsupported(f"{kind}: 1 GPU or more, 1 node or more, {MOST_PLACES} places at most")
    return gpus * nodes


def nvswitch(
    gpus: int = 8,
    nodes: int = 1,
    gbs: float = 450.0,
    net_gbs: float = 50.0,
    latency_us: float = 0.5,
    net_latency_us: float = 1.5,
) -> Network:
    """Nodes of GPUs on one NVSwitch each; each GPU has a NIC on one network switch without limits.

    ``gbs``: rate of a GPU's NVLinks in one direction (18 of NVLink 4: 450); ``net_gbs``: of a NIC.
    """
    n = _checked("nvswitch", gpus, nodes)
    gpu = np.arange(n)
    inside, outside = n + gpu // gpus, np.full(n, n + nodes)
    several = nodes > 1
    ends = [np.concatenate([gpu, gpu]), np.concatenate([inside, outside])]
    rate = np.repeat([gbs * GB, net_gbs * GB], n)
    latency = np.repeat([latency_us * 1e-6, net_latency_us * 1e-6], n)
    size = 2 * n if several else n
    links = cables(ends[0][:size], ends[1][:size], rate[:size], latency[:size])

    def router(src: Numbers, dst: Numbers) -> Ids:
        net = np.where(src // gpus != dst // gpus, n, 0)
        return join_hops(src, dst, src + net, size + dst + net)

    return Network(f"nvswitch {nodes}x{gpus}", n, n + nodes + several, links, router)


def rail(
    gpus: int = 8,
    nodes: int = 16,
    taper: int = 1,
    pxn: int = 1,
    gbs: float = 450.0,
    net_gbs: float = 50.0,
    latency_us: float = 0.5,
    net_latency_us: float = 1.5,
) -> Network:
    """A rail-optimised pod: GPU i of every node is on rail switch i; ``nodes/taper`` spines above.

    Within a node messages go over the NVSwitch, along a rail over its switch. To another node and
    another rail they go, with ``pxn`` 1, over NVLink to the GPU of their own node that is on the
    receiver's rail and leave there, as NCCL's PXN does; with ``pxn`` 0 from rail to rail over the
    spine that the receiver's node chooses. Spine links have rate ``net_gbs``.
    """
    n = _checked("rail", gpus, nodes)
    if taper < 1 or nodes % taper:
        raise Unsupported(f"rail: taper={taper} does not divide the {nodes} links up from a rail")
    if pxn not in (0, 1):
        raise Unsupported(f"rail: pxn={pxn}; it is 0 or 1")
    spines = nodes // taper
    gpu = np.arange(n)
    rails, top = n + nodes, n + nodes + gpus
    leaf, spine = np.divmod(np.arange(gpus * spines), spines)
    a = np.concatenate([gpu, gpu, rails + leaf])
    b = np.concatenate([n + gpu // gpus, rails + gpu % gpus, top + spine])
    rate = np.repeat([gbs * GB, net_gbs * GB], [n, n + len(leaf)])
    latency = np.repeat([latency_us * 1e-6, net_latency_us * 1e-6], [n, n + len(leaf)])
    links = cables(a, b, rate, latency)
    half = len(a)

    def router(src: Numbers, dst: Numbers) -> Ids:
        away = src // gpus != dst // gpus
        cross = away & (src % gpus != dst % gpus)
        chosen = dst // gpus % spines
        # With PXN, the node is left by the GPU of the sender's node that is on the receiver's rail.
        relay = np.where(cross & (pxn == 1), src // gpus * gpus + dst % gpus, src)
        over = cross & (pxn == 0)
        near, hop = ~away | (relay != src), np.where(away, relay, dst)
        return join_hops(
            src,
            dst,
            np.where(near, src, NO_LINK),
            np.where(near, half + hop, NO_LINK),
            np.where(away, n + relay, NO_LINK),
            np.where(over, 2 * n + src % gpus * spines + chosen, NO_LINK),
            np.where(over, half + 2 * n + dst % gpus * spines + chosen, NO_LINK),
            np.where(away, half + n + dst, NO_LINK),
        )

    text = f"rail {nodes}x{gpus}" + (f" taper {taper}" if taper > 1 else "") + (" pxn" * pxn)
    return Network(text, n, top + spines, links, router)


def fattree(
    down: Sequence[int], taper: int = 1, gbs: float = 25.0, latency_us: float = 0.5
) -> Network:
    """A fat tree; ``down``: links down from each switch, leaf switches first, then those above.

    A switch of tier i has ``down[i]`` links down and as many up, leaf switches ``down[0]/taper``
    up: with ``taper`` 1 there is full bisection. ``gbs`` and ``latency_us`` are those of every
    link. Routing is D-mod-k (Zahavi et al. 2010): on the way up the receiver's number chooses among
    the links, so all routes to a receiver form one tree. ``4x4`` is 16 ranks below 4 leaf switches
    and 4/taper spines.
    """
    sizes = tuple(down)
    n = prod(sizes)
    if not sizes or min(sizes) < 1 or n > MOST_PLACES:
        raise Unsupported(
            f"fattree: every level has 1 link down or more, {MOST_PLACES} places at most"
        )
    if taper < 1 or sizes[0] % taper:
        raise Unsupported(f"fattree: taper={taper} does not divide a leaf's {sizes[0]} links up")
    # parents[i]: links up from a node of level i; the places of ranks are level 0.
    parents = (1, *((size // taper if i == 0 else size) for i, size in enumerate(sizes[:-1])))
    below = [prod(sizes[:i]) for i in range(len(sizes) + 1)]
    width = [prod(parents[:i]) for i in range(len(sizes) + 1)]
    first = np.cumsum([0, *(n // below[i] * width[i] for i in range(len(sizes) + 1))])
    tails, heads, base = [], [], [0]
    for level, up in enumerate(parents):
        tree, plane = np.divmod(np.arange(n // below[level] * width[level]), width[level])
        tail = np.repeat(first[level] + tree * width[level] + plane, up)
        choice = np.tile(np.arange(up), len(tree))
        tree, plane = np.repeat(tree, up), np.repeat(plane, up)
        above = tree // sizes[level] * width[level + 1] + plane + width[level] * choice
        tails.append(tail)
        heads.append(first[level + 1] + above)
        base.append(base[-1] + len(tail))
    links = cables(np.concatenate(tails), np.concatenate(heads), gbs * GB, latency_us * 1e-6)
    half = base[-1]

    def router(src: Numbers, dst: Numbers) -> Ids:
        columns: list[Numbers] = []
        # Every route goes up to one level and down again; its planes follow from dst.
        plane = np.zeros_like(dst)
        apart = src != dst
        for level, up in enumerate(parents):
            choice = dst // width[level] % up
            for end, offset in ((src, 0), (dst, half)):
                number = (end // below[level] * width[level] + plane) * up + choice
                columns.append(np.where(apart, base[level] + number + offset, NO_LINK))
            plane = plane + width[level] * choice
            apart = src // below[level + 1] != dst // below[level + 1]
        return join_hops(src, dst, *columns[0::2], *columns[1::2][::-1])

    text = "x".join(map(str, sizes)) + (f" taper {taper}" if taper > 1 else "")
    return Network(f"fat tree {text}", n, int(first[-1]), links, router)


def dragonfly(
    p: int = 4,
    a: int = 8,
    h: int = 4,
    g: int = 0,
    taper: float = 1.0,
    gbs: float = 25.0,
    latency_us: float = 0.5,
) -> Network:
    """``g`` groups of ``a`` routers with ``p`` ranks and ``h`` global links each; 0: a·h+1 groups.

    Every two routers of a group have a cable, every two groups ⌊a·h/(g−1)⌋; port k of a group leads
    to the group 1 + k mod (g−1) places on. Global links have rate ``gbs``/``taper``. Routing is
    minimal: to the router with a cable to the receiver's group, over it, to the receiver's router;
    among several cables the receiver's number chooses.
    """
    g = a * h + 1 if g == 0 else g
    if min(p, a, g) < 1 or h < 0 or taper <= 0 or p * a * g > MOST_PLACES:
        raise Unsupported(
            f"dragonfly: p, a, g of 1 or more, taper above 0, {MOST_PLACES} places at most"
        )
    each = a * h // (g - 1) if g > 1 else 0
    if g > 1 and each < 1:
        raise Unsupported(f"dragonfly: {a}x{h} global links do not reach {g - 1} other groups")
    n, routers = p * a * g, a * g
    host = (np.arange(n), n + np.arange(n) // p)
    low, high = np.triu_indices(a, 1)
    pairs = len(low)
    group = np.repeat(np.arange(g), pairs)
    local = (n + group * a + np.tile(low, g), n + group * a + np.tile(high, g))
    # Port `port` of a group leads `port mod (g−1) + 1` groups on; `once` lists each cable once.
    start, port = np.divmod(np.arange(g * each * (g - 1)), max(1, each * (g - 1)))
    offset, layer = port % max(1, g - 1) + 1, port // max(1, g - 1)
    end = (start + offset) % max(1, g)
    back = layer * (g - 1) + (g - offset) - 1
    once = start < end
    wire = (n + start * a + port // max(1, h), n + end * a + back // max(1, h))
    ends = [np.concatenate([host[i], local[i], wire[i][once]]) for i in (0, 1)]
    rate = np.full(len(ends[0]), gbs * GB)
    rate[n + g * pairs :] /= taper
    links = cables(ends[0], ends[1], rate, latency_us * 1e-6)
    half = len(ends[0])
    # Numbers of the local links between places of a group, and of the global link at each port.
    inside = np.full((a, a), NO_LINK)
    inside[low, high] = np.arange(pairs)
    inside[high, low] = half + np.arange(pairs)
    outside = np.empty(len(start), np.int64)
    outside[once] = n + g * pairs + np.arange(int(once.sum()))
    outside[~once] = half + outside[(end * each * (g - 1) + back)[~once]]

    def router(src: Numbers, dst: Numbers) -> Ids:
        one, two = src // p, dst // p
        here, there = one // a, two // a
        away = here != there
        cable = dst % max(1, each) * (g - 1) + (there - here) % g - 1
        reverse = dst % max(1, each) * (g - 1) + (here - there) % g - 1
        gate = np.where(away, cable // max(1, h), one % a)
        entry = np.where(away, reverse // max(1, h), one % a)

        def within(of: Numbers, x: Numbers, y: Numbers) -> Numbers:
            return np.where(x == y, NO_LINK, n + of * pairs + inside[x, y])

        across = np.where(away, here * each * (g - 1) + cable, 0)
        wire = outside[across] if len(outside) else np.full_like(src, NO_LINK)
        return join_hops(
            src,
            dst,
            src,
            within(here, one % a, gate),
            np.where(away, wire, NO_LINK),
            within(there, entry, two % a),
            half + dst,
        )

    name = f"dragonfly p={p} a={a} h={h} g={g}" + (f" taper {taper:g}" if taper != 1 else "")
    return Network(name, n, n + routers, links, router)


Parameters = Mapping[str, object]
# What makes a kind of network, and the parameters for a number of ranks where none are given.
Generator = tuple[Callable[..., Network], Callable[[int, Parameters], Parameters]]


def _nothing(n: int, parameters: Parameters) -> Parameters:
    return {}


def _line(n: int, parameters: Parameters) -> Parameters:
    return {"n": n}


def _square(n: int, parameters: Parameters) -> Parameters:
    side = next(d for d in range(int(n**0.5), 0, -1) if n % d == 0)
    return {"grid": (n // side, side)}


def _two_levels(n: int, parameters: Parameters) -> Parameters:
    """Parameters with about as many leaf switches as ranks on each of them."""
    leaf = 1 << ((n - 1).bit_length() + 1) // 2
    return {"down": (n,) if n <= 2 else (leaf, -(-n // leaf))}


def _nodes(n: int, parameters: Parameters) -> Parameters:
    gpus = parameters.get("gpus", 8)
    assert isinstance(gpus, int)
    return {"nodes": -(-n // max(1, gpus))}


def _balanced(n: int, parameters: Parameters) -> Parameters:
    """The smallest balanced dragonfly, a = 2p = 2h (Kim et al.)."""
    if parameters.keys() & {"p", "a", "h", "g"}:
        return {}
    p = 1
    while 2 * p * p * (2 * p * p + 1) < n:
        p += 1
    return {"p": p, "a": 2 * p, "h": p}


GENERATORS: Mapping[str, Generator] = {
    "ring": (ring, _line),
    "full": (full, _line),
    "torus": (torus, _square),
    "dgx1": (dgx1, _nothing),
    "nvswitch": (nvswitch, _nodes),
    "rail": (rail, _nodes),
    "fattree": (fattree, _two_levels),
    "dragonfly": (dragonfly, _balanced),
}
# Parameters of every machine: seconds per message and rank, rate of additions, size of socket
# buffers, and bytes that a link passes at once after a pause.
_COMMON = {
    key: inspect.Parameter(key, inspect.Parameter.KEYWORD_ONLY, annotation="float")
    for key in ("overhead_us", "add_gbs", "buffer_kib", "burst_kib")
}


# Ranks for which a machine is made if neither its parameters nor the options say how many.
_RANKS = 8
# What may stand in the place of a generator's name.
_MAP = "or the file of a map"


def build_network(text: str, nranks: int | None) -> Network:
    """Build the network of a text: a generator's name, and parameters ``key=value`` after colons.

    The first parameter needs no key: ``torus:8x8``. The parameter for the number of places may be
    left out, and is then chosen for ``nranks`` (None: 8). Instead of a generator the text may name
    a file that ``busbar topology --from`` reads, which is copied for more ranks than it has; its
    ``latency_us`` is that of links without a latency in the map. Every network has ``overhead_us``;
    ``add_gbs``, the rate of additions in GB/s (without it, the rate in the file's sweep, or else
    additions are free); ``buffer_kib``, bytes that count as sent before they have left; and with it
    ``burst_kib``, bytes that a link passes at once after a pause. Raises Unsupported.
    """
    name, *parts = text.split(":")
    if Path(name).is_file() and name not in GENERATORS:

        def of_file(latency_us: float = LATENCY_US) -> Network:
            return network_from_file(name, latency_us, nranks or 0)

        generator: Generator = (of_file, _nothing)
    elif name in GENERATORS:
        generator = GENERATORS[name]
    elif any(mark in name for mark in "./"):
        text = f"--machine {name}: no such file; {', '.join(GENERATORS)} need none"
        raise MissingFile(text, name)
    else:
        raise unknown("machine", name, (*GENERATORS, _MAP))
    make, complete = generator
    known = {**inspect.signature(make).parameters, **_COMMON}
    if parts and "=" not in parts[0]:
        parts[0] = f"{next(iter(known))}={parts[0]}"
    parameters = {
        key: (value,) if isinstance(value, int) and "Sequence" in _kind(known, key) else value
        for key, value in parse(":".join([name, *parts]))[1].items()
    }
    for key, value in parameters.items():
        check_parameter(name, key, value, known)
        if "float" in _kind(known, key):
            _check_rate(text, key, value)
    common = {key: float(parameters.pop(key, 0.0)) for key in _COMMON}  # type: ignore[arg-type]
    network = make(**{**complete(nranks or _RANKS, parameters), **parameters})
    if common["add_gbs"]:
        network = network.adding(1e-9 / common["add_gbs"])
    overhead = common["overhead_us"] * 1e-6
    buffer, burst = common["buffer_kib"] * 1024, common["burst_kib"] * 1024
    if burst and not buffer:
        raise Unsupported(f"{text!r}: burst_kib needs buffer_kib, what is taken for sent")
    return replace(network, overhead=overhead, buffer=buffer, burst=burst)


def _kind(known: Mapping[str, inspect.Parameter], key: str) -> str:
    return str(known[key].annotation) if key in known else ""


def _check_rate(text: str, key: str, value: Any) -> None:
    """Raise Unsupported for a rate that is not positive, or a negative time or count."""
    positive = key.endswith("gbs") or key == "taper"
    if not isfinite(value) or value < 0 or (value == 0 and positive):
        least = "above 0" if positive else "0 or more"
        raise Unsupported(f"{text!r}: {key}={value}; it must be {least}")


def machine_from_ports(
    hosts: int, rate: float, latency: float, *, buffer: float, burst: float
) -> Machine:
    """Hosts on one switch. ``rate``: bytes/s of a port; ``latency``: seconds from host to host.

    ``buffer``: bytes that count as sent before they have left; ``burst``: bytes that a port passes
    at once after a pause.
    """
    switch = fattree((hosts,), gbs=rate / GB, latency_us=latency / 2 * 1e6)
    return Machine(network=replace(switch, buffer=buffer, burst=burst))
