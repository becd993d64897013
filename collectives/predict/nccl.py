"""NCCL's published model, with the figures of ``src/graph/tuning.cc`` of the version below.

Tables are in microseconds and GB/s as in NCCL's source, to make them recognisable.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from busbar.errors import Unsupported
from collectives.predict.interface import LIBRARY, CollectivePredictor, Operation
from collectives.predict.machine import Machine, NcclGraph, NcclSystem

VERSION = "2.30.7"
PROTOCOLS = ("LL", "LL128", "Simple")
#: Types of paths, best first, as ``topo.cc`` names them.
PATHS = ("LOC", "NVL", "NVB", "C2C", "PIX", "PXB", "P2C", "PXN", "PHB", "SYS", "NET", "DIS")
#: Microseconds before any data moves, by protocol.
BASE_US: Mapping[str, Sequence[float]] = {
    "tree": (6.8, 14.0, 8.4),
    "ring": (6.6, 14.0, 8.4),
    "nvls": (0.0, 0.0, 0.0),
    "nvls_tree": (0.0, 0.0, 0.0),
    "pat": (8.0, 8.0, 8.0),
}
#: Microseconds per hop, by kind of hop, algorithm and protocol.
HOP_US: Mapping[str, Mapping[str, Sequence[float]]] = {
    "nvlink": {
        "tree": (0.6, 1.25, 4.0),
        "ring": (0.6, 1.9, 3.4),
        "nvls": (0.0, 0.0, 25.0),
        "nvls_tree": (0.0, 0.0, 25.0),
        "pat": (0.0, 0.0, 4.0),
    },
    "pci": {
        "tree": (1.0, 1.9, 4.0),
        "ring": (1.0, 2.5, 5.7),
        "nvls": (0.0, 0.0, 0.0),
        "nvls_tree": (0.0, 0.0, 0.0),
        "pat": (0.0, 0.0, 4.0),
    },
    "net": {
        "tree": (5.0, 8.5, 14.0),
        "ring": (2.7, 4.0, 14.0),
        "nvls": (0.0, 0.0, 18.0),
        "nvls_tree": (0.0, 0.0, 20.9),
        "pat": (0.0, 0.0, 14.0),
    },
}
#: Most GB/s, by architecture and 1, 2, or more nodes.
LL_MAX = {
    "volta": (39.0, 39.0, 20.4),
    "ampere": (87.7, 22.5, 19.0),
    "hopper": (141.0, 45.0, 35.0),
    "blackwell": (282.0, 90.0, 70.0),
}
CHANNEL_RING_LL128 = {"volta": 20.0, "ampere": 20.0, "hopper": 36.7, "blackwell": 40.0}
CHANNEL_TREE_LL128 = {
    "volta": (20.0, 20.0, 20.0),
    "ampere": (20.0, 20.0, 20.0),
    "hopper": (36.7, 36.7, 29.0),
    "blackwell": (55.6, 31.67, 20.0),
}
CHANNEL_TREE = {
    "volta": (26.5, 18.5, 10.0),
    "ampere": (24.0, 23.6, 17.8),
    "hopper": (38.7, 41.4, 36.0),
    "blackwell": (70.0, 42.8, 24.0),
}
CHANNEL_NVLS_TREE = {"hopper": (0.0, 57.7, 45.5), "blackwell": (0.0, 96.0, 80.0)}
NVLS_EFFICIENCY = {"hopper": 0.85, "blackwell": 0.74}
#: Fraction of their bandwidth that trees reach, by protocol and size: powers of two from 64 B on.
TREE_SHARE: Mapping[str, Sequence[float]] = {
    "LL": (1, 1, 1, 1, 0.9, 0.8, 0.7, 0.7, 0.7, 0.7, 0.6, 0.5,
           0.4, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1, 1, 1, 1),
    "LL128": (1, 1, 1, 1, 1, 0.9, 0.8, 0.8, 0.8, 0.7, 0.6, 0.6,
              0.6, 0.6, 0.6, 0.6, 0.8, 0.9, 0.9, 0.9, 0.9, 1, 1, 1),
    "Simple": (0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.8, 0.7, 0.6, 0.6, 0.5,
               0.5, 0.5, 0.5, 0.6, 0.7, 0.8, 0.7, 0.7, 0.8, 0.9, 0.9, 0.9),
}  # fmt: skip
#: Microseconds that posting to the network takes an Intel CPU.
POST_US = 1.0

_SERVED: Mapping[str, Sequence[str]] = {
    "allreduce": ("tree", "ring", "nvls", "nvls_tree"),
    "reduce_scatter": ("ring", "nvls", "pat"),
    "allgather": ("ring", "nvls", "pat"),
    "broadcast": ("ring",),
    "reduce": ("ring",),
}


class NcclChoice(NamedTuple):
    """An algorithm and protocol: seconds of latency, bytes per second of the collective's size."""

    algorithm: str
    protocol: str
    latency: float
    bandwidth: float


