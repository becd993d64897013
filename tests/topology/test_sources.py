"""What each structured format says, from small texts of our own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from busbar import cpulist, files
from busbar.errors import ProbeError
from topology.model.merge import merge
from topology.model.topology import Kind, Level, Topology
from topology.sources import bandwidth, gather, hwloc, nccl_xml, smi_xml, sysfs

from . import texts


def test_every_format_is_recognised_by_its_content() -> None:
    """Rule: no text has to be announced; a prompt or log line before it does not matter."""
    for name, text in texts.VALID:
        assert gather.recognise(text) == (name,)
        assert gather.recognise(f"user@host:~$ cat file\n{text}") == (name,)


def test_a_report_of_several_sections_is_one_machine() -> None:
    """Rule: nvidia-smi -L, topo -m, topo -p2p r and nvlink -s in one file are read together."""
    topology = gather.parse(f"$ nvidia-smi topo -m\n{texts.TOPO}\n{texts.P2P}\n{texts.NVLINK}")
    assert topology.sources == ("topo -m", "topo -p2p", "nvlink")
    assert topology.relation("GPU0", "GPU1").text == "NV4"
    assert topology.pair("GPU0", "GPU1", "p2p_read") == "CNS"
    assert topology.device("GPU0").get("nvlinks_down") == (1,)


def test_prose_beside_a_matrix_is_no_section() -> None:
    """Rule: a health log's words do not make a matrix of another kind."""
    assert gather.recognise("GPU0 OK\nGPU1 NS\n" + texts.TOPO) == ("smi_topo",)


@pytest.mark.parametrize("text", ["", "hello", "{}", "<html></html>", "GPU0"])
def test_what_is_no_format_is_refused_with_the_formats_there_are(text: str) -> None:
    """Rule: the message says what would have been understood."""
    with pytest.raises(ProbeError, match="nvidia-smi topo -m"):
        gather.parse(text)


def test_smi_xml_states_facts_in_our_units() -> None:
    """Rule: MiB, MHz, W and counters of several places become bytes, Hz, W and sums."""
    topology = smi_xml.parse(texts.SMI_XML)
    gpu = topology.device("GPU0")
    assert (gpu.busid, gpu.uuid, gpu.name) == ("0000:03:00.0", "GPU-0", "NVIDIA A100")
    expected = {
        "pcie_gen": 1, "pcie_gen_max": 4, "pcie_width": 8, "pcie_width_max": 16,
        "memory": 40960 * 2**20,
        "clock_memory_max_hz": 1.215e9, "power_w": 61.5, "power_limit_w": 200,
        "power_default_w": 400, "ecc": True,
        "ecc_corrected": 7, "ecc_uncorrected": 3, "throttle": ("hw_thermal_slowdown",),
        "idle": False, "mig": True,
        "processes": 1, "pci_device": "0x20b2", "vendor": "0x10de",
    }  # fmt: skip
    assert {name: gpu.get(name) for name in expected} == expected
    assert topology.device("GPU0/MIG0").get("memory") == 2**30
    assert ("GPU1", "pcie_gen", "N/A") in {(g.subject, g.call, g.reason) for g in topology.gaps}
    assert topology.device("GPU1").get("sm") is None


def test_nccl_xml_is_read_with_its_switches_ports_and_virtual_nics() -> None:
    """Rule: a net is a NIC, ports of a card are PIX, a NIC without card hangs on its CPU.

    Links to several NVSwitches add up.
    """
    topology = nccl_xml.parse(texts.NCCL_XML)
    assert [nic.name for nic in topology.nics] == ["mlx5_0", "mlx5_1", "eth0"]
    assert topology.relation("NIC0", "NIC1").level is Level.PIX
    assert topology.relation("GPU0", "NIC1").level is Level.PIX
    assert topology.relation("GPU1", "NIC2").level is Level.PHB
    assert topology.relation("GPU0", "GPU1").text == "NV18"
    assert topology.device("NIC0").get("net_rate") == 50e9
    assert topology.device("NUMA1").get("cpus") == "16-31"
    assert topology.device("GPU1").get("pcie_gen_max") is None


def test_nccl_xml_survives_the_way_out_and_back() -> None:
    """Rule: what NCCL_TOPO_FILE gets from us is the machine that we read."""
    topology = nccl_xml.parse(texts.NCCL_XML)
    back = nccl_xml.parse(nccl_xml.dump(topology))
    assert back.matrix() == topology.matrix()
    for device in (*topology.endpoints, *topology.of(Kind.NUMA)):
        same = back.device(device.id)
        kept = "sm pcie_gen_max pcie_width_max net_rate cpus cpu_model gdr"
        for fact in kept.split():
            assert same.get(fact) == device.get(fact), (device.id, fact)


