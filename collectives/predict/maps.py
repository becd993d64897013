"""Machines from files: a measured map, a topology, a fit, or no file at all.

Values that were not measured are assumed: latencies are the hop latencies of NCCL 2.30's tuner for
a ring with the Simple protocol, rates of NVLink and PCIe are those of `topology.model.rates`. Every
assumption is listed in the notes.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import permutations
from math import isfinite
from pathlib import Path
from statistics import median

import numpy as np

from busbar.cpulist import members
from busbar.errors import MissingFile, ProbeError, Unsupported
from collectives.execution.registry import transports
from collectives.predict.fit import Fit, digest, fit_curve, fit_shared_memory, read_fit
from collectives.predict.machine import (
    NETWORK,
    NO_LINK,
    Amounts,
    BufferDependentRates,
    Costs,
    Curve,
    Ids,
    LinkClassifier,
    LinkCosts,
    Links,
    Machine,
    Network,
    Numbers,
    RankClasses,
    Router,
    Weights,
    build_rank_classes,
    close_gaps,
    distance,
    one_class,
    rank_classes_of,
    table_router,
)
from topology.model.measured import SMALLEST, SWEPT, Swept, expected, first, matrix, swept
from topology.model.topology import Device, Kind, Topology
from topology.sources.gather import gather

_ABOUT = ("mpi_library", "mpi_threads", "transport", "kernel", "arch")


def fit_map(topology: Topology, *again: Topology) -> Costs:
    """Fit costs to a measured map; the `Costs.sources` are left empty.

    The sweep is fitted. A map without one gives the line through its latency and bandwidth, with a
    note. ``again``: maps of repeated measurements of the same ranks; their sweeps are further
    blocks. Raises Unsupported if nothing was measured between ranks.
    """
    sweep = [one for each in (topology, *again) for one in swept(each)]
    notes: list[str] = []
    if sweep:
        links = _fitted(topology, sweep)
    else:
        links = costs_from_two_points(topology)
        notes.append(
            "no sweep of sizes: lines through one latency and one bandwidth, additions taken as"
            " free (measure again with --sweep 16M)"
        )
    if not links:
        raise Unsupported("nothing was measured between ranks in it; see topology measure --sweep")
    ranks, find = topology.of(Kind.RANK), LinkClassifier(topology)
    behind = [time for each in (topology, *again) for time in first(each)]
    each = _cpus(topology)
    cpus = {cpu for one in each for cpu in one}
    if 0 < len(cpus) < len(ranks):
        notes.append(
            f"{len(ranks)} ranks shared {len(cpus)} CPUs: the scheduler is in these costs, and they"
            " hold for that many ranks"
        )
    about = {name: str(topology.get(name)) for name in _ABOUT if topology.get(name) is not None}
    about["hosts"] = ", ".join(host.name or host.id for host in topology.of(Kind.HOST))
    return Costs(
        links,
        _start(links, behind if sweep else []),
        len(ranks),
        topology.get("pairs_at_once") is False,
        str(topology.get("transport") or ""),
        (),
        tuple(notes),
        about,
        tuple(tuple("" if a == b else find.of(a, b) for b in ranks) for a in ranks),
        tuple(one[0] for one in each) if all(len(one) == 1 for one in each) else (),
    )


def _cpus(topology: Topology) -> list[Sequence[int]]:
    """The CPUs on which each rank might run."""
    ranks = topology.of(Kind.RANK)
    return [members(str(rank.get("cpu_affinity") or "")) or () for rank in ranks]


def _start(links: Mapping[str, LinkCosts], behind: Sequence[float]) -> float:
    """How much longer a swap takes after a barrier than after another swap."""
    if not behind:
        return 0.0
    return max(0.0, median(behind) - min(float(link.swap(SMALLEST)) for link in links.values()))


def _fitted(topology: Topology, sweep: Sequence[Swept]) -> dict[str, LinkCosts]:
    find = LinkClassifier(topology)
    groups: dict[str, dict[str, list[Swept]]] = defaultdict(lambda: defaultdict(list))
    for one in sweep:
        name = find.of(topology.device(one.a), topology.device(one.b))
        groups[name][one.quantity].append(one)
    ranks = topology.of(Kind.RANK)
    source = f"fitted on {topology.get('transport') or 'measured'} between {len(ranks)} ranks"
    links = {name: _link(kinds, source) for name, kinds in groups.items() if kinds.keys() & _ONE}
    entry = transports().get(str(topology.get("transport")))
    if entry is not None and entry.maps_memory:
        cpus = {cpu for one in _cpus(topology) for cpu in one}
        size = len(ranks), len(cpus) or len(ranks)
        links = {
            name: replace(link, shared=fit_shared_memory(groups[name], _curve, *size))
            for name, link in links.items()
        }
    return links


_ONE = {"trip", "swap"}
KINDS = SWEPT.keys() - {"first"}


def _link(kinds: Mapping[str, Sequence[Swept]], source: str) -> LinkCosts:
    """Costs of one class; a kind that was not measured is replaced by the most similar one."""
    curves = {kind: _curve(samples) for kind, samples in kinds.items()}
    trip = curves.get("trip") or curves["swap"]
    swap = curves.get("swap") or trip
    missing = sorted(KINDS - curves.keys())
    source += f"; not measured: {', '.join(missing)}" if missing else ""
    rest = curves.get("burst"), source, curves.get("still"), curves.get("sum")
    return LinkCosts(trip, swap, curves.get("add") or swap, *rest)


def _curve(samples: Sequence[Swept]) -> Curve:
    """Fit all pairs of a class; each block of a pair is one block of the bootstrap."""
    sizes = sorted({one.nbytes for one in samples})
    blocks: dict[tuple[str, str], dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for one in samples:
        blocks[one.a, one.b][one.nbytes] += one.seconds
    most = max(len(times) for pair in blocks.values() for times in pair.values())
    table = np.full((len(blocks), most, len(sizes)), np.nan)
    for row, pair in enumerate(blocks.values()):
        for nbytes, times in pair.items():
            table[row, : len(times), sizes.index(nbytes)] = times
    return fit_curve(sizes, table.reshape(-1, len(sizes)))


def costs_from_two_points(topology: Topology) -> dict[str, LinkCosts]:
    """Lines through the median latency and bandwidth of each class's pairs, by class.

    The swap is from the bandwidth of both directions at once, if that was measured; ``least`` is
    from the least latency and the greatest bandwidth.
    """
    find = LinkClassifier(topology)
    cells = {name: matrix(topology, name) for name in ("latency", "bandwidth", "bandwidth_both")}
    values: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for name, pairs in cells.items():
        for (a, b), cell in pairs.items():
            if a != b and cell.value > 0:
                kind = find.of(topology.device(a), topology.device(b))
                values[kind][name].append(cell.value)
    links = {}
    for kind, known in values.items():
        if not known["latency"] or not known["bandwidth"]:
            continue
        alpha, beta = median(known["latency"]), 1 / median(known["bandwidth"])
        both = 2 / median(known["bandwidth_both"]) if known["bandwidth_both"] else beta
        swap = Curve.line(alpha, max(beta, both))
        least = Curve.line(min(known["latency"]), 1 / max(known["bandwidth"]))
        source = _median_pair(known["latency"], known["bandwidth"])
        links[kind] = LinkCosts(Curve.line(alpha, beta), swap, swap, None, source, least=least)
    return links


def _median_pair(delays: Sequence[float], rates: Sequence[float]) -> str:
    """The latency and the rate of a class, and that they are medians of pairs."""
    text = f"latency {median(delays) * 1e6:.3g} us, {median(rates) / 1e9:.3g} GB/s"
    if len(rates) == 1:
        return f"{text} (measured)"
    ends = f"{min(rates) / 1e9:.3g} to {max(rates) / 1e9:.3g}"
    return f"{text} (medians of {len(rates)} measured pairs, {ends} GB/s)"


_NVLINK_S, _PCIE_S, _NETWORK_S, _HOST_S = 3.4e-6, 5.7e-6, 14e-6, 1e-6
_NETWORK_RATE, _HOST_RATE = 12.5e9, 10e9


def resolve_costs(
    classes: RankClasses,
    costs: Costs | None,
    topology: Topology | None,
    sweep: Costs | None = None,
) -> tuple[list[LinkCosts], list[str]]:
    """Costs of every class, and a note for each that names their source.

    A fit comes first, then the topology's measurements (``sweep``: the fit of its sweep, if it has
    one), then its link rates, then assumptions. A class that is not in the fit ``costs`` gets the
    costs of the nearest class there.
    """
    measured = costs or sweep
    near: Mapping[str, LinkCosts] = {}
    if measured is not None:
        near = measured.links
    elif topology is not None:
        near = costs_from_two_points(topology)
    links, notes = [], []
    for name in classes.classes:
        if name in near:
            link, source = near[name], near[name].source
        elif costs is not None and (other := _nearest(name, list(near))) is not None:
            link, source = near[other], f"not in the fit; as {other}"
        else:
            link = _assumed(name, classes, topology)
            source = link.source
        links.append(link)
        notes.append(f"{name}: {source}")
    return links, notes


def _nearest(name: str, known: Sequence[str]) -> str | None:
    """The nearest class that is farther away (to avoid optimistic times), else the farthest one."""
    far = sorted(known, key=distance)
    beyond = (one for one in far if distance(one) >= distance(name))
    return next(beyond, far[-1] if far else None)


def _assumed(name: str, classes: RankClasses, topology: Topology | None) -> LinkCosts:
    if name == NETWORK:
        rate, source = _network(topology)
        return _assumed_link(_NETWORK_S, rate, "NCCL 2.30's network hop", source)
    if name in ("core complex", "socket", "node"):
        return _assumed_link(_HOST_S, _HOST_RATE, "assumed", "assumed")
    measured_rate = None if topology is None else _rate(classes, name, topology)
    alpha, hop = (_NVLINK_S, "NVLink") if name[:2] == "NV" else (_PCIE_S, "PCIe")
    rate, source = measured_rate or (_NETWORK_RATE, "assumed")
    return _assumed_link(alpha, rate, f"NCCL 2.30's {hop} hop", source)


def _assumed_link(alpha: float, rate: float, latency: str, bandwidth: str) -> LinkCosts:
    return LinkCosts.assumed(
        alpha,
        1 / rate,
        f"latency {alpha * 1e6:g} us ({latency}), {rate / 1e9:.4g} GB/s ({bandwidth}), "
        f"additions free",
    )


def _network(topology: Topology | None) -> tuple[float, str]:
    """One rank's share of the rates of the node's network ports, and its origin in words.

    It is in bytes per second, and 100 Gbit/s if no source states a rate.
    """
    if topology is not None:
        known = [rate for nic in topology.of(Kind.NIC) if (rate := nic.number("net_rate"))]
        if known:
            ranks = max(len(topology.gpus), len(known))
            return sum(known) / ranks, "a rank's share of the network ports"
    return _NETWORK_RATE, "100 Gbit/s assumed"


def _rate(classes: RankClasses, name: str, topology: Topology) -> tuple[float, str] | None:
    """The median measured bandwidth of the class, else the least rate of its links."""
    at, devices = classes.classes.index(name), classes.devices
    pairs = [
        (a, b)
        for i, a in enumerate(devices)
        for j, b in enumerate(devices)
        if i != j and classes.table[i, j] == at
    ]
    measured = [_number(topology, a, b, "bandwidth") for a, b in pairs]
    if known := [rate for rate in measured if rate and rate > 0]:
        return median(known), "measured"
    rates = [rate for a, b in pairs if (rate := expected(topology, a, b))]
    return (min(rates), "link rates of the topology") if rates else None


def load_machine(
    topology: Sequence[str] | None, fit: Path | None, nranks: int | None = None
) -> Machine:
    """Load the machine that files describe, with costs for ``nranks`` ranks and notes on them.

    Without ``nranks`` they are those of the topology, else the most that the fit was measured with.
    Without a topology all ranks are of one class: the nearest class of the fit, or an assumed
    network. Raises Unsupported for files that cannot be used, naming them.
    """
    known = None if fit is None else read_fit(fit)
    if topology is None:
        if known is None:
            return assumed_machine()
        nranks = nranks or max(1, *(costs.ranks for costs in known.costs))
        return replace(machine_from_fit(known.for_ranks(nranks), nranks), nranks=nranks)
    try:
        map_, _ = gather(topology)
        classes = rank_classes_of(map_)
    except MissingFile as error:
        raise MissingFile(f"--topology {error}", error.filename) from None
    except (ProbeError, ValueError) as error:
        named = str(error) if isinstance(error, ProbeError) else f"{topology[0]}: {error}"
        raise Unsupported(f"--topology {named}") from None
    k = len(classes.devices)
    nranks = nranks or k
    costs = None if known is None else known.for_ranks(nranks)
    place = f"ranks are {classes.devices[0]} … {classes.devices[-1]}"
    if nranks > k:
        several = len({map_.ancestor(device, Kind.HOST) for device in classes.devices}) > 1
        place += f", on {-(-nranks // k)} such {'groups of hosts' if several else 'nodes'}"
    sweep = None
    if costs is None and swept(map_):
        sweep = Fit((fit_map(map_),)).for_ranks(nranks)
    links, notes = resolve_costs(classes, costs, map_, sweep)
    used = classes.between(nranks)
    if sweep is not None and any(links[i].shared is None for i in used):
        # Between hosts no memory is shared, so what was measured in shared memory is not predicted.
        links = [replace(link, shared=None) for link in links]
    notes = [place, *(note for i, note in enumerate(notes) if i in used)]
    costs = costs or sweep
    start, cores = (0.0, ()) if costs is None else (costs.start, costs.cores)
    return Machine(classes, links, start, cores, nranks=nranks, notes=_lines(notes, costs))


def assumed_machine() -> Machine:
    """The machine that is assumed if the user gives none: all ranks on a network of fixed speed."""
    classes = one_class()
    links, notes = resolve_costs(classes, None, None)
    return Machine(
        classes, links, notes=_lines(["no machine given (--topology, --fit)", *notes], None)
    )


def machine_from_fit(costs: Costs, nranks: int) -> Machine:
    """The machine of a fit, rank by rank; with more ranks all are of the fit's first class."""
    if nranks <= len(costs.table):
        devices = [f"RANK{rank}" for rank in range(len(costs.table))]
        classes = build_rank_classes(costs.table, devices)
    else:
        classes = one_class(next(iter(costs.links)))
    links, notes = resolve_costs(classes, costs, None)
    if len(classes.table) == 1 and len(costs.links) > 1:
        others = ", ".join(list(costs.links)[1:])
        notes.append(f"all ranks taken as {classes.classes[0]}; the fit also has {others}")
    used = classes.between(nranks) if len(classes.table) > 1 else [0]
    notes = [note for i, note in enumerate(notes) if i in used or i >= len(classes.classes)]
    return Machine(classes, links, costs.start, costs.cores, notes=_lines(notes, costs))


