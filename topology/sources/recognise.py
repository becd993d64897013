"""Recognises the format of a text by its content, not by its file name."""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping, Sequence

from busbar.arguments import program
from busbar.errors import ProbeError
from topology.model.merge import merge
from topology.model.topology import Topology
from topology.sources.matrix_text import plain
from topology.sources.text import bounded, lines

#: Sources of the machine at hand, most trusted first: the command whose output the module parses;
#: without one the module reads the machine by itself.
LIVE: Mapping[str, Sequence[str]] = {
    "nvml": (),
    "sysfs": (),
    "hwloc": ("lstopo-no-graphics", "--of", "xml"),
    "smi_topo": ("nvidia-smi", "topo", "-m"),
    "smi_xml": ("nvidia-smi", "-q", "-x"),
    "smi_nvlink": ("nvidia-smi", "nvlink", "-s"),
    "smi_p2p": ("nvidia-smi", "topo", "-p2p", "r"),
}
#: Formats that are the whole document, by what only they contain.
_DOCUMENTS: tuple[tuple[str, str], ...] = (
    ("own_json", r'"busbar_topology"\s*:'),
    ("bandwidth", r'"nvbandwidth"\s*:'),
    ("nccl_xml", r"<system[\s>]|<graphs[\s>]"),
    ("smi_xml", r"<nvidia_smi_log[\s>]"),
    ("amd", r'"(?:num_hops|link_status)"\s*:|"\(Topology\) (?:Weight|Hops|Link)'),
    ("hwloc", r"<topology[\s>]"),
    ("sysfs", r"devices/pci[0-9a-f]{4,8}:[0-9a-f]{2}/|devices/system/(?:node|cpu)/"),
)
#: Formats that are lines of text, several of which may stand in one report.
_SECTIONS: tuple[tuple[str, str], ...] = (
    ("smi_topo", r"\bGPU ?[0-9]+[ \t|,;]+X[ \t|,;]*(?:NV[0-9]|PIX|PXB|PHB|NODE|SYS|SOC|PSB)"),
    ("smi_p2p", r"\bGPU ?[0-9]+[ \t|,;]+X[ \t|,;]*(?:OK|CNS|GNS|TNS|DR|NS|U)(?!\w)"),
    ("smi_nvlink", r"\bGPU [0-9]+: .+ \(UUID: |\bLink [0-9]+: (?:[0-9.]+ GB/s|<inactive>)"),
    (
        "amd",
        r"(?:Weight|Hops|Link Type|Link accessibility) between two GPUs =|(?m:^(?:ACCESS|"
        r"WEIGHT|HOPS|LINK TYPE) TABLE:)",
    ),
    ("bandwidth", r"P2P=(?:Enabled|Disabled).*Matrix|\((?:row|column)\) .*\((?:GB/s|ns)\)"),
)
#: Texts of programs that are recognised and not read: by what only they print, and the remedy.
_UNREAD: tuple[tuple[str, str, str], ...] = (
    (r"ROCm System Management Interface|^=+ ROCm SMI", "rocm-smi", "give rocm-smi --showtopo"),
    (r"\bAMD-?SMI\b|^GPU: \d+\s*$", "amd-smi", "give amd-smi topology"),
    (r"\bNVIDIA-SMI \d", "nvidia-smi without options", "give nvidia-smi topo -m and -q -x"),
    (r"=+NVSMI LOG=+", "nvidia-smi -q as text", "give nvidia-smi -q -x"),
    (r"^Machine \(.*total\)|^Machine L#0|^  (?:Package|NUMANode) L#", "lstopo as text",
     "give lstopo --of xml"),
    (r"^[0-9a-f:]{2,7}[0-9a-f]{2}\.[0-7] (?:VGA|3D|Non-VGA|PCI bridge|Ethernet|Infiniband|Host)",
     "lspci", "give lstopo --of xml, or a copy of /sys"),
    (r"\bNPU ?0[ \t]+X\b|\bnpu-smi\b", "Ascend's npu-smi", "give lstopo --of xml"),
    (r"\bxpu-smi\b|\bGPU 0/0\b.*\bGPU 1/0\b", "Intel's xpu-smi", "give lstopo --of xml"),
    (r"\bmthreads-gmi\b|\bmx-smi\b|\bixsmi\b|\bhy-smi\b", "another maker's smi",
     "give lstopo --of xml"),
    (r"^CA '\S+'$|^CA type:", "ibstat", "give nvidia-smi topo -m, or a copy of /sys"),
    (r"^available: \d+ nodes", "numactl -H", "give lstopo --of xml"),
    (r"^Architecture:\s+\S+$", "lscpu", "give lstopo --of xml"),
)  # fmt: skip
#: What benchmarks print and keep: ours, nccl-tests, OSU's, Intel's, perftest's and others.
_MEASURED = (
    r'"bus_factor"\s*:|^collective,algorithm,|^# *(?:Collective test starting|nThread \d)|^# OSU |'
    r"^# *Intel\(R\) MPI Benchmarks|out-of-place +in-place|\"out_of_place\"\s*:|"
    r"#bytes +#iterations|COMMS-RES|alg_bandwidth\(GB/s\)|^# *Benchmarking: |payload \| +busbw"
)
#: A row of one GPU alone, or of a damaged matrix, which its parser refuses with the reason.
_ALONE = r"\bGPU ?[0-9]+[ \t|,;]+(?:X|NV[0-9]+|PIX|PXB|PHB|NODE|SYS|SOC)(?:\s|$)"
#: Above such a GPU, what only ``topo -m`` prints.
_ALONE_HEADER = r"\bGPU ?0\b.*CPU ?Affinity"


def recognise(text: str) -> tuple[str, ...]:
    """Return the modules in topology.sources that read this text, as ``("smi_topo",)``.

    A report may hold several sections (``nvidia-smi -L``, ``topo -m``, ``topo -p2p r`` one after
    the other), hence several names. Raises ProbeError, naming the formats, when it is none of them.
    """
    bounded("text", text)
    for name, mark in _DOCUMENTS:
        if re.search(mark, text):
            return (name,)
    rows = "\n".join(plain(line) for line in lines("text", text))
    found = tuple(name for name, mark in _SECTIONS if re.search(mark, rows))
    alone = "smi_topo" not in found and re.search(_ALONE, rows)
    if alone and (not found or re.search(_ALONE_HEADER, rows)):
        found = ("smi_topo", *found)
    if found:
        return found
    if re.search(_MEASURED, rows, re.M):
        reason = (
            f"these are a benchmark's rows, not a map: {program('reports')} show FILE reads them;"
            f" {program('topology')} measure -o MATRIX.json keeps a map of measured links"
        )
        raise ProbeError("text", reason)
    for mark, name, remedy in _UNREAD:
        if re.search(mark, rows, re.M):
            raise ProbeError("text", f"this is {name}, which is recognised and not read; {remedy}")
    what = "an empty text" if not text.strip() else f"it starts {text.strip()[:40]!r}"
    raise ProbeError(
        "text",
        f"no format known here ({what}); known are nvidia-smi topo -m, topo -p2p, nvlink -s,"
        " -q -x, rocm-smi --showtopo, amd-smi topology, NCCL's topology XML, lstopo's XML,"
        " sysfs lines, p2pBandwidthLatencyTest, nvbandwidth, our JSON",
    )


def parse(text: str) -> Topology:
    """Recognise a text and read it, all of its sections. Raises ProbeError when it cannot be."""
    modules = [importlib.import_module(f"topology.sources.{name}") for name in recognise(text)]
    found: list[Topology] = [module.parse(text) for module in modules]
    return merge(found)
