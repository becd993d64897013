"""Completing a bare matrix to a tree, and the routes on it."""

from __future__ import annotations

from itertools import combinations, permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topology.model import rates
from topology.model.device import Fact
from topology.model.graph import complete
from topology.model.topology import Device, Kind, Level, PairFact, Topology
from topology.sources import nccl_xml, smi_topo

PLACES = st.lists(st.tuples(*(st.integers(0, 1) for _ in range(5))), min_size=1, max_size=8)
_BY_DEPTH = (Level.SYS, Level.NODE, Level.PHB, Level.PXB, Level.PIX, Level.PIX)


def _ultrametric(places: list[tuple[int, ...]]) -> Topology:
    """GPUs at random places of a tree of five levels, known by their pairwise levels only."""
    gpus = tuple(Device(f"GPU{n}", Kind.GPU, n) for n in range(len(places)))
    pairs = []
    for a, b in combinations(range(len(places)), 2):
        shared = next((n for n in range(5) if places[a][n] != places[b][n]), 5)
        pairs.append(PairFact(f"GPU{a}", f"GPU{b}", Fact("level", _BY_DEPTH[shared].name, "text")))
    return Topology(gpus, (), tuple(pairs), sources=("text",))


@given(PLACES)
def test_the_inferred_tree_says_what_was_stated(places: list[tuple[int, ...]]) -> None:
    """Rule: levels are an ultrametric, and the tree made of them gives back each of them."""
    stated = _ultrametric(places)
    tree = complete(stated)
    assert not tree.contradictions()
    for a, b in combinations([gpu.id for gpu in stated.gpus], 2):
        assert tree.tree_level(a, b) is stated.relation(a, b).level


@given(PLACES)
def test_routes_are_joined_hop_by_hop_and_reversible(places: list[tuple[int, ...]]) -> None:
    """Rule: each hop starts where the last one ended, and the way back crosses the same links."""
    topology = _ultrametric(places)
    for a, b in permutations([gpu.id for gpu in topology.gpus], 2):
        hops = topology.route(a, b)
        assert [hops[0].a, *(hop.b for hop in hops)] == [*(hop.a for hop in hops), b]
        assert hops[0].a == a
        assert [hop.link for hop in topology.route(b, a)] == [hop.link for hop in reversed(hops)]
        crosses = any(hop.kind == "cpu" for hop in hops)
        assert crosses == (topology.relation(a, b).level is Level.SYS)


@given(PLACES)
def test_nccl_xml_out_reads_back_to_the_same_levels(places: list[tuple[int, ...]]) -> None:
    """Rule: NCCL gets the machine that the matrix shows, PHB standing for NODE as in NCCL."""
    bare = _ultrametric(places)
    gpus = tuple(
        Device(gpu.id, Kind.GPU, gpu.index, busid=f"0000:{n:02x}:00.0")
        for n, gpu in enumerate(bare.gpus)
    )
    topology = Topology(gpus, (), bare.pairs, sources=bare.sources)
    back = nccl_xml.parse(nccl_xml.dump(topology))
    expected = tuple(
        tuple(cell.replace("NODE", "PHB") for cell in row) for row in topology.matrix()
    )
    assert back.matrix() == expected


def _matrix(rows: str) -> Topology:
    labels = [f"GPU{n}" for n in range(len(rows.split("\n")))]
    lines = [
        " ".join(labels),
        *(f"{a} {row}" for a, row in zip(labels, rows.split("\n"), strict=True)),
    ]
    return smi_topo.parse("\n".join(lines))


def test_shared_nvlinks_mean_a_switch_and_private_ones_do_not() -> None:
    """Rule: counts that add up to more links than a GPU has are one switch's, never many wires."""
    switched = complete(
        _matrix("X NV12 NV12 NV12\nNV12 X NV12 NV12\nNV12 NV12 X NV12\nNV12 NV12 NV12 X")
    )
    assert len(switched.of(Kind.SWITCH)) == 1
    assert {link.count for link in switched.links} == {12}
    direct = complete(_matrix("X NV6 NV6 NV6\nNV6 X NV6 NV6\nNV6 NV6 X NV6\nNV6 NV6 NV6 X"))
    assert not direct.of(Kind.SWITCH)
    assert len(direct.links) == 6