def _lines(notes: Sequence[str], costs: Costs | None) -> tuple[str, ...]:
    return tuple("costs: " + line for line in (*notes, *(costs.notes if costs is not None else ())))


def _is_record(name: str) -> bool:
    """True if a file is a record of a run, by its first bytes; False if it cannot be read."""
    try:
        with Path(name).open("rb") as file:
            return re.match(rb'\s*\{"format":\s*\d+,\s*"run":', file.read(100)) is not None
    except OSError:
        return False


def fit_maps(files: Sequence[str]) -> list[Costs]:
    """Fit measured maps: one `Costs` for each number of ranks, from all maps of that number.

    Raises Unsupported, with the file, for a map without measurements, and for maps of the same
    number of ranks that differ in transport or in pairs at once.
    """
    groups: dict[int, list[tuple[str, Topology]]] = {}
    for name in files:
        if _is_record(name):
            raise Unsupported(
                f"{name}: has the rows of a run; costs are fitted to a matrix of links: mpirun -n P"
                " busbar topology measure --sweep 16M -o MATRIX.json"
            )
        try:
            topology: Topology = gather([name])[0]
        except ProbeError as error:
            raise Unsupported(str(error)) from None
        groups.setdefault(len(topology.of(Kind.RANK)), []).append((name, topology))
    return [_together(maps) for _, maps in sorted(groups.items())]


