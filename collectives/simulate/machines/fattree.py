"""Fat trees with taper, as extended generalised fat trees (Öhring et al. 1995)."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from busbar.errors import Unsupported
from collectives.simulate.machines.machine import GB, MOST_PLACES, Machine, cables, joined
from collectives.simulate.machines.routes import NO_LINK, Ids, Numbers


def fattree(
    down: Sequence[int], taper: int = 1, gbs: float = 25.0, latency_us: float = 0.5
) -> Machine:
    """A fat tree; ``down``: links down from a switch, level by level, the leaves' first.

    A switch of level i has ``down[i]`` links down and as many up, leaf switches ``down[0]/taper``
    up: with ``taper`` 1 there is full bisection. ``gbs`` and ``latency_us`` are those of every
    link. Routing is D-mod-k (Zahavi et al. 2010): on the way up the receiver's number chooses among
    the links, so all routes to a receiver join in one tree. ``4x4`` is 16 ranks below 4 leaf
    switches and 4/taper spines.
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
        # Every route goes up to one level and down again; the planes that it takes follow from dst.
        plane = np.zeros_like(dst)
        apart = src != dst
        for level, up in enumerate(parents):
            choice = dst // width[level] % up
            for end, offset in ((src, 0), (dst, half)):
                number = (end // below[level] * width[level] + plane) * up + choice
                columns.append(np.where(apart, base[level] + number + offset, NO_LINK))
            plane = plane + width[level] * choice
            apart = src // below[level + 1] != dst // below[level + 1]
        return joined(src, dst, *columns[0::2], *columns[1::2][::-1])

    text = "x".join(map(str, sizes)) + (f" taper {taper}" if taper > 1 else "")
    return Machine(f"fat tree {text}", n, int(first[-1]), links, router)
