"""`Costs` from the file of `topology measure`: a curve for each link class and exchange."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median

import numpy as np

from busbar.cpulist import members
from busbar.errors import Unsupported
from collectives.model.costs import Costs, Curve, LinkCosts
from collectives.model.fitting import fit
from collectives.model.machine import Classes
from collectives.model.shm.curves import shared
from topology.measured.matrix import matrix
from topology.measured.sweep import SMALLEST, SWEPT, Swept, first, swept
from topology.model.topology import Kind, Topology

_ABOUT = ("mpi_library", "mpi_threads", "transport", "kernel", "arch")


def costs_of(topology: Topology, source: str = "", *again: Topology) -> Costs:
    """The costs that a measured map gives; ``source``: SHA-256 of its file, to be remembered.

    Fitted on its sweep; a map without one gives the line through its latency and bandwidth, with a
    note. ``again``: maps of the same ranks, measured again; their sweeps are further blocks. Raises
    Unsupported where nothing was measured between ranks.
    """
    sweep = [one for each in (topology, *again) for one in swept(each)]
    notes: list[str] = []
    if sweep:
        links = _fitted(topology, sweep)
    else:
        links = two_points(topology)
        notes.append(
            "no sweep of sizes: lines through one latency and one bandwidth, additions taken "
            "as free"
            " (measure again with --sweep 16M)"
        )
    if not links:
        raise Unsupported("nothing was measured between ranks in it; see topology measure --sweep")
    ranks, find = topology.of(Kind.RANK), Classes(topology)
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
        (source,) if source else (),
        tuple(notes),
        about,
        tuple(tuple("" if a == b else find.of(a, b) for b in ranks) for a in ranks),
        tuple(one[0] for one in each) if all(len(one) == 1 for one in each) else (),
    )


def _cpus(topology: Topology) -> list[Sequence[int]]:
    """The CPUs that each rank might run on."""
    ranks = topology.of(Kind.RANK)
    return [members(str(rank.get("cpu_affinity") or "")) or () for rank in ranks]


def _start(links: Mapping[str, LinkCosts], behind: Sequence[float]) -> float:
    """The extra time of a swap behind a barrier over one that follows another swap."""
    if not behind:
        return 0.0
    return max(0.0, median(behind) - min(float(link.swap(SMALLEST)) for link in links.values()))


def _fitted(topology: Topology, sweep: Sequence[Swept]) -> dict[str, LinkCosts]:
    find = Classes(topology)
    groups: dict[str, dict[str, list[Swept]]] = defaultdict(lambda: defaultdict(list))
    for one in sweep:
        name = find.of(topology.device(one.a), topology.device(one.b))
        groups[name][one.quantity].append(one)
    ranks = topology.of(Kind.RANK)
    said = f"fitted on {topology.get('transport') or 'measured'} between {len(ranks)} ranks"
    links = {name: _link(kinds, said) for name, kinds in groups.items() if kinds.keys() & _ONE}
    if topology.get("transport") == "shm":
        cpus = {cpu for one in _cpus(topology) for cpu in one}
        size = len(ranks), len(cpus) or len(ranks)
        links = {
            name: replace(link, shared=shared(groups[name], _curve, *size))
            for name, link in links.items()
        }
    return links


_ONE = {"trip", "swap"}
KINDS = SWEPT.keys() - {"first"}


def _link(kinds: Mapping[str, Sequence[Swept]], said: str) -> LinkCosts:
    """The costs of one class; a kind that was not measured is taken as the nearest that was."""
    found = {kind: _curve(samples) for kind, samples in kinds.items()}
    trip = found.get("trip") or found["swap"]
    swap = found.get("swap") or trip
    missing = sorted(KINDS - found.keys())
    said += f"; not measured: {', '.join(missing)}" if missing else ""
    rest = found.get("burst"), said, found.get("still"), found.get("sum")
    return LinkCosts(trip, swap, found.get("add") or swap, *rest)


def _curve(samples: Sequence[Swept]) -> Curve:
    """The fit through all pairs of a class, each pair's block being one block of the bootstrap."""
    sizes = sorted({one.nbytes for one in samples})
    blocks: dict[tuple[str, str], dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for one in samples:
        blocks[one.a, one.b][one.nbytes] += one.seconds
    most = max(len(times) for pair in blocks.values() for times in pair.values())
    table = np.full((len(blocks), most, len(sizes)), np.nan)
    for row, pair in enumerate(blocks.values()):
        for nbytes, times in pair.items():
            table[row, : len(times), sizes.index(nbytes)] = times
    return fit(sizes, table.reshape(-1, len(sizes)))


def two_points(topology: Topology) -> dict[str, LinkCosts]:
    """Lines through the median latency and bandwidth of each class's pairs; perhaps none.

    Where both directions at once were measured, that is the swap.
    """
    find = Classes(topology)
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
        said = "measured latency and bandwidth of one size"
        links[kind] = LinkCosts(Curve.line(alpha, beta), swap, swap, None, said)
    return links
