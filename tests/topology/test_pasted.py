"""Texts and files as people paste, cut, wrap and assemble them, one small fixture for each way."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from busbar.errors import ProbeError
from tests.topology import texts
from topology.model.topology import Kind, Level
from topology.placement.pick import pick
from topology.sources import gather, hwloc, nccl_xml, smi_nvlink, smi_topo
from topology.views.terminal import matrix_text as shown_text

HEADER = "\tGPU0\tGPU1\tmlx5_7\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID"
ROWS = (
    "GPU0\t X \tPXB\tPIX\t0-3,8\t0\t\tN/A\n"
    "GPU1\tPXB\t X \tPXB\t0-3,8\t0\t\tN/A\n"
    "mlx5_7\tPIX\tPXB\t X \t\t\t\t\n"
)


def _wide(gpus: int, nics: int = 0) -> list[str]:
    labels = [f"GPU{n}" for n in range(gpus)] + [f"NIC{n}" for n in range(nics)]
    tail = "    ".join(("CPU Affinity", "NUMA Affinity", "GPU NUMA ID"))
    lines = ["        " + "".join(f"{label:8}" for label in labels) + tail]
    for row in labels:
        inside = [row[:3] == column[:3] == "GPU" for column in labels]
        words = ["NV18" if nvlink else "NODE" for nvlink in inside]
        cells = "".join(
            f"{' X ' if row == column else word:8}"
            for column, word in zip(labels, words, strict=True)
        )
        rest = f"{'0-47,96-143':16}{'0':17}N/A" if row.startswith("GPU") else ""
        lines.append(f"{row:8}{cells}{rest}")
    return lines


@pytest.mark.parametrize("width", [60, 64, 77, 80, 100])
@pytest.mark.parametrize("stripped", [False, True])
def test_rows_that_a_terminal_wrapped_are_put_together(width: int, stripped: bool) -> None:
    """Rule: a narrow terminal cuts rows anywhere, even inside a word; the matrix is the same."""
    wrapped = []
    for line in _wide(10):
        parts = [line[at : at + width] for at in range(0, len(line), width)]
        wrapped += [part.rstrip() if stripped else part for part in parts]
    topology = smi_topo.parse("\n".join([*wrapped, "", "Legend:", "", "  X    = Self"]))
    whole = smi_topo.parse("\n".join(_wide(10)))
    assert topology.matrix() == whole.matrix() and len(topology.gpus) == 10
    said = [gpu.get("cpu_affinity") for gpu in topology.gpus]
    assert said == [gpu.get("cpu_affinity") for gpu in whole.gpus] == ["0-47,96-143"] * 10


@given(st.integers(2, 12), st.integers(0, 6), st.integers(1, 200), st.sampled_from([4, 8]))
def test_a_text_cut_on_the_right_loses_no_gpu_in_silence(
    gpus: int, nics: int, width: int, tab: int
) -> None:
    """Rule: what a pager or ``cut -c`` left has all of its GPUs and right cells, or is refused."""
    lines = _wide(gpus, nics)
    cut = [line.expandtabs(tab)[:width] for line in lines]
    try:
        topology = smi_topo.parse("\n".join(cut))
    except ProbeError as error:
        assert error.line is None or error.line <= len(lines)
        return
    whole = smi_topo.parse("\n".join(lines))
    assert len(topology.gpus) == gpus
    kept = [device.id for device in (*topology.gpus, *topology.nics)]
    assert topology.matrix(kept) == whole.matrix(kept)
    lost = {nic.id for nic in whole.nics} - set(kept)
    assert lost <= {gap.subject for gap in topology.gaps}
    for gpu in topology.gpus:
        assert str(whole.device(gpu.id).get("cpu_affinity")).startswith(
            str(gpu.get("cpu_affinity") or "")
        )


def test_wrapped_ends_that_are_blank_do_not_end_the_matrix() -> None:
    """Rule: where only padding wrapped, the next row follows after it."""
    lines = [line.ljust(130) for line in _wide(6, 3)]
    wrapped = [line[at : at + 40] for line in lines for at in range(0, 130, 40)]
    assert any(part and not part.strip() for part in wrapped)
    text = "\n".join([*wrapped, "", "Legend:", "  X    = Self"])
    assert smi_topo.parse(text) == smi_topo.parse("\n".join(_wide(6, 3)))


@pytest.mark.parametrize(("width", "line"), [(28, 4), (38, 5)])
def test_a_name_cut_in_the_header_is_no_device(width: int, line: int) -> None:
    """Rule: a row whose name the header lacks shows that the header's name was cut."""
    whole = [
        "        GPU0    GPU1    mlx5_0  mlx5_bond_0",
        "GPU0     X      PXB     PIX     SYS",
        "GPU1    PXB      X      PXB     SYS",
        "mlx5_0  PIX     PXB      X      SYS",
        "mlx5_bond_0     SYS     SYS     SYS      X",
    ]
    assert len(smi_topo.parse("\n".join(whole)).nics) == 2
    with pytest.raises(ProbeError, match="a name is cut") as caught:
        smi_topo.parse("\n".join(row[:width] for row in whole))
    assert caught.value.line == line