def _together(maps: Sequence[tuple[str, Topology]]) -> Costs:
    (name, topology), *others = maps
    for other, again in others:
        for fact in ("transport", "pairs_at_once"):
            if again.get(fact) != topology.get(fact):
                what = f"{fact.replace('_', ' ')} {again.get(fact)}"
                raise Unsupported(f"{other}: {what}, but {topology.get(fact)} in {name}")
    try:
        costs = fit_map(topology, *(again for _, again in others))
    except (Unsupported, ValueError) as error:
        raise Unsupported(f"{name}: {error}") from None
    paths = [Path(one) for one, _ in maps]
    digests = [digest(path.read_bytes()) for path in paths if path.is_file()]
    return replace(costs, sources=tuple(digests))


LATENCY_US = 0.5
_BETWEEN = "network"  # what ports of hosts lead to


def network_from_file(name: str, latency_us: float = LATENCY_US, nranks: int = 0) -> Network:
    """The network of a file that ``busbar topology --from`` reads.

    Raises Unsupported for a file that cannot be read, or that has neither GPUs nor measured ranks.
    """
    try:
        return network_from_map(gather([name])[0], name, latency_us, nranks)
    except ProbeError as error:
        raise Unsupported(f"--machine {error}") from None


def network_from_map(
    topology: Topology, name: str = "map", latency_us: float = LATENCY_US, nranks: int = 0
) -> Network:
    """The network of a map: of its measured ranks, or else of its GPUs.

    GPU i is the place of rank i. Messages take `Topology.route`; a hop has the map's bandwidth in
    each direction, and ``latency_us``. Between measured ranks every pair has its own route with the
    measured latency and bandwidth; ranks of different hosts also share their hosts' ports
    (`_ports`). If both directions at once were measured to be slower than twice one, they share
    that bandwidth. A sweep of sizes in the map gives rates by the size of a rank's buffers (of just
    written messages, as in a collective) and the rate of additions, which are free without a sweep.
    For more ranks than places (``nranks``) there are copies of the map, see `_copied`. Raises
    Unsupported without ranks or GPUs.
    """
    ranks = tuple(device for device in topology.of(Kind.RANK) if _measured(topology, device))
    places = ranks or topology.gpus
    if ranks:
        network = _from_pairs(topology, ranks, name)
    elif topology.gpus:
        network = _from_routes(topology, topology.gpus, name, latency_us * 1e-6)
    if places:
        return network if nranks <= len(places) else _copied(topology, places, network, nranks)
    raise Unsupported(
        f"{name}: neither GPUs nor measured ranks to be the places of ranks; mpirun -n P busbar"
        " topology measure -o MAP.json measures ranks; collectives cost --topology takes cores, too"
    )


