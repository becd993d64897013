"""Machines drawn at random, written in each format: read = drawn, or a gap tells."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from busbar.cpulist import members
from busbar.errors import ProbeError
from tests.conftest import examples
from topology import diagnostics
from topology.exports import gres_conf
from topology.model.topology import Kind, Topology
from topology.placement.pick import pick
from topology.sources import hwloc, nccl_xml
from topology.views import terminal

from . import drawn, drawn_hwloc


def ends(topology: Topology) -> dict[str, str]:
    """Ids by what the machine calls its endpoints: a GPU by bus id, a NIC by name."""
    found = {str(gpu.busid): gpu.id for gpu in topology.gpus}
    return found | {nic.name: nic.id for nic in topology.nics}


def named(machine: drawn.Machine) -> dict[str, str]:
    """The bus id of each endpoint by what it is called; GPUs first, in the order of bus ids."""
    gpus = {card.functions[0]: card.functions[0] for card in machine.cards(drawn.GPU)}
    nics = [
        (n, f) for c in machine.cards(drawn.NIC) for n, f in zip(c.names, c.functions, strict=True)
    ]
    return gpus | dict(nics)


def check_cells(machine: drawn.Machine, topology: Topology, roots: bool = True) -> None:
    """Each pair is what the machine's paths say; without root complexes NODE is PHB."""
    called, ids = named(machine), ends(topology)
    assert ids.keys() == called.keys()
    for a, first in called.items():
        for b, second in called.items():
            want = "X" if a == b else machine.cell(first, second)
            want = "PHB" if want == "NODE" and not roots else want
            assert topology.relation(ids[a], ids[b]).text == want, (a, b)


@examples(120)
@given(st.data(), drawn.machines(), st.sampled_from([1, 2, 3]))
def test_hwloc_reads_what_was_drawn(
    data: st.DataObject, machine: drawn.Machine, version: int
) -> None:
    """Rule: packages, NUMA nodes, cores, GPUs, NICs, NVLinks of hwloc 1, 2, 3 are in the map."""
    topology = hwloc.parse(drawn_hwloc.hwloc(machine, version, data.draw))
    assert topology.gaps == ()
    assert len(topology.of(Kind.PACKAGE)) == len(machine.packages)
    assert len(topology.of(Kind.NUMA)) == len(machine.numas) + machine.far
    cores = [members(str(core.get("cpus"))) for core in topology.of(Kind.CORE)]
    assert sorted(cores, key=str) == sorted((c for n in machine.numas for c in n.cores), key=str)
    for package, numas in enumerate(machine.packages):
        for numa in numas:
            mine = topology.device(f"NUMA{numa.index}")
            assert members(str(mine.get("cpus"))) == [cpu for core in numa.cores for cpu in core]
            related = {device.id for device in topology.ancestors(mine.id)} | {
                device.id for device in topology.devices if mine in topology.ancestors(device.id)
            }
            assert f"PKG{package}" in related
            for core in topology.of(Kind.CORE):
                inside = set(members(str(core.get("cpus"))) or ()) <= {
                    c for m in numa.cores for c in m
                }
                assert (mine in topology.ancestors(core.id)) == inside
    for busid, path in machine.paths.items():
        device = next(device for device in topology.devices if device.busid == busid)
        home = topology.ancestor(device.id, Kind.NUMA)
        assert home is not None and f"N{home.index}" == path[1]
    if version == 1:  # it has no matrices of bandwidths
        machine.nvlinks = {}
    check_cells(machine, topology)