def test_an_affinity_that_runs_backwards_is_a_gap() -> None:
    """Rule: a list that lost a digit (64-5 of 64-95) is no list."""
    topology = smi_topo.parse(f"{HEADER}\n{ROWS}".replace("0-3,8\t0", "0-3,64-5\t0", 1))
    assert [gpu.get("cpu_affinity") for gpu in topology.gpus] == [None, "0-3,8"]
    assert [(gap.subject, gap.call) for gap in topology.gaps] == [("GPU0", "cpu_affinity")]


def test_a_matrix_whose_line_ends_became_blanks() -> None:
    """Rule: an issue flattened to one line still has its rows and its legend."""
    rows = f"{HEADER}\n{ROWS}\nLegend:\n\n  X    = Self\n\nNIC Legend:\n\n  NIC0: mlx5_9\n"
    flat = "GPU Topology: " + " ".join(rows.replace("mlx5_7", "NIC0").split()) + " ``` and so on"
    topology = smi_topo.parse(flat)
    assert topology.matrix() == smi_topo.parse(f"{HEADER}\n{ROWS}").matrix()
    assert [nic.name for nic in topology.nics] == ["mlx5_9"]
    assert [gpu.get("numa_affinity") for gpu in topology.gpus] == ["0", "0"]


@pytest.mark.parametrize(("gpus", "nics"), [(1, 1), (2, 0), (3, 4), (12, 11)])
def test_a_header_that_lost_its_tabs(gpus: int, nics: int) -> None:
    """Rule: names that stand without a gap come apart, for a name ends where letters begin."""
    lines = _wide(gpus, nics)
    labels = lines[0].split("CPU Affinity")[0].split()
    fused = "".join(labels) + "CPU AffinityNUMA AffinityGPU NUMA ID"
    assert smi_topo.parse("\n".join([fused, *lines[1:]])) == smi_topo.parse("\n".join(lines))


def test_neighbours_that_a_conversion_fused_come_apart() -> None:
    """Rule: a PDF's text has no gaps between label, words and lists.

    Words split in one way only.
    """
    text = """\
GPU0 GPU1 GPU2 NIC0 CPU Affinity NUMA Affinity GPU NUMA ID
## GPU0 X NV4NV12SYS 48-63,112-127 3 N/A
## GPU1NV4 X NV4PHB32-47,96-111 2N/A
## GPU2 NV12 NV4X SYS16-31,80-95 1 N/A
## NIC0 SYSPHBSYSX
and other prose of 12 GPUs
"""
    topology = smi_topo.parse(text)
    assert topology.matrix()[0] == ("X", "NV4", "NV12", "SYS")
    assert topology.matrix()[1] == ("NV4", "X", "NV4", "PHB")
    said = [(gpu.get("cpu_affinity"), gpu.get("numa_affinity")) for gpu in topology.gpus]
    assert said == [("48-63,112-127", "3"), ("32-47,96-111", "2"), ("16-31,80-95", "1")]