def _measured(topology: Topology, rank: Device) -> bool:
    return any(pair.a == rank.id and pair.fact.name == "bandwidth" for pair in topology.pairs)


class _Wires:
    """Collects links in the order in which routes use them, and the route of every pair."""

    def __init__(self, places: tuple[str, ...]) -> None:
        self.nodes = {id: number for number, id in enumerate(places)}
        self.numbers: dict[tuple[str, str, str], int] = {}
        self.columns: list[tuple[int, int, float, float]] = []
        self.routes: dict[tuple[int, int], list[int]] = {}

    def link(self, a: str, b: str, kind: str, rate: float, latency: float) -> int:
        """The number of a link, which is added if it is new."""
        if not (rate > 0 and isfinite(rate) and latency >= 0):
            raise Unsupported(
                f"between {a} and {b}: {rate:g} bytes/s and {latency:g} s are no link"
            )
        key = (a, b, kind)
        if key not in self.numbers:
            self.numbers[key] = len(self.columns)
            ends = (self.nodes.setdefault(id, len(self.nodes)) for id in (a, b))
            self.columns.append((*ends, rate, latency))  # type: ignore[arg-type]
        return self.numbers[key]

    def machine(self, name: str, nranks: int) -> Network:
        longest = max(map(len, self.routes.values()), default=0)
        table = np.full((nranks, nranks, longest), NO_LINK, np.int32)
        for pair, route in self.routes.items():
            table[pair][: len(route)] = route
        tail, head, rate, latency = np.array(self.columns, float).reshape(-1, 4).T
        links = Links(tail.astype(np.int32), head.astype(np.int32), rate, latency)
        names = tuple(self.nodes)
        return Network(name, nranks, len(names), links, table_router(table), names=names)