def test_switches_always_have_the_attributes_that_nccl_insists_on() -> None:
    """Rule: a switch of unknown speed is written as cloud files do, not without the attribute."""
    matrix = "GPU0 GPU1\nGPU0 X PIX\nGPU1 PIX X\n"
    both = merge([smi_xml.parse(texts.SMI_XML), gather.parse(matrix)])
    written = nccl_xml.dump(both)
    assert 'class="0x060400" link_speed="" link_width="0"' in written
    assert nccl_xml.parse(written).relation("GPU0", "GPU1").level is Level.PIX


def test_gpus_are_numbered_by_bus_id_where_nccl_does_not_number_them() -> None:
    """Rule: minimal cloud files list GPUs by NUMA node; NVML numbers them by bus id."""
    xml = """<system><cpu numaid="0"><pci busid="0003:00:00.0" class="0x030200"/></cpu>
      <cpu numaid="1"><pci busid="0001:00:00.0" class="0x030200"/></cpu></system>"""
    assert [gpu.busid for gpu in nccl_xml.parse(xml).gpus] == ["0001:00:00.0", "0003:00:00.0"]


@pytest.mark.parametrize(
    ("xml", "line", "reason"),
    [
        (
            "<system>\n<cpu numaid='0'>\n<pci busid='nonsense'/></cpu></system>",
            3,
            "busid='nonsense'",
        ),
        ("<system>\n<cpu numaid='x'/></system>", 2, "no number"),
        (f"<system>\n<cpu numaid='{1 << 63}'/></system>", 2, "no number of 64 bits"),
        (f"<system>\n<cpu numaid='1{'0' * 40}'/></system>", 2, "no number of 64 bits"),
        ("<system version='9'/>", 1, "version '9'"),
        ("\n\n<graphs version='1'/>", 3, "graph dump"),
        ("<system>\n<cpu></system>", 2, "not well-formed"),
    ],
)
def test_nccl_xml_that_is_wrong(xml: str, line: int, reason: str) -> None:
    """Rule: the line and the reason are named."""
    with pytest.raises(ProbeError, match=reason) as caught:
        nccl_xml.parse(xml)
    assert caught.value.line == line


def test_hwloc_gives_caches_ports_and_facts() -> None:
    """Rule: memory hangs beside its caches, and a GPU knows its port; `test_drawn` has the tree."""
    topology = hwloc.parse(texts.HWLOC)
    above = [device.id for device in topology.ancestors("CORE0")]
    assert above == ["L3:0", "NUMA0", "PKG0", "HOST"]
    assert topology.device("L3:0").get("size") == 32 * 2**20
    assert topology.get("vendor") == "AuthenticAMD"
    assert topology.device("GPU1").get("port_busid") == "0000:02:01.0"


def test_sysfs_gives_links_numa_nics_and_iommu() -> None:
    """Rule: speeds are generations, ports are compared, RDMA names come first."""
    topology = sysfs.parse(texts.SYSFS)
    gpu = topology.device("GPU0")
    expected = {
        "pcie_gen": 1,
        "pcie_gen_max": 4,
        "port_gen_max": 4,
        "port_busid": "0000:00:01.0",
        "iommu": "DMA-FQ",
    }
    assert {name: gpu.get(name) for name in expected} == expected
    assert topology.device("NIC0").name == "mlx5_0"
    assert topology.device("NIC0").get("net_names") == ("mlx5_0", "eth0")
    assert topology.device("NIC0").get("net_rate") == 12.5e9
    assert topology.relation("GPU0", "NIC0").level is Level.PHB
    assert topology.relation("GPU0", "GPU1").level is Level.SYS
    assert topology.pair("NUMA0", "NUMA1", "numa_distance") == 21
    assert topology.get("iommu") == "on"
    assert len(topology.of(Kind.CORE)) == 2
    # Sapphire Rapids by family and model: what NCCL plans between its sockets.
    assert min(hop.bandwidth for hop in topology.route("NUMA0", "NUMA1")) == 22e9


def _write(root: Path, path: str, value: str) -> None:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(value + "\n")


def _config(control: int) -> bytes:
    """PCI configuration space with an AER and an ACS capability in its extended part."""
    space = bytearray(4096)
    space[0x100:0x104] = (0x0001 | 1 << 16 | 0x148 << 20).to_bytes(4, "little")
    space[0x148:0x14C] = (0x000D | 1 << 16).to_bytes(4, "little")
    space[0x14E:0x150] = control.to_bytes(2, "little")
    return bytes(space)