def test_a_wrapped_matrix_that_is_cut_is_refused_by_its_own_line() -> None:
    """Rule: putting lines together never makes up for rows that are missing."""
    text = "\n".join(_wide(4)[:-1])
    with pytest.raises(ProbeError, match="GPU3") as caught:
        smi_topo.parse(text)
    assert caught.value.line == 4


def test_one_gpu_beside_other_sections_keeps_its_affinities() -> None:
    """Rule: a matrix of one GPU is read where its header shows that it is one."""
    text = (
        "GPU 0: NVIDIA A (UUID: GPU-0)\n\t Link 0: 25 GB/s\n\n\tGPU0\tCPU Affinity\tNUMA Affinity\n"
    )
    text += "GPU0\t X \t0-3\t0\n"
    (gpu,) = gather.parse(text).gpus
    assert (gpu.get("cpu_affinity"), gpu.get("nvlinks")) == ("0-3", 1)


def test_nvlink_capabilities_are_no_states() -> None:
    """Rule: what ``nvlink -c`` says of a link passes in either wording."""
    text = "GPU 0: A (UUID: GPU-0)\n\t Link 0, P2P is supported: true\n"
    text += "\t Link 0, Access to system memory supported: true\n"
    assert smi_nvlink.parse(text).gpus[0].get("nvlinks") is None


def test_bus_ids_that_a_model_gives_twice() -> None:
    """Rule: as NCCL does, bridges may share a bus id, with a card too; two GPUs may not."""
    bridge = '<pci busid="0000:10:00.0" class="0x060400">{}</pci>'
    gpu = '<pci busid="0000:2{0}:00.0" class="0x030200"><gpu dev="{0}"/></pci>'
    card = '<pci busid="0000:10:00.0" class="0x020000"><nic><net name="mlx5_0"/></nic></pci>'
    one, two = bridge.format(gpu.format(0) + card), bridge.format(gpu.format(1))
    topology = nccl_xml.parse(f'<system><cpu numaid="0">{one}{two}</cpu></system>')
    assert topology.relation("GPU0", "NIC0").level is Level.PIX
    assert topology.relation("GPU0", "GPU1").level is Level.PHB
    assert len(topology.of(Kind.BRIDGE)) == 2 and "another bridge" in topology.gaps[0].reason
    twice = gpu.format(0) + gpu.format(0).replace('dev="0"', 'dev="1"')
    with pytest.raises(ProbeError, match="two GPUs"):
        nccl_xml.parse(f'<system>\n<cpu numaid="0">{twice}</cpu></system>')


def test_xml_between_prompts() -> None:
    """Rule: what a shell printed before and after a document is no part of it."""
    text = f"$ cat topo.xml\n{texts.NCCL_XML}\n$ exit\n"
    assert gather.parse(text) == gather.parse(texts.NCCL_XML)
    with pytest.raises(ProbeError, match="junk after document element"):
        gather.parse(texts.NCCL_XML * 2)


@pytest.mark.parametrize("numas", [("-1",), ("-1", "1"), ("-1", "0", "-1"), ("1", "", "0")])
def test_cpus_without_a_numa_node_have_no_number(numas: tuple[str, ...]) -> None:
    """Rule: a numaid of -1 is no node's number: not shown, not taken, and written again."""
    cpus = "".join(
        f'<cpu numaid="{numa}"><pci busid="0000:0{n}:00.0" class="0x030200"/></cpu>'
        for n, numa in enumerate(numas)
    )
    topology = nccl_xml.parse(f"<system>{cpus}</system>")
    homes = [topology.device(gpu.parent or "").index for gpu in topology.gpus]
    assert homes == [None if numa in ("", "-1") else int(numa) for numa in numas]
    shown = [
        line.split("\t")[-3:] for line in shown_text(topology).splitlines() if line[:3] == "GPU"
    ]
    assert all(("0" in row) == (numa == "0") for row, numa in zip(shown, numas, strict=True))
    written = nccl_xml.dump(topology)
    assert 'numaid="-1"' in written and nccl_xml.parse(written).matrix() == topology.matrix()


