"""Measurements between ranks as a map that can be saved, read with --from and merged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import MappingProxyType

from bench.links.measuring import Measured, Settings
from topology.measured import sweep
from topology.measured.matrix import QUANTITIES, RankPlace
from topology.measured.sweep import Samples
from topology.model.topology import Device, Fact, Kind, PairFact, Topology

SOURCE = "measured"


def as_topology(
    measured: Measured, settings: Settings, samples: Samples = MappingProxyType({})
) -> Topology:
    """Ranks as devices RANK0, …, below their NUMA node or host, and the matrices between them.

    With one host its id is HOST and its NUMA nodes are NUMA0, …, as sysfs has them, so that a map
    of the host merges with it. ``samples``: what `bench.links.sweep` found, if anything.
    """
    hosts = list(dict.fromkeys(place.host for place in measured.places))
    only = len(hosts) == 1
    devices: dict[str, Device] = {}
    for rank, place in enumerate(measured.places):
        number = hosts.index(place.host)
        host = "HOST" if only else f"HOST{number}"
        devices.setdefault(host, Device(host, Kind.HOST, name=place.host))
        parent = host
        if place.numa is not None:
            parent = f"NUMA{place.numa}{'' if only else f'@{host}'}"
            devices.setdefault(parent, Device(parent, Kind.NUMA, place.numa, parent=host))
        near = (Fact("cpu_affinity", place.cpus, SOURCE),) if place.cpus else ()
        id = f"RANK{rank}"
        devices[id] = Device(id, Kind.RANK, rank, parent=parent, facts=near)
    pairs = [
        PairFact(f"RANK{a}", f"RANK{b}", Fact(f"{name}{part}", value, SOURCE))
        for name in QUANTITIES
        for (a, b), cell in measured.cells[name].items()
        for part, value in (("", cell.value), ("_low", cell.low), ("_high", cell.high))
    ]
    swept, machine = sweep.facts(samples, SOURCE)
    facts = (
        Fact("mpi_library", measured.library, SOURCE),
        *([Fact("mpi_threads", measured.threads, SOURCE)] if measured.threads else ()),
        Fact("transport", settings.transport, SOURCE),
        Fact("message_bytes", settings.nbytes, SOURCE),
        Fact("repetitions", settings.repetitions, SOURCE),
        Fact("pairs_at_once", measured.at_once, SOURCE),
        *machine,
    )
    return Topology(tuple(devices.values()), (), (*pairs, *swept), facts, (), (SOURCE,))


def with_racks(
    measured: Topology, places: Sequence[RankPlace], racks: Sequence[Sequence[int]]
) -> Topology:
    """A map with which hosts share an uplink; ``racks``: the first ranks of their hosts."""
    said = "; ".join(" ".join(places[rank].host for rank in rack) for rack in racks)
    fact = Fact("racks", said or "none told apart", SOURCE)
    return replace(measured, facts=(*measured.facts, fact))