def _from_routes(
    topology: Topology, places: tuple[Device, ...], name: str, latency: float
) -> Network:
    wires = _Wires(tuple(device.id for device in places))
    for (i, a), (j, b) in permutations(enumerate(places), 2):
        wires.routes[i, j] = [
            wires.link(hop.a, hop.b, hop.kind, hop.bandwidth, latency)
            for hop in topology.route(a.id, b.id)
        ]
    return wires.machine(name, len(places))


def _number(topology: Topology, a: str, b: str, fact: str) -> float | None:
    value = topology.pair(a, b, fact)
    return float(value) if isinstance(value, int | float) else None


def _ports(topology: Topology, places: Sequence[Device]) -> dict[str, tuple[str, float]]:
    """Each rank's host, and the rate of its port: the greatest between it and another host.

    All messages between hosts share the ports at both ends.
    """
    host = {place.id: topology.ancestor(place.id, Kind.HOST) for place in places}
    most: dict[Device | None, float] = {}
    for a, b in permutations(places, 2):
        if host[a.id] != host[b.id]:
            rate = _number(topology, a.id, b.id, "bandwidth") or 0.0
            for end in (a, b):
                most[host[end.id]] = max(rate, most.get(host[end.id], 0.0))
    return {id: (home.id if home else "", most.get(home, 0.0)) for id, home in host.items()}


