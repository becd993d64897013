"""nvidia-smi's matrices and NVLink status, one small text for each dialect."""

from __future__ import annotations

import pytest

from busbar.errors import ProbeError
from topology.model.topology import Kind, Topology
from topology.placement.pick import pick
from topology.placement.text import reasons
from topology.sources import gather, smi_nvlink, smi_p2p, smi_topo

RAW = (
    "\t\x1b[4mGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m\n"
    "GPU0\t X \tPXB\tPIX\t0-3,8\t0\t\tN/A\n"
    "GPU1\tPXB\t X \tPXB\t0-3,8\t0\t\tN/A\n"
    "NIC0\tPIX\tPXB\t X \t\t\t\t\n\nLegend:\n\n  X    = Self\n  PIX  = at most a single PCIe "
    "bridge\n\n"
    "NIC Legend:\n\n  NIC0: mlx5_7\n"
)
SPACES = """\
        GPU0    GPU1    mlx5_7  CPU Affinity    NUMA Affinity   GPU NUMA ID
GPU0     X      PXB     PIX     0-3,8   0               N/A
GPU1    PXB      X      PXB     0-3,8   0               N/A
mlx5_7  PIX     PXB      X
"""
MARKDOWN = """\
| CPU Affinity | NUMA Affinity |        | GPU0 | GPU1 | mlx5_7 |
|--------------|:-------------:|--------|------|------|--------|
| 0-3,8        | 0             | GPU0   | X    | PXB  | PIX    |
| 0-3,8        | 0             | GPU1   | PXB  | X    | PXB    |
|              |               | mlx5_7 | PIX  | PXB  | X      |
"""
FUSED = SPACES.replace("PXB     PIX", "PXBPIX").replace("CPU Affinity ", "CPUAffinity")
SPACED_LABELS = SPACES.replace("GPU0 ", "GPU 0 ").replace("GPU1 ", "GPU 1 ")
REPORT = "GPU 0: NVIDIA X (UUID: GPU-1)\nGPU 1: NVIDIA X (UUID: GPU-2)\n\n" + SPACES
BOLD = MARKDOWN.replace(" GPU0   |", " **GPU0** |").replace(" GPU1   |", " `GPU1` |")
DRAWN = MARKDOWN.replace("|", "│").replace("-│-", "─┼─")
HTML = f"<pre>{SPACES}</pre>"
DIALECTS = {
    "raw": RAW, "spaces": SPACES, "markdown": MARKDOWN, "fused": FUSED, "report": REPORT,
    "spaced labels": SPACED_LABELS, "bold": BOLD, "drawn": DRAWN, "html": HTML,
    "twice": SPACES + "\n" + SPACES,
}  # fmt: skip


@pytest.mark.parametrize("name", DIALECTS)
def test_every_dialect_is_the_same_machine(name: str) -> None:
    """Rule: layout does not matter; words, names and affinities do."""
    assert "smi_topo" in gather.recognise(DIALECTS[name])
    topology = smi_topo.parse(DIALECTS[name])
    assert topology.matrix() == (("X", "PXB", "PIX"), ("PXB", "X", "PXB"), ("PIX", "PXB", "X"))
    assert [nic.name for nic in topology.nics] == ["mlx5_7"]
    for gpu in topology.gpus:
        assert (gpu.get("cpu_affinity"), gpu.get("numa_affinity")) == ("0-3,8", "0")
    assert topology.nics[0].get("cpu_affinity") is None


def _two(word: str, columns: str = "", values: str = "", labels: str = "GPU0 GPU1") -> Topology:
    a, b = labels.split()
    return smi_topo.parse(
        f"\t{a}\t{b}{columns}\n{a}\t X \t{word}{values}\n{b}\t{word}\t X {values}\n"
    )


@pytest.mark.parametrize(
    ("word", "cell"), [("SOC", "SYS"), ("PSB", "PIX"), ("NV18", "NV18"), ("NODE", "NODE")]
)
def test_words_of_other_times_and_tools(word: str, cell: str) -> None:
    """Rule: SOC is SYS, DCGM's PSB is PIX, and any NVLink count is read."""
    assert _two(word).relation("GPU0", "GPU1").text == cell


