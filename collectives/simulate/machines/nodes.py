"""Nodes of GPUs around an NVSwitch: on one network switch, or in rail-optimised pods."""

from __future__ import annotations

import numpy as np

from busbar.errors import Unsupported
from collectives.simulate.machines.machine import GB, MOST_PLACES, Machine, cables, joined
from collectives.simulate.machines.routes import NO_LINK, Ids, Numbers


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
) -> Machine:
    """Nodes of GPUs on one NVSwitch each; each GPU has a NIC on one network switch without limits.

    ``gbs``: a GPU's NVLinks one way (18 of NVLink 4: 450); ``net_gbs``: a NIC one way.
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
        return joined(src, dst, src + net, size + dst + net)

    return Machine(f"nvswitch {nodes}x{gpus}", n, n + nodes + several, links, router)


def rail(
    gpus: int = 8,
    nodes: int = 16,
    taper: int = 1,
    pxn: int = 1,
    gbs: float = 450.0,
    net_gbs: float = 50.0,
    latency_us: float = 0.5,
    net_latency_us: float = 1.5,
) -> Machine:
    """A rail-optimised pod: GPU i of every node is on rail switch i; ``nodes/taper`` spines above.

    Within a node messages go over the NVSwitch, along a rail over its switch. To another node and
    another rail they go, with ``pxn`` 1, over NVLink to the GPU of their own node that is on the
    receiver's rail and leave there, as NCCL's PXN does; with 0 from rail to rail over the spine
    that the receiver's node chooses. Spine links have rate ``net_gbs``.
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
        # Where PXN leaves the node: the GPU of the sender's node that is on the receiver's rail.
        relay = np.where(cross & (pxn == 1), src // gpus * gpus + dst % gpus, src)
        over = cross & (pxn == 0)
        near, hop = ~away | (relay != src), np.where(away, relay, dst)
        return joined(
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
    return Machine(text, n, top + spines, links, router)