def _pairs_note(name: str, by_size: bool) -> str:
    """What the links of measured pairs are, and how ``collectives cost`` differs."""
    what = "times by size" if by_size else "latency and rate"
    other = "a fit of all" if by_size else "the medians"
    return f"{name}: each pair of ranks has its own measured {what}; collectives cost takes {other}"


def _from_pairs(topology: Topology, places: tuple[Device, ...], name: str) -> Network:
    wires, sweep = _Wires(tuple(device.id for device in places)), _Sweep(topology)
    # For each link, the pair that it connects, and the kind of measurement of its rate.
    measured: dict[int, _Timed] = {}
    ports = _ports(topology, places)
    for (i, a), (j, b) in permutations(enumerate(places), 2):
        rate = _number(topology, a.id, b.id, "bandwidth")
        delay = _number(topology, a.id, b.id, "latency")
        if rate is None or delay is None:
            raise Unsupported(f"{name}: nothing was measured from {a.id} to {b.id}")
        both = _number(topology, a.id, b.id, "bandwidth_both")
        pair = frozenset((a.id, b.id))
        wires.routes[i, j] = [wires.link(a.id, b.id, "", rate, delay)]
        measured[wires.routes[i, j][0]] = pair, "trip"
        if ports[a.id] != ports[b.id]:
            (out, sends), (into, takes) = ports[a.id], ports[b.id]
            wires.routes[i, j].append(wires.link(out, _BETWEEN, "", sends, 0.0))
            wires.routes[i, j].append(wires.link(_BETWEEN, into, "", takes, 0.0))
        if sweep.beta((pair, "swap"), 1.0) or (both is not None and both < 2 * rate):
            middle = f"{min(i, j)}|{max(i, j)}"
            shared = wires.link(middle, middle, "both", both or 2 * rate, 0.0)
            wires.routes[i, j].append(shared)
            measured[shared] = pair, "swap"
    network = replace(wires.machine(name, len(places)), notes=(_pairs_note(name, bool(sweep)),))
    if not sweep:
        return network
    measured_rates = network.links.rate

    def rates_at(nbytes: float) -> BufferDependentRates:
        rates = measured_rates.copy()
        for link, what in measured.items():
            beta = sweep.beta(what, nbytes)
            if beta is not None:
                rates[link] = (2.0 if what[1] == "swap" else 1.0) / beta
        return BufferDependentRates(rates, sweep.gamma(nbytes), sweep.weights(nbytes))

    return replace(network, rates_at=rates_at, gamma=sweep.gamma(np.inf))