@pytest.mark.parametrize(
    ("control", "redirects"), [(0x0000, False), (0x001D, True), (0x0001, False)]
)
def test_sysfs_reads_a_machine_below_any_root(
    tmp_path: Path, control: int, redirects: bool
) -> None:
    """Rule: read() looks at files only below its root, and finds ACS in configuration space."""
    port = "sys/devices/pci0000:00/0000:00:01.0"
    for path, value in {
        f"{port}/class": "0x060400",
        f"{port}/max_link_width": "8",
        f"{port}/0000:03:00.0/class": "0x030200",
        f"{port}/0000:03:00.0/vendor": "0x10de",
        f"{port}/0000:03:00.0/numa_node": "-1",
        f"{port}/0000:03:00.0/max_link_width": "16",
        f"{port}/0000:03:00.0/current_link_width": "8",
        f"{port}/0000:03:00.0/current_link_speed": "Unknown",
        "sys/devices/system/node/node0/cpulist": "0-1",
        "sys/devices/pci0000:00/0000:00:02.0/class": "0x020000",
        "sys/devices/pci0000:00/0000:00:02.0/virtio0/net/eth0/speed": "-1",
        "proc/cpuinfo": (
            "vendor_id\t: AuthenticAMD\ncpu family\t: 25\nmodel\t\t: 1\nmodel name\t: EPYC\n"
            "flags\t\t: fpu vme hypervisor lahf_lm"
        ),
    }.items():
        _write(tmp_path, path, value)
    (tmp_path / port / "config").write_bytes(_config(control))
    topology = sysfs.read(tmp_path)
    gpu = topology.device("GPU0")
    assert (gpu.get("port_acs"), gpu.get("port_width_max"), gpu.get("pcie_gen")) == (
        redirects,
        8,
        None,
    )
    assert topology.ancestor("GPU0", Kind.NUMA) is not None
    assert topology.nics[0].name == "eth0"
    assert topology.nics[0].get("net_rate") is None
    assert topology.get("iommu") == "off"
    assert topology.get("vendor") == "AuthenticAMD"
    assert topology.get("hypervisor") is True


def test_a_machine_without_gpus_has_a_topology(tmp_path: Path) -> None:
    """Rule: CPUs and memory alone are a map; no sysfs at all is a sentence."""
    _write(tmp_path, "sys/devices/system/node/node0/cpulist", "0-1")
    topology = sysfs.read(tmp_path)
    assert topology.matrix() == ()
    assert topology.device("NUMA0").get("cpus") == "0-1"
    with pytest.raises(ProbeError, match="no Linux"):
        sysfs.read(tmp_path / "absent")


def test_measured_matrices_are_directed_and_joined_by_bus_id() -> None:
    """Rule: cells go from row to column, or as the arrow says.

    The GPUs' latencies, not the CPU's.
    """
    cuda = bandwidth.parse(texts.P2P_TEST)
    assert cuda.device("GPU1").busid == "0000:04:00.0"
    assert cuda.pair("GPU0", "GPU1", "bandwidth") == 20e9
    assert cuda.pair("GPU1", "GPU0", "bandwidth") == 21e9
    assert cuda.pair("GPU1", "GPU0", "bandwidth_no_p2p") == 9.1e9
    assert cuda.pair("GPU0", "GPU1", "latency") == pytest.approx(1.5e-6)
    assert (cuda.pair("GPU0", "GPU1", "p2p_access"), cuda.pair("GPU1", "GPU0", "p2p_access")) == (
        True,
        False,
    )
    assert cuda.device("GPU0").get("copy_rate") == 720e9
    text = bandwidth.parse(texts.NVBANDWIDTH)
    assert text.pair("GPU1", "GPU0", "bandwidth") == 276e9
    assert text.device("GPU1").get("host_to_device") == 54e9
    assert bandwidth.parse(texts.NVBANDWIDTH_JSON).pair("GPU0", "GPU1", "bandwidth") == 276e9


@pytest.mark.parametrize(
    ("numbers", "text", "mask"),
    [
        ([0], "0", "00000001"),
        ([0, 1, 2, 3, 8], "0-3,8", "0000010f"),
        ([31, 32], "31-32", "00000001,80000000"),
    ],
)
def test_cpu_sets(numbers: list[int], text: str, mask: str) -> None:
    """Rule: lists and masks are two spellings of one set."""
    assert cpulist.listed(numbers) == text
    assert cpulist.members(text) == numbers
    assert cpulist.mask(numbers) == mask
    assert cpulist.from_mask(mask) == text


@pytest.mark.timeout(60)
def test_a_pipe_is_no_file_to_wait_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: a pipe that nobody writes is refused as a map, and is no attribute of a copied tree."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    monkeypatch.setattr(files, "_WRITER_S", 0.1)
    with pytest.raises(ProbeError, match="no process writes to this pipe"):
        gather.gather([str(pipe)])
    assert sysfs._value(pipe) is None


@pytest.mark.parametrize("text", [None, texts.TOPO])
def test_nvml_is_missed_where_a_gpu_is_expected(
    text: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule: without a GPU in any source and without a driver's device, NVML is not named."""

    def ask(name: str, maps: list[Topology], notes: list[str]) -> None:
        if name == "nvml":
            notes.append("nvml: NVML does not start")
        elif name == "sysfs":
            maps.append(Topology() if text is None else gather.parse(text))

    monkeypatch.setattr(gather, "_ask", ask)
    monkeypatch.setattr(Path, "glob", lambda *_: iter(()))
    monkeypatch.setattr(Path, "exists", lambda _: False)
    notes = gather.gather([])[1]
    monkeypatch.undo()
    assert [*notes] == ["nvml: NVML does not start"] * (text is not None)