def test_islands_have_switches_of_their_own() -> None:
    """Rule: two NVLink islands do not become one, and the way between them is the tree's."""
    rows = ["X NV18 NV18 SYS SYS SYS", "NV18 X NV18 SYS SYS SYS", "NV18 NV18 X SYS SYS SYS"]
    rows += ["SYS SYS SYS X NV18 NV18", "SYS SYS SYS NV18 X NV18", "SYS SYS SYS NV18 NV18 X"]
    topology = _matrix("\n".join(rows))
    assert len(complete(topology).of(Kind.SWITCH)) == 2
    assert {hop.kind for hop in topology.route("GPU0", "GPU2")} == {"nvlink"}
    assert "nvlink" not in {hop.kind for hop in topology.route("GPU0", "GPU3")}


def test_bandwidths_are_those_nccl_plans_with() -> None:
    """Rule: width x rate / 80 for PCIe, counts times the generation's rate for NVLink."""
    assert rates.pcie(3, 16) == 12e9
    assert rates.pcie(4, 16) == 24e9
    assert rates.pcie(5, 8) == 24e9
    assert [rates.nvlink(sm) for sm in (60, 70, 80, 86, 90, 100)] == [
        18e9,
        20e9,
        20e9,
        12e9,
        20.6e9,
        40.1e9,
    ]
    assert rates.between_cpus("x86_64", "GenuineIntel", 6, 0x4F) == 6e9
    assert rates.between_cpus("x86_64", "GenuineIntel", 6, 0x55) == 10e9
    assert rates.between_cpus("x86_64", "GenuineIntel", 6, 0x8F) == 22e9
    assert rates.between_cpus("x86_64", "AuthenticAMD", 25, 1) == 16e9
    assert rates.between_cpus("ppc64", "", None, None) == 32e9
    assert rates.between_cpus("", "", None, None) is None


def test_a_bottleneck_is_the_slowest_hop_and_says_when_it_is_assumed() -> None:
    """Rule: NVLink pairs go by NVLink, others by the tree, and a bare matrix admits its guesses."""
    topology = _matrix("X NV2 SYS\nNV2 X SYS\nSYS SYS X")
    assert min(hop.bandwidth for hop in topology.route("GPU0", "GPU1")) == 40e9
    slow = min(topology.route("GPU0", "GPU2"), key=lambda hop: hop.bandwidth)
    assert (slow.kind, slow.assumed) == ("cpu", True)


def test_a_device_that_only_one_source_places_is_hung_beside_its_neighbour() -> None:
    """Rule: a matrix's NIC joins the tree that another source has of the GPUs."""
    xml = """<system version="1"><cpu numaid="0"><pci busid="0000:01:00.0" class="0x060400">
      <pci busid="0000:02:00.0" class="0x030200"/><pci busid="0000:03:00.0" class="0x030200"/>
      </pci></cpu></system>"""
    from topology.model.merge import merge

    text = "GPU0 GPU1 mlx5_0\nGPU0 X PIX PIX\nGPU1 PIX X PIX\nmlx5_0 PIX PIX X"
    merged = complete(merge([nccl_xml.parse(xml), smi_topo.parse(text)]))
    assert merged.device("NIC0").parent == "PCI:0000:01:00.0"


def test_a_route_to_a_numa_node_prefers_the_chip_to_chip_link() -> None:
    """Rule: on Grace-Hopper the CPU is reached over C2C, not PCIe."""
    xml = """<system version="1"><cpu numaid="0" arch="arm64">
      <pci busid="0009:01:00.0" class="0x030200" link_speed="16 GT/s" link_width="1">
      <gpu dev="0" sm="90"><c2c bw="44712" count="10"/></gpu></pci></cpu>
      <cpu numaid="1" arch="arm64"><pci busid="0019:01:00.0" class="0x030200">
      <gpu dev="1" sm="90"/></pci></cpu></system>"""
    topology = nccl_xml.parse(xml)
    (hop,) = topology.route("GPU0", "NUMA0")
    assert hop.kind == "c2c"
    assert hop.bandwidth == pytest.approx(447.12e9)
    assert [hop.kind for hop in topology.route("GPU0", "GPU1")] == ["c2c", "cpu", "pcie"]