@examples(120)
@given(st.data(), drawn.machines())
def test_nccl_xml_reads_what_was_drawn(data: st.DataObject, machine: drawn.Machine) -> None:
    """Rule: NUMA nodes, GPUs, nets by their ``dev``, and NVLinks are in the map.

    Screens are told.
    """
    nets = [name for card in machine.cards(drawn.NIC) for name in card.names]
    numbers = data.draw(st.permutations(range(len(nets))))
    topology = nccl_xml.parse(drawn.nccl(machine, numbers))
    screens = machine.cards(drawn.SCREEN)
    assert sorted(gap.subject for gap in topology.gaps) == sorted(c.functions[0] for c in screens)
    for numa in machine.numas:
        cpus = [cpu for core in numa.cores for cpu in core]
        assert members(str(topology.device(f"NUMA{numa.index}").get("cpus"))) == cpus
    assert len(topology.of(Kind.NUMA)) == len(machine.numas)
    assert {nic.name: nic.index for nic in topology.nics} == dict(zip(nets, numbers, strict=True))
    check_cells(machine, topology, roots=False)


def hwloc_of(inside: str, version: str = "2.0", after: str = "") -> Topology:
    """A file with one Machine of eight CPUs."""
    text = f'<topology version="{version}"><object type="Machine" cpuset="0xff">{inside}</object>'
    return hwloc.parse(f"{text}{after}</topology>")


def told(topology: Topology, subject: str, words: str) -> bool:
    """Whether a gap speaks of this."""
    return any(gap.subject == subject and words in gap.reason for gap in topology.gaps)


def test_an_object_that_the_walk_loses_is_counted() -> None:
    """Rule: the file's devices are counted apart from their reading; what is missing is told."""
    device = (
        '<object type="PCIDev" pci_busid="0000:0{}:00.0" pci_type="0302 [10de:20b0] [0:0] 00"/>'
    )
    topology = hwloc_of(device.format(1) + f'<object type="OSDev">{device.format(2)}</object>')
    assert len(topology.gpus) == 2
    twice = hwloc_of(device.format(1) * 2)
    assert [gap.subject for gap in twice.lost] == ["gpu"] and told(twice, "gpu", "2 in the text, 1")
    assert "gpu: 2 in the text" in terminal.findings_text(twice, [])
    assert told(hwloc_of('<object type="Quark"/>'), "objects", "unknown here")


def test_interfaces_make_a_nic_whatever_the_class() -> None:
    """Rule: InfiniBand adapters of class 0c06 are NICs.

    An interface without a PCI device is told.
    """
    name = '<object type="OSDev" name="{}" osdev_type="3"/>'
    card = (
        f'<object type="PCIDev" pci_busid="0000:01:00.0" pci_type="0c06 [15b3:6746] [0:0] '
        f'00">{name}</object>'
    )
    topology = hwloc_of(card.format("mlx4_0") + name.format("hsn0"))
    assert [nic.name for nic in topology.nics] == ["mlx4_0"]
    assert told(topology, "interfaces", "hsn0")


def matrix(name: str, values: str, indexes: str = "4 6", kind: int = 9) -> str:
    """A matrix between the two GPUs of ``two_gpus``."""
    size = len(indexes.split())
    return (
        f'<distances2 type="OSDev" nbobjs="{size}" kind="{kind}" name="{name}" indexing="gp">'
        f"<indexes>{indexes}</indexes><u64values>{values}</u64values></distances2>"
    )


TWO_GPUS = "".join(
    f'<object type="PCIDev" gp_index="{gp}" pci_busid="0000:0{gp}:00.0" pci_type="{kind} [0:0] 00">'
    f'<object type="OSDev" gp_index="{gp + 1}" name="x" osdev_type="1"/></object>'
    for gp, kind in ((3, "0302 [10de:2901]"), (5, "0302 [10de:2901]"))
)


@pytest.mark.parametrize(
    ("values", "links", "rate"),
    [
        ("0 20000 20000 0", 1, 20e9),
        ("1000000 50000 50000 1000000", 2, 25e9),
        ("1000000 900000 900000 1000000", 18, 50e9),
        ("0 40000 20000 0", 1, 20e9),
        ("0 0 0 0", 0, 0),
    ],
)
def test_bandwidths_become_links(values: str, links: int, rate: float) -> None:
    """Rule: NVLinkBandwidth is a number of links of a version.

    A pair that differs both ways is told.
    """
    topology = hwloc_of(TWO_GPUS, after=matrix("NVLinkBandwidth", values))
    assert topology.relation("GPU0", "GPU1").text == (f"NV{links}" if links else "PIX") or not links
    assert [(link.count, link.rate) for link in topology.links] == [(links, rate)] * bool(links)
    assert bool(topology.gaps) == ("40000 20000" in values)
    if links:
        assert topology.route("GPU0", "GPU1")[0].bandwidth >= 0.8 * links * rate