def test_affinity_columns_may_be_blank_lists_or_the_gpus_own_node() -> None:
    """Rule: what stands in a column is that column's; blanks and N/A state nothing."""
    columns = "\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID"
    grace = _two("SYS", columns, "\t0-71\t0,2-8\t\t1").device("GPU0")
    assert [grace.get(f) for f in ("cpu_affinity", "numa_affinity", "gpu_numa_id")] == [
        "0-71",
        "0,2-8",
        1,
    ]
    guest = _two("SYS", columns, "\t\t\t\tN/A").device("GPU0")
    assert guest.facts == ()
    older = _two("NV2", "\tCPU Affinity\tNUMA Affinity", "\t0-31\t\t1").device("GPU0")
    assert [older.get(f) for f in ("cpu_affinity", "numa_affinity")] == ["0-31", "1"]
    sparse = _two("SYS", columns, "\t0-0,8-8\t\t\tN/A").device("GPU0")
    assert [sparse.get(f) for f in ("cpu_affinity", "numa_affinity")] == ["0-0,8-8", None]


def test_a_value_that_may_stand_in_two_columns_is_not_guessed() -> None:
    """Rule: where spaces hide which column a value is in, it is a gap."""
    topology = _two("SYS", "   CPU Affinity   NUMA Affinity   GPU NUMA ID", "   0         N/A")
    assert topology.device("GPU0").get("cpu_affinity") is None
    assert topology.gaps[0].call == "affinity"


def test_data_direct_devices_are_rows_but_no_nics() -> None:
    """Rule: DD0 has its row in the matrix and does not count as another NIC."""
    text = (
        "GPU0 NIC0 DD0\nGPU0 X PHB PIX\nNIC0 PHB X PHB\nDD0 PIX PHB X\nNIC Legend:\n NIC0: mlx5_0\n"
    )
    topology = smi_topo.parse(text)
    assert (len(topology.gpus), len(topology.nics), len(topology.of(Kind.DIRECT))) == (1, 1, 1)
    assert topology.matrix()[2] == ("PIX", "PHB", "X")


def test_a_matrix_without_nvlinks_does_not_deny_them() -> None:
    """Rule: `topo -mp` never prints NV#, so that nothing follows from their absence."""
    assert _two("PIX").pair("GPU0", "GPU1", "nvlinks") is None


@pytest.mark.parametrize(
    ("legend", "told"),
    [
        ("  SYS = far\n  NODE = nearer\n", True),
        ("  NODE = nearer\n  NV# = NVLinks\n", False),
        ("  SOC = far\n  PIX = near\n", False),  # drivers from before there were NVLinks
        ("", False),
    ],
)
def test_a_legend_without_nvlinks_is_that_of_topo_mp(legend: str, told: bool) -> None:
    """Rule: what a table was not asked for is said, by the map and beside figures of pick."""
    machine = smi_topo.parse(f"GPU0 GPU1\nGPU0 X SYS\nGPU1 SYS X\n\nLegend:\n\n{legend}")
    assert [(gap.subject, gap.call) for gap in machine.gaps] == [("GPUs", "nvlinks")] * told
    assert ("topo -mp leaves them out" in " ".join(reasons(pick(machine, 2)))) == told


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ("", None, "no matrix"),
        ("GPU0 and GPU1 are two GPUs\nnothing else", None, "no matrix"),
        ("GPU0 GPU1\nGPU0 X PIX\n", 3, "expected the row of GPU1"),
        ("GPU0 GPU1\nGPU0 X\nGPU1 PIX X\n", 2, "row GPU0 has 1 of 2 cells"),
        ("GPU0 GPU1\nGPU0 X FAR\nGPU1 FAR X\n", 2, "then 'FAR'"),
        ("GPU0 GPU1\nGPU0 X PIX\nGPU1 PHB X\n", 2, "GPU0 to GPU1 is PIX, but GPU1 to GPU0 is PHB"),
        ("GPU0 GPU1\nGPU0 X X\nGPU1 PIX X\n", 2, "X stands for the device itself"),
        ("GPU0 GPU0\nGPU0 X PIX\nGPU0 PIX X\n", 1, "names GPU0 twice"),
        (
            "GPU0 GPU1\nGPU0 X PIX\nGPU1 PIX X\nGPU0 GPU1\nGPU0 X SYS\nGPU1 SYS X",
            4,
            "one machine at a time",
        ),
        # The word is shown, not the bar before it.
        ("|  | GPU0 | GPU1 |\n|--|--|--|\n| GPU0 | X | NVL |\n| GPU1 | NVL | X |\n", 3, "'NVL'"),
    ],
)
def test_what_is_not_whole_is_refused_with_its_line(
    text: str, line: int | None, reason: str
) -> None:
    """Rule: never a wrong answer; the message has the line and the reason."""
    with pytest.raises(ProbeError, match=reason) as caught:
        smi_topo.parse(text)
    assert caught.value.line == line


