"""Dragonflies (Kim, Dally, Scott, Abts 2008): groups of routers, each joined with every other."""

from __future__ import annotations

import numpy as np

from busbar.errors import Unsupported
from collectives.simulate.machines.machine import GB, MOST_PLACES, Machine, cables, joined
from collectives.simulate.machines.routes import NO_LINK, Ids, Numbers


def dragonfly(
    p: int = 4,
    a: int = 8,
    h: int = 4,
    g: int = 0,
    taper: float = 1.0,
    gbs: float = 25.0,
    latency_us: float = 0.5,
) -> Machine:
    """``g`` groups of ``a`` routers with ``p`` ranks and ``h`` global links each; 0: a·h+1 groups.

    Every two routers of a group have a cable, every two groups ⌊a·h/(g−1)⌋; port k of a group
    leads to the group 1 + k mod (g−1) places on. Global links have rate ``gbs``/``taper``. Routing
    is minimal: to the router with a cable to the receiver's group, over it, to the receiver's
    router; among several cables the receiver's number chooses.
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
    # Cable (G, port) leads `port mod (g−1) + 1` groups on; half of the ports say each cable once.
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
    # Numbers: of the local link between places of a group, of the global link out of each port.
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
        return joined(
            src,
            dst,
            src,
            within(here, one % a, gate),
            np.where(away, wire, NO_LINK),
            within(there, entry, two % a),
            half + dst,
        )

    name = f"dragonfly p={p} a={a} h={h} g={g}" + (f" taper {taper:g}" if taper != 1 else "")
    return Machine(name, n, n + routers, links, router)