_PATH = "|".join(PATHS)
_RATE = r"(\d{1,9}(?:\.\d{1,9})?)"
_PATTERN = re.compile(
    rf"Pattern (\d{{1,9}}), crossNic \d+, nChannels (\d{{1,9}}), bw {_RATE}/{_RATE},"
    rf" type ({_PATH})/({_PATH}), sameChannels (\d)",
    re.ASCII,
)
_PATTERNS = {1: ("tree",), 2: ("tree",), 3: ("tree",), 4: ("ring",), 5: ("nvls", "nvls_tree")}


def parse_graphs(log: str) -> dict[str, NcclGraph]:
    """The graphs in a log of NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=GRAPH; PAT has the ring's graph."""
    by_algorithm: dict[str, NcclGraph] = {}
    for match in _PATTERN.finditer(log):
        pattern, channels = int(match[1]), int(match[2])
        graph = NcclGraph(
            channels,
            float(match[3]),
            float(match[4]),
            within=match[5],
            between=match[6],
            same_channels=match[7] == "1",
            pattern=pattern,
        )
        if channels:
            by_algorithm.update(dict.fromkeys(_PATTERNS.get(pattern, ()), graph))
    if "ring" in by_algorithm:
        by_algorithm["pat"] = by_algorithm["ring"]
    return by_algorithm


def list_choices(system: NcclSystem, collective: str) -> list[NcclChoice]:
    """NCCL's candidates for a collective, each with latency and bandwidth.

    Raises Unsupported for a collective that is not in NCCL's model.
    """
    if collective not in _SERVED:
        raise Unsupported(f"NCCL's model has no {collective}; it has: {', '.join(_SERVED)}")
    if system.ranks < 2:
        return []
    candidates = []
    for algorithm in _SERVED[collective]:
        graph = system.graphs.get(algorithm)
        if graph is None or not _available(system, algorithm, graph):
            continue
        for p, protocol in enumerate(PROTOCOLS):
            if algorithm in ("nvls", "nvls_tree", "pat") and protocol != "Simple":
                continue
            if protocol == "LL128" and not _ll128(system, graph):
                continue
            bandwidth = _bandwidth(system, collective, algorithm, protocol, graph)
            if bandwidth > 0:
                latency = _latency_us(system, collective, algorithm, p, graph)
                candidates.append(NcclChoice(algorithm, protocol, latency * 1e-6, bandwidth * 1e9))
    return candidates


def _available(system: NcclSystem, algorithm: str, graph: NcclGraph) -> bool:
    if algorithm in ("nvls", "nvls_tree") and (graph.channels < 2 or system.sm < 90):
        return False
    if algorithm == "nvls":
        return system.nodes == 1  # between nodes it needs CollNet
    if algorithm == "nvls_tree":
        return system.nodes > 1
    return algorithm != "pat" or system.nodes == system.ranks


def _ll128(system: NcclSystem, graph: NcclGraph) -> bool:
    """True if paths allow LL128: NVLink inside a node, and only switches to the NIC.

    LL128 needs Volta or later. From Hopper on it also works over C2C and through another GPU.
    """
    far = "PXN" if system.sm >= 90 else "PXB"
    near = PATHS.index(graph.within) <= PATHS.index("NVB")
    return near and PATHS.index(graph.between) <= PATHS.index(far) and system.sm >= 70


def _steps(collective: str, ranks: int) -> int:
    if collective == "allreduce":
        return 2 * (ranks - 1)
    return ranks - 1 if collective in ("allgather", "reduce_scatter") else ranks


def _bandwidth(
    system: NcclSystem, collective: str, algorithm: str, protocol: str, graph: NcclGraph
) -> float:
    """The predicted rate for the collective's size, in GB/s."""
    kind, column = system.architecture, system.column
    # Between nodes, LL is limited by the CPU rather than the GPU: Intel's is the first row.
    ll_most = LL_MAX[kind if system.nodes == 1 else "volta"][column]
    channel = graph.intra if system.nodes <= 2 else graph.inter
    if algorithm in ("nvls", "nvls_tree"):
        channel = _nvls_channel(system, collective, algorithm, graph)
    bus = graph.channels * channel
    if algorithm == "ring" and protocol == "LL":
        bus = min(ll_most, bus * 0.5)
    elif algorithm == "ring" and protocol == "LL128":
        bus = min(bus * 0.92, graph.channels * CHANNEL_RING_LL128[kind])
    elif algorithm == "tree":
        bus = min(bus * 0.92, graph.channels * CHANNEL_TREE[kind][column])
        if protocol == "LL":
            bus = min(bus / 3.8, ll_most)
        elif protocol == "LL128":
            share = 7 / 9 if system.nodes == 1 else 120 / 128
            bus = min(bus * share, graph.channels * CHANNEL_TREE_LL128[kind][column])
        if graph.pattern == 3:
            bus *= 0.85
    elif algorithm == "pat":
        bus *= 0.75
    if algorithm != "ring" and collective in ("allgather", "reduce_scatter"):
        return bus
    if algorithm in ("ring", "nvls", "nvls_tree"):
        return bus * system.ranks / _steps(collective, system.ranks)
    return bus * 0.5