def test_p2p_takes_the_capability_from_the_command_line() -> None:
    """Rule: -p2p r is assumed, and said to be, where the text does not show the command."""
    table = "\tGPU0\tGPU1\n GPU0\tX\tOK\n GPU1\tCNS\tX\n"
    bare = smi_p2p.parse(table)
    assert bare.pair("GPU0", "GPU1", "p2p_read") == "OK"
    assert bare.pair("GPU1", "GPU0", "p2p_read") == "CNS"
    assert bare.gaps
    named = smi_p2p.parse(f"$ nvidia-smi topo -p2p n\n{table}$ nvidia-smi topo -p2p w\n{table}")
    assert named.pair("GPU0", "GPU1", "p2p_nvlink") == "OK"
    assert named.pair("GPU0", "GPU1", "p2p_write") == "OK"
    assert not named.gaps
    with pytest.raises(ProbeError, match="one machine at a time"):
        smi_p2p.parse(table + table)


def test_nvlink_states() -> None:
    """Rule: up, down, all inactive, without NVLink, and error counters are told apart."""
    text = """\
GPU 0: NVIDIA A (UUID: GPU-0)
\t Link 0: 25 GB/s
\t Link 1: <inactive>
\t Link 2: 12.5 GB/s
GPU 1: NVIDIA A (UUID: GPU-1)
NVML: Unable to retrieve NVLink information as all links are inActive
GPU 2: NVIDIA B (UUID: GPU-2)
Device does not have or support Nvlink
GPU 3: NVIDIA A (UUID: GPU-3)
\t Link 0: Replay Errors: 3
\t Link 0: CRC Errors: 4
"""
    first, second, third, fourth = smi_nvlink.parse(text).gpus
    assert [first.get(f) for f in ("nvlinks", "nvlinks_down", "nvlink_rate")] == [2, (1,), 12.5e9]
    assert (second.get("nvlinks"), third.get("nvlinks"), fourth.get("nvlinks")) == (0, 0, None)
    assert fourth.get("nvlink_errors") == 7


def test_counters_of_blackwells_nvlinks() -> None:
    """Rule: errors and recoveries are added up; traffic, rates and what FEC corrected are none."""
    counters = (
        "Tx packets: 1000", "Rx Errors: 1", "Malformed packet Errors: 2", "Tx discards: 0",
        "Link recovery successful events: 4", "Total link recovery events: 4",
        "Effective Errors: 0", "Effective BER: 15e-255", "FEC Errors - 0: 36140749276",
    )  # fmt: skip
    rows = "".join(f"\t Link 0: {counter}\n" for counter in counters)
    (gpu,) = smi_nvlink.parse(f"GPU 0: NVIDIA B300 SXM6 AC (UUID: GPU-1)\n{rows}").gpus
    assert (gpu.get("nvlink_errors"), gpu.get("nvlinks")) == (7, None)


def test_nvlink_status_without_uuid_is_read_and_prose_is_not() -> None:
    """Rule: a GPU's line without UUID counts where links follow it, and nowhere else."""
    text = (
        "GPU 5: fell off the bus\n\nGPU 0: NVIDIA B200\n Link 0: Active\n Link 1: (Not Supported)\n"
    )
    (gpu,) = smi_nvlink.parse(text).gpus
    assert (gpu.id, gpu.uuid, gpu.get("nvlinks"), gpu.get("nvlink_rate")) == ("GPU0", None, 1, None)


@pytest.mark.parametrize(
    ("text", "line"),
    [("nothing", None), ("Link 0: 25 GB/s", 1), ("GPU 0: A (UUID: x)\n Link 0: purple", 2)],
)
def test_nvlink_texts_that_make_no_sense(text: str, line: int | None) -> None:
    """Rule: a link without GPU or in an unknown state is refused with its line."""
    with pytest.raises(ProbeError) as caught:
        smi_nvlink.parse(text)
    assert caught.value.line == line
