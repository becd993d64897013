"""Published texts, where BUSBAR_SAMPLES names a folder of them: each parses to what it shows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from busbar.errors import ProbeError
from topology.diagnostics import check
from topology.model.device import LEVEL_WORDS
from topology.placement.pick import pick
from topology.sources import gather, own_json, smi_topo
from topology.views import terminal

from .conftest import PUBLIC

pytestmark = pytest.mark.thorough
FOLDER = Path(PUBLIC) / "topology"

#: GPUs and NICs that the public files without a table in INDEX.md describe.
COUNTS = {
    "nccl-xml/aws-p4d-24xl-topo.xml": (8, 4),
    "nccl-xml/azure-ncv4-topo.xml": (4, 1),
    "nccl-xml/azure-ndv2-topo.xml": (8, 1),
    "nccl-xml/azure-ndv4-topo.xml": (8, 8),
    "nccl-xml/blinkplus-topology.xml": (8, 3),
    "nccl-xml/oci-H100-topology.xml": (8, 16),
    "nccl-xml/yccl-topo_h800.xml": (8, 8),
    "hwloc/mpibind-coral-lassen.xml": (4, 6),
    "hwloc/mpibind-epyc-corona.xml": (4, 3),
    "hwloc/nixl-g5.48xl.xml": (8, 2),
    "hwloc/nixl-p5.48xl.xml": (8, 64),
    "smi-xml/k8s-hardware_qx-gb200.xml": (4, 0),
    "smi-xml/k8s-hardware_qx-h100.xml": (8, 0),
    "smi-xml/pai-nvidia_smi_sample_ecc_unsupported.xml": (2, 0),
    "smi-xml/telegraf-a100-sxm4-v12.xml": (1, 0),
    "smi-xml/telegraf-gtx-1070-ti.xml": (1, 0),
    "smi-xml/telegraf-rtx-3080-v13.xml": (1, 0),
    "smi-xml/telegraf-tesla-t4.xml": (1, 0),
    "nvlink/gpud_a100.txt": (8, 0),
    "p2p/p2p_4gpu_pairs_ok_ns_perfkit.txt": (4, 0),
    "p2p/p2p_8gpu_all_ok_stas00.txt": (8, 0),
    "bandwidth/p2pbw_7gforce-p2pBandwidthLatencyTest.txt": (7, 0),
    "bandwidth/p2pbw_az-4x-m60-p2pBandwidthLatencyTest.txt": (4, 0),
    "bandwidth/nvbandwidth_README_md_L76.txt": (8, 0),
}


def _text(path: Path) -> str:
    return path.read_bytes().decode("utf-8", "replace")


def _index() -> dict[str, tuple[int, int]]:
    rows = re.findall(r"^\| (\S+) \| (\d+) \| (\d+) \|", _text(FOLDER / "INDEX.md"), re.M)
    return {f"{name}.txt": (int(gpus), int(nics)) for name, gpus, nics in rows}


def test_every_topo_m_text_has_its_devices_and_its_matrix() -> None:
    """Rule: counts as in the index, and each cell of the map is the text's, both ways round."""
    index = _index()
    files = sorted((FOLDER / "topo-m").glob("*.txt"))
    assert {file.name for file in files} == set(index)
    for file in files:
        topology = smi_topo.parse(_text(file))
        assert (len(topology.gpus), len(topology.nics)) == index[file.name], file.name
        matrix = topology.matrix()
        assert matrix == _plain_matrix(_text(file), len(matrix)), file.name
        assert matrix == tuple(zip(*matrix, strict=True)), file.name


def _plain_matrix(text: str, size: int) -> tuple[tuple[str, ...], ...]:
    """The cells by nothing but their words, in the order of the text."""
    words = "|".join(LEVEL_WORDS) + r"|NV\d+"
    rows = []
    for line in text.splitlines():
        found = re.findall(
            rf"(?<![\w=])(?:{words})(?![\w=])", line.split("=")[0].replace("\t", " ")
        )
        if len(found) == size and "X" in found and re.search(r"(GPU|NIC|mlx)\S*[\s|]", line):
            rows.append(tuple(_modern(word) for word in found))
    return tuple(rows)


def _modern(word: str) -> str:
    return word if word == "X" or word.startswith("NV") else LEVEL_WORDS[word].name


def test_other_formats_have_their_devices() -> None:
    """Rule: the format is recognised, and the numbers of GPUs and NICs are right."""
    for name, wanted in COUNTS.items():
        topology = gather.parse(_text(FOLDER / name))
        assert (len(topology.gpus), len(topology.nics)) == wanted, name


def test_every_sample_reads_or_says_why() -> None:
    """Rule: a map that survives our JSON and check, prints as it reads and is picked from.

    Or one ProbeError.
    """
    refused = []
    for file in sorted(FOLDER.glob("*/*.*")):
        try:
            topology = gather.parse(_text(file))
        except ProbeError as error:
            refused.append((file.name, error.reason))
            continue
        assert own_json.parse(own_json.dump(topology)) == topology, file.name
        assert all(0 < finding.harm <= 1 and finding.remedy for finding in check(topology))
        if file.parent.name == "topo-m":
            again = gather.parse(terminal.matrix_text(topology))
            assert again.matrix() == topology.matrix(), file.name
        size = len(topology.gpus)
        for k in {2, size} if size > 1 else ():
            best = pick(topology, k).picks[0]
            assert len(set(best.order)) == k and best.busbw > 0, file.name
    assert [name for name, _ in refused] == ["graph-dgx1v.xml"]
    assert "graph dump" in refused[0][1]


def test_two_descriptions_of_a_machine_agree() -> None:
    """Rule: what NCCL and nvidia-smi say of machines wired alike is the same."""
    names = ("topo-m/dgx1_v100_4mlx5_ucxpy.txt", "nccl-xml/blinkplus-topology.xml")
    text, nccl = (gather.parse(_text(FOLDER / name)) for name in names)
    gpus = [f"GPU{n}" for n in range(8)]
    assert text.matrix(gpus) == nccl.matrix(gpus)


def test_the_slow_transfers_of_the_field_report_are_read() -> None:
    """Rule: measured pairs carry bytes per second and seconds, joined to the map by bus order."""
    measured = gather.parse(_text(FOLDER / "bandwidth/p2pbw_7gforce-p2pBandwidthLatencyTest.txt"))
    assert measured.pair("GPU0", "GPU1", "bandwidth") == pytest.approx(0.82e9)
    assert measured.pair("GPU0", "GPU3", "bandwidth") == pytest.approx(0.73e9)
    assert measured.device("GPU3").busid == "0000:0a:00.0"
    assert measured.pair("GPU0", "GPU1", "p2p_access") is True


def test_the_matrix_is_nvidia_smis_to_the_letter() -> None:
    """Rule: for today's dialect, what we print of a raw capture is that capture."""
    for name in (
        "8x_h200_10nic_glm",
        "8x_rtx4090_NODE_PHB_SYS_6plus2",
        "8x_rtx6000pro_asus_esc8000a_raw",
    ):
        raw = (FOLDER / "topo-m" / f"{name}.txt").read_text()
        theirs = raw.split("\n", 1)[1] if raw.startswith("# source") else raw
        ours = terminal.matrix_text(gather.parse(theirs), underline=True).splitlines()
        row = re.compile(r"\t?(?:\x1b\[4m)?(?:GPU|NIC)[0-9]")
        rows = [line.rstrip() for line in theirs.splitlines() if row.match(line)]
        assert rows
        assert [row.rstrip() for row in ours][: len(rows)] == rows