def test_a_net_below_every_cpu_is_one_net() -> None:
    """Rule: a virtual net that a dump repeats for each CPU belongs to the host, and counts once."""
    nets = '<nic><net name="br0" dev="1"/><net name="br1" dev="2"/></nic>'
    cpus = "".join(f'<cpu numaid="{n}">{nets}</cpu>' for n in range(3))
    topology = nccl_xml.parse(f"<system>{cpus}</system>")
    assert [(nic.name, nic.parent) for nic in topology.nics] == [("br0", "HOST"), ("br1", "HOST")]


def test_a_function_without_class_is_said_to_be_open() -> None:
    """Rule: cloud files leave classes to the machine.

    Each such function is a gap, none is guessed.
    """
    topology = nccl_xml.parse('<system><cpu numaid="0"><pci busid="0000:00:16.0"/></cpu></system>')
    assert not topology.gpus and topology.gaps[0].subject == "0000:00:16.0"
    assert "does not say" in topology.gaps[0].reason


def test_hwloc_3_counts_kinds_of_devices_in_bits() -> None:
    """Rule: since version 3 a kind is a set of bits; names of NICs come out as before."""
    old = hwloc.parse(texts.HWLOC)
    new = texts.HWLOC.replace('osdev_type="3"', 'osdev_type="32"')
    new = new.replace('osdev_type="2"', 'osdev_type="16"')
    assert '<topology version="2.0">' in new, "the fixture's version changed"
    new = new.replace('<topology version="2.0">', '<topology version="3.0">')
    names = [nic.name for nic in hwloc.parse(new).nics]
    assert names == [nic.name for nic in old.nics] == ["mlx5_0"]


def test_nvbandwidth_between_host_and_device_both_ways() -> None:
    """Rule: the bidirectional copy is a fact of its own, not a text without matrix."""
    text = "Running host_to_device_bidirectional_memcpy_ce.\n"
    text += (
        "memcpy CE CPU(row) <-> GPU(column) bandwidth (GB/s)\n       0      1\n0  18.50  19.00\n"
    )
    assert [gpu.get("host_both") for gpu in gather.parse(text).gpus] == [18.5e9, 19e9]


@pytest.mark.parametrize(
    ("buses", "fast"), [((0xC1, 0x01, 0x21), (0, 1)), ((0x01, 0x21, 0xC1), (1, 2))]
)
def test_gpus_of_a_log_in_cudas_order_are_numbered_by_bus(
    buses: tuple[int, ...], fast: tuple[int, int]
) -> None:
    """Rule: GPU0 is the first by bus id from every source, as CUDA_VISIBLE_DEVICES wants it.

    CUDA's own order has the fastest first; where it differs, a gap tells the numbers of the log.
    """
    text = "".join(
        f"Device: {n}, Some GPU, pciBusID: {bus:x}, pciDeviceID: 0, pciDomainID:0\n"
        for n, bus in enumerate(buses)
    )
    text += "Unidirectional P2P=Enabled Bandwidth (P2P Writes) Matrix (GB/s)\n   D\\D  0  1  2\n"
    text += " 0 800.00 10.80 10.30\n 1 10.80 800.00 52.30\n 2 10.20 52.30 800.00\n"
    machine = gather.parse(text)
    assert [gpu.busid for gpu in machine.gpus] == [f"0000:{bus:02x}:00.0" for bus in sorted(buses)]
    assert pick(machine, 2).picks[0].gpus == tuple(f"GPU{n}" for n in fast)
    told = " ".join(gap.reason for gap in machine.gaps)
    assert ("device 0 is GPU2, 1 is GPU0, 2 is GPU1" in told) == (told != "") == (buses[0] == 0xC1)