def _nvls_channel(system: NcclSystem, collective: str, algorithm: str, graph: NcclGraph) -> float:
    """GB/s of a channel in which the switch adds; one channel is used for control."""
    kind = system.architecture
    intra = graph.intra * NVLS_EFFICIENCY[kind] * (graph.channels - 1) / graph.channels
    each = system.ranks / system.nodes
    intra *= 2 if collective == "allreduce" else (each - 1) / each
    tree = algorithm == "nvls_tree"
    inter = graph.inter * (2 if tree and system.nodes <= 2 else 1)
    return min(intra, inter, *([CHANNEL_NVLS_TREE[kind][system.column]] if tree else []))


def _latency_us(
    system: NcclSystem, collective: str, algorithm: str, p: int, graph: NcclGraph
) -> float:
    each = system.ranks / system.nodes
    inside = "nvlink" if graph.nvlink else "pci"
    base, intra = BASE_US[algorithm][p], HOP_US[inside][algorithm][p]
    # With one rank per node no other hop hides the network's latency, as in a tree.
    inter = HOP_US["net"]["tree" if each == 1 else algorithm][p]
    between = system.nodes.bit_length() - 1
    if algorithm == "ring":
        return base + _ring_us(system, collective, p, graph, intra, inter)
    if algorithm == "tree":
        return base + 2 * ((system.ranks // system.nodes - 1) * intra + between * inter)
    if algorithm == "nvls":
        return intra
    if algorithm == "nvls_tree":
        return base + intra + 2 * between * inter
    return base + between * inter / 3.5 + system.ranks * 2.8


def _ring_us(
    system: NcclSystem, collective: str, p: int, graph: NcclGraph, intra: float, inter: float
) -> float:
    steps, simple = _steps(collective, system.ranks), PROTOCOLS[p] == "Simple"
    if collective in ("broadcast", "reduce"):
        kind = "net" if system.nodes > 1 else "nvlink" if graph.nvlink else "pci"
        if graph.same_channels:
            return HOP_US[kind]["ring"][p]
        return steps * HOP_US[kind]["tree" if simple else "ring"][p]
    post = POST_US * (3 if simple else 1) if system.nodes > 1 else 0.0
    between = (2 if collective == "allreduce" else 1) * (system.nodes - 1)
    return (steps - between) * max(intra, post) + between * inter


def predict_fastest(
    system: NcclSystem, collective: str, nbytes: int
) -> tuple[float, NcclChoice] | None:
    """Seconds of NCCL's fastest choice, and the choice; None if there is none.

    ``nbytes``: the size of nccl-tests' size column. Raises Unsupported as `list_choices` does.
    """
    timed = [(_seconds(system, collective, c, nbytes), c) for c in list_choices(system, collective)]
    return min(timed, default=None, key=lambda pair: pair[0])


def _seconds(system: NcclSystem, collective: str, choice: NcclChoice, nbytes: int) -> float:
    latency, bandwidth = choice.latency, choice.bandwidth
    if collective == "allreduce":
        # NCCL's counter: 0 for 64 to 127 bytes; below that the correction does not apply.
        number = (nbytes >> 6).bit_length() - 1
        tree = choice.algorithm == "tree" and 0 <= number < 23
        tall = choice.algorithm == "nvls_tree" and 0 <= number < 24 and system.sm >= 100
        if tree or tall:
            bandwidth *= TREE_SHARE[choice.protocol][number]
        ring = (choice.algorithm, choice.protocol) == ("ring", "Simple") and system.nodes > 1
        if ring and nbytes / (system.graphs["ring"].channels * system.ranks) >= 64:
            latency *= 1.9 if system.sm < 80 else 1.4
    return latency + nbytes / bandwidth


class NcclPredictor(CollectivePredictor):
    """NCCL's model for ``library`` rows on GPUs."""

    name = "nccl"

    def refusal(self, operation: Operation) -> str:
        """Why this operation cannot be predicted, or "" if it can."""
        system = self.machine.nccl
        if system is None:
            return "the machine has no graphs of NCCL"
        if operation.algorithm != LIBRARY:
            return f"{operation.algorithm} is not NCCL's; it chooses its algorithm itself"
        try:
            choices = list_choices(system, operation.collective)
        except Unsupported as error:
            return str(error)
        return "" if choices else f"NCCL has no graph for {operation.collective} here"

    def _seconds(self, operation: Operation, sizes: Sequence[int]) -> NDArray[np.float64]:
        assert self.machine.nccl is not None
        fastest = (predict_fastest(self.machine.nccl, operation.collective, size) for size in sizes)
        return np.array([best[0] for best in fastest if best is not None])


def machine_from_log(log: str, sm: int, ranks: int, nodes: int) -> Machine:
    """The machine from NCCL's log of its graphs: the rings, trees, … that its search has chosen.

    ``log``: of NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=GRAPH. ``sm``: the compute capability, such as
    90. Raises Unsupported for a log without graphs.
    """
    by_algorithm = parse_graphs(log)
    if not by_algorithm:
        raise Unsupported(
            "no line 'Pattern …, nChannels …'; run with NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=GRAPH"
        )
    return Machine(nccl=NcclSystem(sm, ranks, by_algorithm, nodes))
