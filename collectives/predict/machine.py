"""The machine of a prediction: ranks, the links between them, and what these cost.

All times are seconds, all sizes bytes. `LinkCosts` are times of messages by size, for each class of
links. After Hockney (1994) a message of m bytes takes α + β·m seconds, with another α and β in each
of at most five ranges of m, since libraries change protocol and larger data are in slower caches or
memory. A network has directed links with rates, and one route for every pair of ranks. Its nodes
are numbered, first the places of ranks, then switches. A cable is two links.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from busbar.cpulist import members
from busbar.errors import Unsupported
from topology.model.measured import BURST
from topology.model.topology import Device, Kind, Level, Topology

# The least eager limit of MPI libraries on a host: Open MPI's sm has 4 KiB, MPICH 4 to 16 KiB.
EAGER_BYTES = 4096
NETWORK = "network"
#: Classes from near to far. NVLinks are classified by their number, as NV4 or NV18.
CLASSES = ("core complex", "socket", "node", "NV", "PIX", "PXB", "PHB", "NODE", "SYS", NETWORK)
Numbers = NDArray[np.int64]
Ids = NDArray[np.int32]
Hashes = NDArray[np.uint64]
Amounts = NDArray[np.float64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class RankClasses:
    """Ranks on equal nodes: rank r is device r mod k of node r div k, if a node has k devices.

    ``classes``: the names of the classes of links. ``table``: the index of the class between two
    devices of a node, shape (k, k). ``across``: the class between nodes. ``devices``: ids.
    """

    classes: tuple[str, ...]
    table: Numbers
    across: int
    devices: tuple[str, ...] = ()

    def links(self, src: Numbers, dst: Numbers) -> Numbers:
        """The index of the class of link for pairs of ranks, of any shape."""
        k = len(self.table)
        same = src // k == dst // k
        return np.where(same, self.table[src % k, dst % k], self.across)

    def nodes(self, nranks: int) -> int:
        """The number of nodes for ``nranks`` ranks."""
        return -(-nranks // len(self.table))

    def between(self, nranks: int) -> list[int]:
        """The indices of the classes between ``nranks`` ranks, ascending."""
        k = len(self.table)
        inside = self.table[: min(k, nranks), : min(k, nranks)]
        used = set(inside[~np.eye(len(inside), dtype=bool)].tolist())
        return sorted(used | ({self.across} if nranks > k else set()))


def one_class(name: str = NETWORK) -> RankClasses:
    """Rank classes for ranks that all have the same link to each other."""
    return RankClasses((name,), np.zeros((1, 1), np.int64), 0)


def rank_classes_of(topology: Topology) -> RankClasses:
    """Classes of a topology's ranks: its measured ranks, else its GPUs, else its cores, by index.

    Further ranks are on further nodes of the same kind. Raises ValueError for a topology without
    ranks, GPUs and cores.
    """
    devices = topology.of(Kind.RANK) or topology.gpus or topology.of(Kind.CORE)
    if not devices:
        raise ValueError("it has neither ranks nor GPUs nor cores")
    find = LinkClassifier(topology)
    names = [["" for _ in devices] for _ in devices]
    for i, a in enumerate(devices):
        for j, b in enumerate(devices[:i]):
            names[i][j] = names[j][i] = find.of(a, b)
    return build_rank_classes(names, [device.id for device in devices])


def build_rank_classes(names: Sequence[Sequence[str]], devices: Sequence[str]) -> RankClasses:
    """Build classes from their names between devices, "" from a device to itself."""
    known = {name for row in names for name in row if name} | {NETWORK}
    classes = sorted(known, key=lambda name: (distance(name), name))
    at = {name: i for i, name in enumerate(classes)}
    table = np.array([[at.get(name, 0) for name in row] for row in names], np.int64)
    return RankClasses(tuple(classes), table, at[NETWORK], tuple(devices))


def distance(name: str) -> int:
    """The position of a class in `CLASSES`, or their number for an unknown class."""
    head = "NV" if name[:2] == "NV" else name
    return CLASSES.index(head) if head in CLASSES else len(CLASSES)


class LinkClassifier:
    """Classifies pairs of devices of one topology.

    Between GPUs the class is their nearest common ancestor (PIX, PHB, …), SYS if nothing is known.
    Between ranks or cores it is the smallest unit that contains all CPUs of both. Ranks share a
    core complex if one last-level cache serves all the CPUs on which both may run.
    """

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._homes = [
            (name, _inside(topology, home))
            for kind, name in ((Kind.CACHE, "core complex"), (Kind.PACKAGE, "socket"))
            for home in topology.of(kind)
        ]
        self._cpus: dict[str, frozenset[int]] = {}

    def of(self, a: Device, b: Device) -> str:
        """The name of the class of link between two devices."""
        if Kind.GPU in (a.kind, b.kind):
            relation = self._topology.relation(a.id, b.id)
            if relation.nvlinks:
                return f"NV{relation.nvlinks}"
            return (relation.level or Level.SYS).name
        hosts = [self._topology.ancestor(d.id, Kind.HOST) for d in (a, b)]
        if hosts[0] is not None and hosts[1] is not None and hosts[0].id != hosts[1].id:
            return NETWORK
        first, second = self._cpus_of(a), self._cpus_of(b)
        if first and second:
            for name, inside in self._homes:
                if first | second <= inside:
                    return name
        return "node"

    def _cpus_of(self, device: Device) -> frozenset[int]:
        if device.id not in self._cpus:
            self._cpus[device.id] = _cpus(device)
        return self._cpus[device.id]


def _cpus(device: Device) -> frozenset[int]:
    text = device.get("cpus") or device.get("cpu_affinity")
    return frozenset(members(str(text)) or ()) if text else frozenset()


def _inside(topology: Topology, device: Device) -> frozenset[int]:
    """The CPUs of a device, or of all devices below it."""
    own = _cpus(device)
    if own:
        return own
    return frozenset().union(*(_inside(topology, d) for d in topology.children(device.id)))


Interval = tuple[float, float]


@dataclass(frozen=True)
class Curve:
    """Seconds by size: ``alpha[k] + beta[k]·m`` for ``edges[k−1] < m ≤ edges[k]``; none negative.

    A curve never falls: if one range ends above the beginning of the next, the next stays at that
    height until its own line reaches it. ``intervals``: of every alpha and then every beta, 95 % by
    bootstrap, empty if nothing was fitted. ``error``: the median relative error of the points.
    """

    alpha: tuple[float, ...]
    beta: tuple[float, ...]
    edges: tuple[float, ...] = ()
    intervals: tuple[Interval, ...] = ()
    points: int = 0
    error: float | None = None

    def __post_init__(self) -> None:
        if not len(self.alpha) == len(self.beta) == len(self.edges) + 1:
            raise ValueError("a curve needs an alpha and a beta a range")
        numbers = (*self.alpha, *self.beta, *self.edges)
        if not all(0 <= x < float("inf") for x in numbers):
            raise ValueError("alpha, beta and edges must be finite and not negative")
        if any(b <= a for a, b in zip((0.0, *self.edges), self.edges, strict=False)):
            raise ValueError("edges must rise")

    @classmethod
    def line(cls, alpha: float, beta: float) -> Curve:
        """A curve of one range."""
        return cls((alpha,), (beta,))

    def __call__(self, nbytes: ArrayLike) -> Amounts:
        """Seconds for sizes of any shape; 0 for 0 bytes, since then no message is sent."""
        m = np.asarray(nbytes, np.float64)
        alpha, beta, edges = map(np.asarray, (self.alpha, self.beta, self.edges))
        at = np.searchsorted(edges, m)
        ends = alpha[:-1] + beta[:-1] * edges
        floor = np.maximum.accumulate(np.concatenate([[0.0], ends]))
        return np.where(m > 0, np.maximum(alpha[at] + beta[at] * m, floor[at]), 0.0)


@dataclass(frozen=True)
class Shared:
    """Costs of the shared-memory executor between two ranks, for eager and direct messages.

    Through mailboxes: ``hop``, one way alone; ``mail``, a message each way after a barrier;
    ``mail_join``, the same with an addition; ``mail_burst``, `BURST` messages each way. Direct
    access: ``pull``, one way alone, of data just written, one message at a time; ``warm``, like
    `LinkCosts.still`; ``join``, like `LinkCosts.sum`.
    """

    hop: Curve
    mail: Curve
    mail_join: Curve
    mail_burst: Curve
    pull: Curve
    warm: Curve
    join: Curve


@dataclass(frozen=True)
class LinkCosts:
    """Costs of a class of links; each curve is one kind of measurement.

    ``trip``: one way alone. ``swap``: a message each way at once, until both have arrived. ``add``:
    a swap in which received data is added. ``burst``: a swap with `BURST` messages each way. In
    these, sent data has just been written. ``still``: a swap of data that no rank has written, so
    that caches may already hold it. ``sum``: the same with an addition. ``source``: the origin of
    the figures, in a few words. A curve that is None was not measured. ``shared``: the costs of
    copies and short messages if ranks share memory, from the same measurements. ``least``: one way
    alone between the best pair, if the other curves are medians of pairs.
    """

    trip: Curve
    swap: Curve
    add: Curve
    burst: Curve | None
    source: str
    still: Curve | None = None
    sum: Curve | None = None
    shared: Shared | None = None
    least: Curve | None = None

    @classmethod
    def assumed(cls, alpha: float, beta: float, source: str, gamma: float = 0.0) -> LinkCosts:
        """A link with one range, whose two directions do not slow each other down.

        Additions take ``gamma`` seconds per byte. Messages share a port one after the other.
        """
        line = Curve.line(alpha, beta)
        return cls(line, line, Curve.line(alpha, beta + gamma), None, source)

    def alone(self, nbytes: Amounts, both: Flags, fresh: Flags | None = None) -> Amounts:
        """Seconds of a message that is the only one at its ports.

        ``both``: True if another message goes in the other direction. ``fresh``: True if the data
        was written in this collective; None means all of it. A swap counts as no faster than a
        trip, since each of its messages is one, and unwritten data as no slower than fresh data.
        """
        trip = self.trip(nbytes)
        seconds = np.where(both, np.maximum(trip, self.swap(nbytes)), trip)
        return seconds if fresh is None else seconds * self._share(nbytes, fresh)

    def _share(self, nbytes: Amounts, fresh: Flags) -> Amounts:
        """Seconds to send data that no rank has written, relative to fresh data; at most 1."""
        if self.still is None:
            return np.ones(np.shape(nbytes))
        swap = np.maximum(self.trip(nbytes), self.swap(nbytes))
        with np.errstate(all="ignore"):
            share = np.where(swap > 0, self.still(nbytes) / swap, 1.0)
        return np.where(fresh, 1.0, np.minimum(1.0, share))

    def further(self, nbytes: Amounts, both: Flags, fresh: Flags | None = None) -> Amounts:
        """Seconds that one more message adds at a port that already has one.

        From bursts if they were measured; otherwise the time of a message alone, as in the
        single-port model of Chan et al. 2007. Never more than that. Flags as for `alone`.
        """
        alone = self.alone(nbytes, both, fresh)
        if self.burst is None:
            return alone
        extra = (self.burst(nbytes) - self.swap(nbytes)) / (BURST - 1)
        if fresh is not None:
            extra = extra * self._share(nbytes, fresh)
        return np.clip(extra, 0.0, alone)

    def posted(self, nbytes: Amounts) -> Amounts:
        """Seconds that an eager message occupies each of its ends; NaN if it is not eager.

        Half of a message's share of a burst, in which each rank sends and receives equally many.
        Messages up to `EAGER_BYTES` are eager if bursts were measured.
        """
        if self.burst is None:
            return np.full(np.shape(nbytes), np.nan)
        share = self.burst(nbytes) / (2 * BURST)
        return np.where(nbytes <= EAGER_BYTES, np.minimum(share, self.trip(nbytes)), np.nan)

    def added(self, nbytes: Amounts, shared: Flags | None = None) -> Amounts:
        """Seconds that adding a message takes in addition to receiving it (γ·m if γ is one number).

        ``shared``: True if other ranks read the sum; None means all sums. A sum that others do not
        read never costs more.
        """
        both = np.ones(np.shape(nbytes), bool)
        fresh_seconds = np.maximum(0.0, self.add(nbytes) - self.alone(nbytes, both))
        if shared is None or self.sum is None or self.still is None:
            return fresh_seconds
        calm = np.maximum(0.0, self.sum(nbytes) - self.still(nbytes))
        return np.where(shared, fresh_seconds, np.minimum(calm, fresh_seconds))


@dataclass(frozen=True)
class Costs:
    """Costs of a machine's classes of links.

    ``start``: seconds that every measured collective takes beyond its schedule (leaving a barrier,
    calling). ``ranks``: the number of ranks in the measurement, all at once or, if ``alone``, one
    pair at a time; 0 without a measurement. ``transport``: the transport that was measured.
    ``sources``: SHA-256 of the files with the measurements. ``notes``: remarks for a reader.
    ``table``: the class between each two measured ranks, one row per rank. ``cores``: the one CPU
    on which each of them ran; empty if ranks were not pinned.
    """

    links: Mapping[str, LinkCosts]
    start: float = 0.0
    ranks: int = 0
    alone: bool = False
    transport: str = ""
    sources: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    table: tuple[tuple[str, ...], ...] = ()
    cores: tuple[int, ...] = ()


NO_LINK = -1
_BLOCK = 1 << 16


def message_slices(size: int, least: int = 0) -> list[slice]:
    """Divide ``size`` messages into slices of consecutive ones, so that arrays fit into a cache.

    ``least``: the least number of messages in a slice but the last.
    """
    block = max(_BLOCK, least)
    return [slice(at, at + block) for at in range(0, size, block)]


def close_gaps(links: Ids) -> Ids:
    """Move the links of each row to the left, in their order; drop columns without any link."""
    width = int((links >= 0).sum(axis=1).max(initial=0))
    if width < links.shape[1]:
        order = np.argsort(links < 0, axis=1, kind="stable")[:, :width]
        links = np.take_along_axis(links, order, axis=1)
    return links


class RankRoutes:
    """The routes of messages over ``nlinks`` links; ``links``: a table like that of `table`."""

    def __init__(self, links: Ids, nlinks: int) -> None:
        self._links, self.nlinks = links, nlinks

    def __len__(self) -> int:
        return len(self._links)

    @property
    def work(self) -> int:
        """How many numbers a computation over all routes reads."""
        return self._links.size

    def cells(self, rows: slice = slice(None)) -> int:
        """How many numbers `table` returns for these routes, or more."""
        return self._links[rows].size

    def table(self, rows: Numbers | slice = slice(None)) -> Ids:
        """Link numbers in the order of the route, then NO_LINK: shape (messages, most links).

        Raises Unsupported if the table would be too large for memory.
        """
        links: Ids = self._links[rows]
        return links

    def total(self, values: Amounts) -> Amounts:
        """The sum of the links' values for every message; equal for equal routes."""
        return self._each(values, 0.0, lambda on_route: on_route.sum(axis=1))

    def least(self, values: Amounts) -> Amounts:
        """The minimum of the links' values for every message; the greatest float without links."""
        most = np.finfo(float).max
        return self._each(values, most, lambda on_route: on_route.min(axis=1, initial=most))

    def _each(
        self, values: NDArray[Any], none: Any, of: Callable[[NDArray[Any]], NDArray[Any]]
    ) -> NDArray[Any]:
        values = np.append(values, none)  # NO_LINK is the last of the values.
        results = np.empty(len(self), values.dtype)
        for block in message_slices(len(self)):
            results[block] = of(values[self.table(block)])
        return results

    def hashes(self, values: Hashes) -> Hashes:
        """The sum of the links' values for every message, modulo 2⁶⁴."""
        return self._each(values, np.uint64(0), lambda on_route: on_route.sum(axis=1))

    def loads(self, weights: Amounts, part: slice = slice(None)) -> Amounts:
        """The sum of the messages' weights for every link.

        ``part``: only these messages; ``weights`` has only theirs.
        """
        links, sums = self._links[part], np.zeros(self.nlinks + 1)
        # Each slice sums over all links, so slices must not be much smaller than that.
        for block in message_slices(len(links), self.nlinks // 4):
            index = links[block].ravel().astype(np.int64) + 1
            each = np.repeat(weights[block], links.shape[1])
            sums += np.bincount(index, each, self.nlinks + 1)
        return sums[1:]

    def gather(self, values: Hashes) -> Hashes:
        """The sum of the messages' values for every link, modulo 2⁶⁴."""
        sums = np.zeros(self.nlinks + 1, np.uint64)
        for block in message_slices(len(self)):
            part = self._links[block]
            np.add.at(sums, part.ravel(), np.repeat(values[block], part.shape[1]))
        return sums[:-1]

    def renumbered(self, number: Ids, nlinks: int) -> RankRoutes:
        """The routes with new numbers of links; links with the number −1 are left out."""
        number = np.append(number, np.int32(NO_LINK))
        parts = [close_gaps(number[self._links[block]]) for block in message_slices(len(self))]
        width = max((part.shape[1] for part in parts), default=0)
        table = np.full((len(self), width), NO_LINK, np.int32)
        for block, part in zip(message_slices(len(self)), parts, strict=True):
            table[block, : part.shape[1]] = part
        return RankRoutes(table, nlinks)


# A router takes senders and receivers. It returns their routes: a table of link numbers, with one
# row per message in the order of the route (see `RankRoutes.table`), or a `RankRoutes`.
Router = Callable[[Numbers, Numbers], Ids | RankRoutes]


def table_router(table: Ids) -> Router:
    """A router that looks routes up by sender and receiver in ``table[src, dst]``."""
    return lambda src, dst: table[src, dst]


class Weights(NamedTuple):
    """Relative times of accesses that caches serve, if ranks share memory.

    ``still``: relative time of bytes that no rank has written in the collective. ``calm``: relative
    time of additions whose sum no other rank reads.
    """

    still: float = 1.0
    calm: float = 1.0


#: No access is faster by caches.
NONE = Weights()


class BufferDependentRates(NamedTuple):
    """The rates of all links, and other fields of `Network` that depend on a buffer's size."""

    rate: Amounts
    gamma: float
    weights: Weights


GB = 1e9
MOST_PLACES = 1 << 20


@dataclass(frozen=True)
class Links:
    """Directed links as columns: nodes ``tail`` and ``head``, bytes per second, seconds."""

    tail: Ids
    head: Ids
    rate: Amounts
    latency: Amounts

    def __len__(self) -> int:
        return len(self.tail)


def cables(a: Numbers, b: Numbers, rate: float | Amounts, latency: float | Amounts) -> Links:
    """Links in both directions: link i from ``a[i]`` to ``b[i]``, link len(a) + i back."""
    size = len(a)
    rates, latencies = (np.broadcast_to(np.asarray(v, float), size) for v in (rate, latency))
    return Links(
        np.concatenate([a, b]).astype(np.int32),
        np.concatenate([b, a]).astype(np.int32),
        np.tile(rates, 2),
        np.tile(latencies, 2),
    )


def join_hops(src: Numbers, dst: Numbers, *hops: Numbers) -> Ids:
    """Routes from one column of link numbers per hop; a message to its own rank takes no link."""
    route = np.stack(hops, axis=1)
    return np.where((src != dst)[:, None], route, NO_LINK).astype(np.int32)


@dataclass(frozen=True)
class Network:
    """Places for ``nranks`` ranks, links between ``nnodes`` nodes, and a router.

    ``overhead``: seconds that each message costs each of its two ranks. ``gamma``: seconds to add a
    byte. ``buffer``: bytes from one rank to another that count as sent when they are handed over
    (`collectives.predict.buffered`). ``burst``: bytes that a link passes at once after a pause, if
    there is a ``buffer``. ``names``: names of the nodes; without them, nodes are named by their
    numbers. ``grid``: the sides of a torus, for drawings. ``weights``: times that caches save.
    ``rates_at``: rates of links, ``gamma`` and ``weights`` by the bytes of a rank's buffers, if
    they were measured and depend on that; see `at`. ``notes``: where the links are from, a line
    each.
    """

    name: str
    nranks: int
    nnodes: int
    links: Links
    router: Router = field(repr=False)
    overhead: float = 0.0
    gamma: float = 0.0
    buffer: float = 0.0
    burst: float = 0.0
    names: tuple[str, ...] = ()
    grid: tuple[int, ...] = ()
    weights: Weights = NONE
    rates_at: Callable[[float], BufferDependentRates] | None = field(default=None, repr=False)
    notes: tuple[str, ...] = ()

    def at(self, nbytes: float) -> Network:
        """The network with the rates that hold for buffers of this size, if they depend on it.

        ``nbytes``: bytes of a rank's input buffer, and of its output buffer.
        """
        if self.rates_at is None:
            return self
        rates = self.rates_at(nbytes)
        links = replace(self.links, rate=rates.rate)
        return replace(self, links=links, gamma=rates.gamma, weights=rates.weights, rates_at=None)

    def adding(self, gamma: float) -> Network:
        """The network with additions of ``gamma`` seconds per byte instead of measured ones."""
        known = self.rates_at

        def fixed(nbytes: float) -> BufferDependentRates:
            assert known is not None
            rates = known(nbytes)
            return rates._replace(gamma=gamma, weights=rates.weights._replace(calm=1.0))

        return replace(self, gamma=gamma, rates_at=fixed if known else None)

    def routes(self, src: Numbers, dst: Numbers) -> RankRoutes:
        """The routes of messages. Raises Unsupported for a rank without a place."""
        top = max(int(src.max(initial=-1)), int(dst.max(initial=-1)))
        if top >= self.nranks:
            raise Unsupported(
                f"{self.name} has places for {self.nranks} ranks; rank {top} has none"
            )
        routes = self.router(src[:_BLOCK].astype(np.int64), dst[:_BLOCK].astype(np.int64))
        if isinstance(routes, RankRoutes):
            whole = self.router(src.astype(np.int64), dst.astype(np.int64))
            return cast(RankRoutes, whole)
        # In slices, because a router needs many times the memory of its result.
        table = np.empty((len(src), routes.shape[1]), np.int32)
        for block in message_slices(len(src)):
            part = self.router(src[block].astype(np.int64), dst[block].astype(np.int64))
            table[block] = cast(Ids, part)
        return RankRoutes(table, len(self.links))

    def node(self, number: int) -> str:
        """The name of a node."""
        if self.names:
            return self.names[number]
        if number < self.nranks:
            return f"rank {number}"
        return f"switch {number - self.nranks}"

    def link(self, number: int) -> str:
        """The name of a link."""
        tail, head = int(self.links.tail[number]), int(self.links.head[number])
        return f"{self.node(tail)} → {self.node(head)}"


@dataclass(frozen=True)
class NcclGraph:
    """The result of NCCL's search for an algorithm: GB/s of a channel inside and between nodes.

    ``within``, ``between``: the worst type of path that it takes from GPU to GPU inside a node, and
    from GPU to NIC, in NCCL's words (`collectives.predict.nccl.PATHS`).
    """

    channels: int
    intra: float
    inter: float
    within: str = "NVL"
    between: str = "PIX"
    same_channels: bool = True
    pattern: int = 4

    @property
    def nvlink(self) -> bool:
        """True if all paths inside a node are NVLink."""
        return self.within == "NVL"


@dataclass(frozen=True)
class NcclSystem:
    """``ranks`` GPUs of compute capability ``sm`` (70, 80, 90, 100) on ``nodes`` equal nodes.

    ``graphs``: by algorithm; one that has none is not available. The CPUs are Intel's.
    """

    sm: int
    ranks: int
    graphs: Mapping[str, NcclGraph] = field(default_factory=dict)
    nodes: int = 1

    @property
    def architecture(self) -> str:
        """The row of this GPU in NCCL's tables."""
        for least, name in ((100, "blackwell"), (90, "hopper"), (80, "ampere")):
            if self.sm >= least:
                return name
        return "volta"

    @property
    def column(self) -> int:
        """The column of this system in NCCL's tables: 0 for 1 node, 1 for 2 nodes, 2 for more."""
        return min(self.nodes, 3) - 1


@dataclass(frozen=True)
class Machine:
    """What is known of a machine; each predictor needs one of its parts.

    ``classes``: the class of link between any two ranks. ``costs``: the costs of each class, in the
    same order. ``start``: seconds that every collective takes beyond its schedule. ``cores``: the
    CPU of each measured rank, empty if ranks were not pinned. ``network``: nodes and directed
    links. ``nccl``: the input of NCCL's own model. ``notes``: the costs' origin, one line each.
    ``nranks``: the ranks that the costs are for, 0 if no file states a number.
    """

    classes: RankClasses | None = None
    costs: Sequence[LinkCosts] = ()
    start: float = 0.0
    cores: tuple[int, ...] = ()
    network: Network | None = None
    nccl: NcclSystem | None = None
    notes: tuple[str, ...] = ()
    nranks: int = 0