def _copied(topology: Topology, places: Sequence[Device], one: Network, nranks: int) -> Network:
    """Copies of a network on one switch, as many as ``nranks`` ranks need.

    Between copies a message passes a link of its sender and one of its receiver, each with half of
    the latency and the whole rate that `resolve_costs` has for a network, and the ports of both
    hosts if there are any (`_ports`).
    """
    k, copies = len(places), -(-nranks // len(places))
    classes = rank_classes_of(topology)
    costs, sources = resolve_costs(classes, None, topology)
    source = sources[classes.across].partition(": ")[2]
    between = costs[classes.across].trip
    number = {name: node for node, name in enumerate(one.names)}
    switch = number.get(_BETWEEN, one.nnodes)
    # For each copy and node: its number. Ranks come first, the one switch last.
    rest = [node for node in range(k, one.nnodes) if node != switch]
    ranks, last = np.arange(copies * k), copies * (k + len(rest))
    nodes = np.full((copies, one.nnodes + 1), last)
    nodes[:, :k] = ranks.reshape(copies, k)
    nodes[:, rest] = np.arange(copies * k, last).reshape(copies, len(rest))
    # For each place: the node of its host's ports.
    homes = [number.get(home, switch) for home, _ in _ports(topology, places).values()]

    def rates(of_one: Amounts) -> Amounts:
        return np.append(np.tile(of_one, copies), np.full(2 * len(ranks), 1 / between.beta[-1]))

    known = one.rates_at

    def rates_at(nbytes: float) -> BufferDependentRates:
        assert known is not None
        measured = known(nbytes)
        return measured._replace(rate=rates(measured.rate))

    home = nodes[:, homes].ravel()
    tail = np.concatenate([nodes[:, one.links.tail].ravel(), ranks, home])
    head = np.concatenate([nodes[:, one.links.head].ravel(), home, ranks])
    delays = np.tile(one.links.latency, copies)
    latency = np.append(delays, np.full(2 * len(ranks), between.alpha[0] / 2))
    names = [_BETWEEN] * (last + 1)
    for copy, node in np.ndindex(copies, one.nnodes):
        if node != switch:
            names[nodes[copy, node]] = one.names[node] + (f" of copy {copy + 1}" if copy else "")
    note = f"{one.name} has {k} ranks; more ranks are on copies of it, and between copies: {source}"
    return replace(
        one,
        nranks=len(ranks),
        nnodes=last + 1,
        links=Links(tail.astype(np.int32), head.astype(np.int32), rates(one.links.rate), latency),
        router=_router_of_copies(one, copies, homes, switch),
        names=tuple(names),
        rates_at=None if known is None else rates_at,
        notes=(*one.notes, note),
    )


def _router_of_copies(one: Network, copies: int, homes: Sequence[int], switch: int) -> Router:
    """The router of `_copied`. ``homes``: for each place, the node of its host's ports.

    The links of all copies come first, then those out of ranks, then those into ranks.
    """
    k, nlinks = len(homes), len(one.links)
    out, into = copies * nlinks, copies * (nlinks + k)
    ends = list(zip(one.links.tail.tolist(), one.links.head.tolist(), strict=True))
    link = {pair: at for at, pair in enumerate(ends) if switch in pair}
    ports_out = np.array([link.get((home, switch), NO_LINK) for home in homes])
    ports_into = np.array([link.get((switch, home), NO_LINK) for home in homes])

    def router(src: Numbers, dst: Numbers) -> Ids:
        (a, i), (b, j) = np.divmod(src, k), np.divmod(dst, k)
        within = one.routes(i, j).table()
        within = np.where(within >= 0, within + nlinks * a[:, None], NO_LINK)
        leaving = np.where(ports_out[i] >= 0, ports_out[i] + nlinks * a, NO_LINK)
        entering = np.where(ports_into[j] >= 0, ports_into[j] + nlinks * b, NO_LINK)
        across = np.stack([out + src, leaving, entering, into + dst], axis=1)
        routes = np.full((len(src), max(within.shape[1], across.shape[1])), NO_LINK, np.int32)
        routes[:, : within.shape[1]] = within
        apart = a != b
        routes[apart] = NO_LINK
        routes[apart, : across.shape[1]] = across[apart]
        return close_gaps(routes)

    return router


# Two ranks, and the kind of measurement between them.
_Timed = tuple[frozenset[str], str]


class _Sweep:
    """Costs by buffer size from a map's sweep; false without a sweep.

    A message of m bytes was timed between buffers of m bytes that stay the same, so it tells the
    speed of memory for a collective with buffers of that size, whatever its messages are. Between
    sizes, seconds per byte are interpolated over the logarithm of the size; beyond the ends they
    are constant. Times of a pair hold for either direction.
    """

    def __init__(self, topology: Topology) -> None:
        self._times: dict[_Timed, dict[int, float]] = {}
        self._latency: dict[frozenset[str], float] = {}
        for one in swept(topology):
            pair = frozenset((one.a, one.b))
            self._times.setdefault((pair, one.quantity), {})[one.nbytes] = median(one.seconds)
            self._latency[pair] = _number(topology, one.a, one.b, "latency") or 0.0

    def __bool__(self) -> bool:
        return bool(self._times)

    def beta(self, what: _Timed, nbytes: float) -> float | None:
        """Seconds per byte, beyond the latency, of a message with buffers of ``nbytes`` bytes."""
        latency = self._latency.get(what[0], 0.0)
        times = self._times.get(what, {})
        each = {m: (t - latency) / m for m, t in times.items() if t > latency}
        return _interpolate(each, nbytes) if each else None

    def gamma(self, nbytes: float, add: str = "add", bare: str = "swap") -> float:
        """Seconds per byte to add a message, in addition to receiving it; the median over pairs.

        The time of a swap with additions minus that of one without; 0 if either was not timed.
        """
        costs = []
        for pair in self._latency:
            sums, swaps = (self._times.get((pair, kind), {}) for kind in (add, bare))
            each = {m: max(0.0, sums[m] - swaps[m]) / m for m in sums.keys() & swaps.keys()}
            costs += [_interpolate(each, nbytes)] if each else []
        return median(costs or [0.0])

    def weights(self, nbytes: float) -> Weights:
        """Relative times of data that no rank has written, and of sums that no other rank reads."""
        shares = []
        for pair in self._latency:
            still, swap = (self.beta((pair, kind), nbytes) for kind in ("still", "swap"))
            shares += [still / swap] if still and swap else []
        gamma = self.gamma(nbytes)
        timed = gamma and any(quantity == "sum" for _, quantity in self._times)
        calm = self.gamma(nbytes, "sum", "still") / gamma if timed else 1.0
        return Weights(min(1.0, median(shares or [1.0])), min(1.0, calm))


def _interpolate(each: Mapping[int, float], nbytes: float) -> float:
    sizes = sorted(each)
    return float(np.interp(np.log(nbytes), np.log(sizes), [each[size] for size in sizes]))