@pytest.mark.parametrize("others", [0, 2])
def test_nvbandwidth_of_several_hosts_is_a_map_of_several_hosts(others: int) -> None:
    """Rule: its rows are processes, and a GPU of another host is not picked as if it were here."""
    places = [("rack1-a", 0), ("rack1-a", 1), *(("rack1-b", n) for n in range(others))]
    text = "".join(
        f"Process {n} ({host}): device {at}: HGX GB200 (0000000{8 + at}:01:00)\n"
        for n, (host, at) in enumerate(places)
    )
    text += "\nRunning multinode_device_to_device_memcpy_read_ce.\n"
    text += "memcpy CE GPU(row) -> GPU(column) bandwidth (GB/s)\n"
    text += "".join(f"{n:10}" for n in range(len(places))) + "\n"
    for row in range(len(places)):
        cells = ("N/A" if row == column else "798.02" for column in range(len(places)))
        text += f"{row}" + "".join(f"{cell:>10}" for cell in cells) + "\n"
    machine = gather.parse(text)
    assert [host.name for host in machine.of(Kind.HOST)] == ["rack1-a", "rack1-b"][: 1 + others]
    assert machine.gpus[-1].busid == "0009:01:00.0" and machine.gpus[0].name == "HGX GB200"
    assert machine.pair("GPU1", machine.gpus[0].id, "bandwidth") == 798.02e9
    if others:
        with pytest.raises(ProbeError, match="GPUs of 2 hosts"):
            pick(machine, 2)
    else:
        assert pick(machine, 2).picks[0].busbw == 798.02e9


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (
            "==== ROCm System Management Interface ====\nDevice  Node  Temp\n",
            "rocm-smi.*--showtopo",
        ),
        ("AMDSMI Tool: 25.1 | ROCm version: 6.4\n", "amd-smi.*topology"),
        ("| NVIDIA-SMI 550.54   Driver Version: 550.54 |\n", "nvidia-smi.*topo -m"),
        ("Machine (503GB total)\n  Package L#0\n", "lstopo.*--of xml"),
        ("available: 2 nodes (0-1)\nnode 0 cpus: 0 1\n", "numactl"),
        ("\t   NPU0       NPU1\nNPU0       X          HCCS\n", "npu-smi"),
        ("n1:42:43 [5] NCCL INFO + PCI[48.0] - GPU/0-68000 (8)\n", "NCCL_TOPO_DUMP_FILE"),
        ('<algo name="x" proto="LL" ngpus="2" coll="allreduce"></algo>\n', "MSCCL.*verify"),
        ("| GPU ID: 0   | Topology |\n| To GPU 1    | Connected via a PSB |\n", "dcgmi"),
        ("index, name, pci.bus_id\n0, NVIDIA A100, 00000000:07:00.0\n", "query-gpu.*-q -x"),
        ("Failed to initialize NVML: Driver/library version mismatch\n", "nvidia-smi.*driver"),
        ("mlx5_0 port 1 ==> ib0 (Up)\n", "ibdev2netdev"),
        ("0000:17:00.0 3D controller [0302]: NVIDIA Corporation [10de:2330]\n", "lspci"),
        ("-+-[0000:80]-+-00.0\n |           +-01.0-[81]----00.0  NVIDIA [A100]\n", "lspci"),
    ],
)
def test_a_program_that_is_not_read_is_named(text: str, name: str) -> None:
    """Rule: a text that is recognised and not read names the program and what to give instead."""
    with pytest.raises(ProbeError, match=name):
        gather.parse(text)


def test_amd_links_have_their_own_rates() -> None:
    """Rule: in RCCL's files sm counts compute units; an xGMI link has its architecture's rate."""
    pci = (
        '<pci busid="0000:2{0}:00.0" class="0x120000"><gpu dev="{0}" sm="304" '
        'gcn="{2}">{1}</gpu></pci>'
    )
    link = '<xgmi target="0000:21:00.0" count="2" tclass="0x120000"/>'
    for gcn, gb in (("gfx942", 48), ("940", 48), ("gfx90a", 36), ("910", 36), ("908", 24)):
        gpus = pci.format(0, link, gcn) + pci.format(1, "", gcn)
        topology = nccl_xml.parse(f'<system><cpu numaid="0">{gpus}</cpu></system>')
        (hop,) = topology.route("GPU0", "GPU1")
        assert (hop.bandwidth, hop.assumed) == (2 * gb * 1e9, False)
        assert [gpu.get("sm") for gpu in topology.gpus] == [None, None]
        written = nccl_xml.dump(topology)
        again = nccl_xml.parse(written)
        assert again.route("GPU0", "GPU1") == (hop,) and "<nvlink" not in written
        assert [gpu.get("multiprocessors") for gpu in again.gpus] == [304, 304]