@pytest.mark.parametrize(
    ("model", "rate"), [("NVIDIA A100-SXM4-40GB", 25e9), ("NVIDIA B200", 50e9), ("", 50e9)]
)
def test_nvlinks_that_older_hwloc_doubled(model: str, rate: float) -> None:
    """Rule: 12 links of an A100 at 50 GB/s are 12 at 25, and that is told; Blackwell has 50."""
    info = f'<info name="GPUModel" value="{model}"/>' if model else ""
    gpus = TWO_GPUS.replace('osdev_type="1"/>', f'osdev_type="1">{info}</object>')
    topology = hwloc_of(gpus, after=matrix("NVLinkBandwidth", "0 600000 600000 0"))
    (link,) = topology.links
    assert (link.count, link.rate) == (12, rate)
    assert any("halved" in gap.reason for gap in topology.gaps) == (rate == 25e9)


def test_matrices_that_no_links_come_of_are_told() -> None:
    """Rule: what a matrix states of other objects, or of a kind not read, is a gap.

    A ragged one an error.
    """
    strange = hwloc_of(TWO_GPUS, after=matrix("NVLinkBandwidth", "0 25000 25000 0", "4 99"))
    assert not strange.links and told(strange, "links", "1 pair of other objects")
    assert told(hwloc_of(TWO_GPUS, after=matrix("XeLinkBandwidth", "0 5 5 0")), "links", "1 pair")
    both = matrix("XGMIBandwidth", "0 100000 100000 0") + matrix("XGMIHops", "0 2 2 0", kind=5)
    assert not hwloc_of(TWO_GPUS, after=both).links
    one = hwloc_of(TWO_GPUS, after=matrix("XGMIBandwidth", "0 100000 100000 0"))
    assert one.nvlinks("GPU0", "GPU1") == 1 and told(one, "links", "does not count them")
    for values in ("0 1 1", "0 x 1 0", "0 1 1 0 0"):
        with pytest.raises(ProbeError, match="a matrix"):
            hwloc_of(TWO_GPUS, after=matrix("NVLinkBandwidth", values))


def test_nvlinks_that_two_gpus_count_differently_are_told() -> None:
    """Rule: neither statement is believed for more than the other; the lower counts."""
    gpu = (
        '<pci busid="0000:0{}:00.0" class="0x030200"><gpu dev="{}" sm="80">'
        '<nvlink target="0000:0{}:00.0" count="{}" tclass="0x030200"/></gpu></pci>'
    )
    cards = gpu.format(1, 0, 2, 4) + gpu.format(2, 1, 1, 2)
    topology = nccl_xml.parse(f'<system><cpu numaid="0">{cards}</cpu></system>')
    assert topology.nvlinks("GPU0", "GPU1") == 2
    assert told(topology, "GPU0 and GPU1", "GPU0 states 4 to GPU1, which states 2")


