"""Several sources, one machine."""

from __future__ import annotations

import pytest

from busbar.errors import ProbeError
from topology.diagnostics import check
from topology.model.device import values_by_source
from topology.model.merge import merge
from topology.model.topology import Level, Topology
from topology.sources import bandwidth, hwloc, nccl_xml, smi_nvlink, smi_topo, smi_xml, sysfs

from . import texts


def _all() -> list[Topology]:
    return [
        smi_topo.parse(texts.TOPO),
        smi_xml.parse(texts.SMI_XML.replace("04:00.0", "83:00.0")),
        nccl_xml.parse(texts.NCCL_XML.replace("05:00.0", "04:00.0")),
        sysfs.parse(texts.SYSFS),
        bandwidth.parse(texts.P2P_TEST.replace("pciBusID: 4", "pciBusID: 83")),
        smi_nvlink.parse(texts.NVLINK),
    ]


@pytest.mark.parametrize("first", range(6))
def test_devices_are_joined_whatever_comes_first(first: int) -> None:
    """Rule: bus ids join GPUs; sources without them count in bus order.

    NICs join by name or bus id.
    """
    sources = _all()
    merged = merge(sources[first:] + sources[:first])
    assert [gpu.busid for gpu in merged.gpus] == ["0000:03:00.0", "0000:83:00.0"]
    assert [(nic.name, nic.busid) for nic in merged.nics if nic.name == "mlx5_0"] == [
        ("mlx5_0", "0000:04:00.0")
    ]
    assert {nic.name for nic in merged.nics} == {"mlx5_0", "mlx5_1", "eth0"}
    assert merged.relation("GPU0", "GPU1").nvlinks in (4, 18)
    assert merged.pair("GPU0", "GPU1", "bandwidth") == 20e9
    assert set(merged.sources) == {s for source in sources for s in source.sources}


def test_who_said_what_is_kept_and_contradictions_are_findings() -> None:
    """Rule: NVML's gen4 x16 against sysfs's x8 is reported, not resolved in silence."""
    smi = smi_xml.parse(texts.SMI_XML.replace("8x<", "16x<").replace("04:00.0", "83:00.0"))
    other = sysfs.parse(
        texts.SYSFS.replace(
            "0000:03:00.0/current_link_width:16", "0000:03:00.0/current_link_width:8"
        )
    )
    merged = merge([smi, other])
    facts = merged.device("GPU0").facts
    assert values_by_source(facts, "pcie_width") == {"nvidia-smi -q": 16, "sysfs": 8}
    assert merged.device("GPU0").get("pcie_width") == 16
    finding = next(f for f in check(merged) if f.code == "sources-contradict")
    assert "nvidia-smi -q says 16, sysfs says 8" in finding.evidence


def test_the_deeper_tree_wins_and_phb_agrees_with_node() -> None:
    """Rule: NCCL's PHB inside a NUMA node does not contradict NODE.

    Its tree gives way to sysfs's.
    """
    merged = merge(
        [nccl_xml.parse(texts.NCCL_XML.replace("05:00.0", "04:00.0")), sysfs.parse(texts.SYSFS)]
    )
    assert merged.device("GPU1").parent == "ROOT:0000:80"
    text = "GPU0 GPU1 mlx5_0\nGPU0 X SYS NODE\nGPU1 SYS X SYS\nmlx5_0 NODE SYS X"
    both = merge([smi_topo.parse(text), sysfs.parse(texts.SYSFS)])
    assert both.relation("GPU0", "NIC0").level is Level.NODE
    assert not [c for c in both.contradictions() if c.name == "level"]


def test_a_wrong_level_is_a_contradiction() -> None:
    """Rule: a matrix that another source's tree cannot give is reported with both."""
    text = "GPU0 GPU1\nGPU0 X PIX\nGPU1 PIX X"
    merged = merge([smi_topo.parse(text), sysfs.parse(texts.SYSFS)])
    (conflict,) = [c for c in merged.contradictions() if c.name == "level"]
    assert conflict.values["topo -m"] == "PIX"
    assert conflict.values["sysfs"] == "SYS"


def test_other_machines_are_refused() -> None:
    """Rule: a matrix with more GPUs than there are bus ids is of another machine."""
    three = "GPU0 GPU1 GPU2\nGPU0 X PIX PIX\nGPU1 PIX X PIX\nGPU2 PIX PIX X"
    with pytest.raises(ProbeError, match="not the same machine"):
        merge([smi_xml.parse(texts.SMI_XML), smi_topo.parse(three)])


def test_gpus_that_only_one_source_sees_are_kept() -> None:
    """Rule: nothing is lost: other bus ids are other GPUs, with numbers of their own."""
    merged = merge([sysfs.parse(texts.SYSFS), hwloc.parse(texts.HWLOC)])
    assert [gpu.busid for gpu in merged.gpus] == ["0000:03:00.0", "0000:83:00.0", "0000:00:03.0"]


def test_one_source_is_itself() -> None:
    """Rule: merging one source changes nothing, and a source with itself adds nothing."""
    topology = sysfs.parse(texts.SYSFS)
    assert merge([topology]) is topology
    twice = merge([topology, topology])
    assert twice.devices == topology.devices
    assert twice.links == topology.links
    assert not twice.contradictions()


def test_rounding_and_spelling_are_no_contradictions() -> None:
    """Rule: MiB against bytes, and NVIDIA's name before the model, are the same statement."""
    smi = smi_xml.parse(texts.SMI_XML.replace("04:00.0", "83:00.0"))
    other = bandwidth.parse(
        texts.P2P_TEST.replace("pciBusID: 4", "pciBusID: 83").replace("Some GPU", "A100")
    )
    assert not [c for c in merge([smi, other]).contradictions() if c.name == "model"]


def test_the_port_limits_the_generation() -> None:
    """Rule: sysfs states the device's own best; what counts is what device and port agree on."""
    text = texts.SYSFS.replace("00:01.0/max_link_speed:16.0", "00:01.0/max_link_speed:8.0")
    gpu = sysfs.parse(text).device("GPU0")
    assert (gpu.get("pcie_gen_device_max"), gpu.get("pcie_gen_max")) == (4, 3)