def test_nodes_of_an_nvlink_domain_may_have_the_same_bus_ids() -> None:
    """Rule: what NCCL fused of several hosts is read as such: bus ids are those of one host."""
    card = (
        '<pci busid="000{0}:01:00.0" class="0x030200"><gpu dev="{0}" sm="100"><nvlink target='
        '"fffffff:ff:ff.0" count="18" tclass="0x068000"/><c2c bw="44712" count="5"/></gpu></pci>'
        '<pci busid="000{0}:03:00.0" class="0x020700"><nic><net name="mlx5_{0}" dev="{0}"/></nic>'
        "</pci>"
    )
    cpu = '<cpu host_hash="{}" numaid="0" arch="arm64">{}</cpu>'
    hosts = "".join(cpu.format(h, card.format(1) + card.format(0)) for h in ("0xa", "0xb", "0xc"))
    topology = nccl_xml.parse(f"<system>{hosts}</system>")
    buses = ["0000:01:00.0", "0001:01:00.0"]
    assert [(g.id, g.busid) for g in topology.gpus] == [(f"GPU{n}", buses[n % 2]) for n in range(6)]
    assert {topology.nvlinks(f"GPU{a}", f"GPU{b}") for a in range(6) for b in range(a)} == {18}
    nics = [[nic.id for nic in topology.nics if nic.parent == f"NUMA0{h}"] for h in ("", "@HOST1")]
    assert {topology.relation("GPU0", nic).text for nic in nics[0]} == {"PHB"}
    assert {topology.relation("GPU0", nic).text for nic in nics[1]} == {"?"}
    assert topology.relation(nics[0][0], nics[1][0]).text == "?"
    for wants_one in (lambda: pick(topology, 2), lambda: gres_conf(topology)):
        with pytest.raises(ProbeError, match="GPUs of 3 hosts"):
            wants_one()


@pytest.mark.parametrize("sm", [100, 89])
def test_a_gpu_without_the_links_of_its_kind_is_found(sm: int) -> None:
    """Rule: NCCL leaves out links that are down; a GPU of another kind may have none."""
    link = '<nvlink target="fffffff:ff:ff.0" count="18" tclass="0x068000"/>'
    card = '<pci busid="000{0}:01:00.0" class="0x030200"><gpu dev="{0}" sm="{1}">{2}</gpu></pci>'
    cards = card.format(0, 100, link) + card.format(1, 100, link) + card.format(2, sm, "")
    found = diagnostics.nvlinks(nccl_xml.parse(f'<system><cpu numaid="0">{cards}</cpu></system>'))
    assert [f.subjects for f in found] == ([("GPU2",)] if sm == 100 else [])


def test_ranks_that_share_a_gpu_state_its_links_once() -> None:
    """Rule: several <gpu> of one card, as of a split GPU, do not add up its links."""
    part = (
        '<gpu dev="0" sm="107" mlopart="{}" rank="{}"><nvlink target="fffffff:ff:ff.0" count="36"'
        ' tclass="0x068000"/><c2c bw="56376" count="7"/></gpu>'
    )
    card = (
        f'<pci busid="0002:81:00.0" class="0x030200">{part.format(0, 0) + part.format(1, 1)}</pci>'
    )
    topology = nccl_xml.parse(f'<system><cpu numaid="0">{card}</cpu></system>')
    assert [link.count for link in topology.links] == [7, 36]
    assert told(topology, "gpu", "2 in the text, 1 in the map")


def test_nccl_files_as_people_write_them() -> None:
    """Rule: a bridge may hold devices and nets, a screen is no GPU, unknown elements are told."""
    bridge = (
        '<pci busid="0000:01:00.0" class="0x060400">{}<nic><net name="efa0" dev="7"/></nic></pci>'
    )
    gpus = (
        '<pci busid="0000:02:00.0" class="0x030200"/><pci busid="0000:03:00.0" class="0x030000"/>'
    )
    xml = f'<system><cpu numaid="0">{bridge.format(gpus)}<pcilink/></cpu></system>'
    topology = nccl_xml.parse(xml)
    assert [gpu.busid for gpu in topology.gpus] == ["0000:02:00.0"]
    assert [(nic.id, nic.name) for nic in topology.nics] == [("NIC7", "efa0")]
    assert topology.relation("GPU0", "NIC7").text == "PIX"
    assert told(topology, "0000:03:00.0", "unknown make") and told(topology, "elements", "not read")
    alone = xml.replace("0x030200", "0x030000")
    assert len(nccl_xml.parse(alone).gpus) == 2
