"""One map from the sources that a user names: files, folders, standard input, or this machine."""

from __future__ import annotations

import importlib
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path

from busbar.arguments import program
from busbar.errors import ProbeError, Unsupported
from busbar.files import decoded, read_some, unreadable
from topology.model.merge import merge
from topology.model.topology import Kind, Topology
from topology.sources.matrix_text import plain
from topology.sources.text import MAX_BYTES, bounded, lines

#: Sources on this machine, most trusted first, with the command whose output the module parses. A
#: module without a command reads the machine itself.
LIVE: Mapping[str, Sequence[str]] = {
    "nvml": (),
    "sysfs": (),
    "hwloc": ("lstopo-no-graphics", "--of", "xml"),
    "smi_topo": ("nvidia-smi", "topo", "-m"),
    "smi_xml": ("nvidia-smi", "-q", "-x"),
    "smi_nvlink": ("nvidia-smi", "nvlink", "-s"),
    "smi_p2p": ("nvidia-smi", "topo", "-p2p", "r"),
}
#: Formats that are a whole document, with a pattern that only they contain.
_DOCUMENTS: tuple[tuple[str, str], ...] = (
    ("own_json", r'"busbar_topology"\s*:'),
    ("bandwidth", r'"nvbandwidth"\s*:'),
    ("nccl_xml", r"<system[\s>]|<graphs[\s>]"),
    ("smi_xml", r"<nvidia_smi_log[\s>]"),
    ("amd", r'"(?:num_hops|link_status)"\s*:|"\(Topology\) (?:Weight|Hops|Link)'),
    ("hwloc", r"<topology[\s>]"),
    ("sysfs", r"devices/pci[0-9a-f]{4,8}:[0-9a-f]{2}/|devices/system/(?:node|cpu)/"),
)
#: Formats of lines of text; a report may contain several of them.
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
#: Output of programs that is recognised but not read: pattern, program and remedy.
_UNREAD: tuple[tuple[str, str, str], ...] = (
    (r"ROCm System Management Interface|^=+ ROCm SMI", "rocm-smi", "give rocm-smi --showtopo"),
    (r"\bAMD-?SMI\b|^GPU: \d+\s*$", "amd-smi", "give amd-smi topology"),
    (r"\bNVIDIA-SMI \d", "nvidia-smi without options", "give nvidia-smi topo -m and -q -x"),
    (r"=+NVSMI LOG=+", "nvidia-smi -q as text", "give nvidia-smi -q -x"),
    (r"^Machine \(.*total\)|^Machine L#0|^  (?:Package|NUMANode) L#", "lstopo as text",
     "give lstopo --of xml"),
    (r"^[0-9a-f:]{2,10}[0-9a-f]{2}\.[0-7] (?:VGA|3D|Non-VGA|PCI bridge|Ethernet|Infiniband|Host)"
     r"|^ *[-|+ \\]+\[[0-9a-f]{4}:[0-9a-f]{2}\]-",
     "lspci", "give lstopo --of xml, or a copy of /sys"),
    (r"\bNCCL INFO ", "NCCL's log (NCCL_DEBUG)", "give the file of NCCL_TOPO_DUMP_FILE"),
    (r'"busbar_fit"\s*:', "a fit of link costs",
     "busbar collectives cost --fit reads it; simulate reads the map that was fitted"),
    (r"<algo\s", "an MSCCL schedule", "busbar collectives verify reads it"),
    (r"^\| To GPU \d+ ", "dcgmi topo", "give nvidia-smi topo -m"),
    (r"^index, |\bpci\.bus_id\b", "nvidia-smi --query-gpu", "give nvidia-smi -q -x"),
    (r"Failed to initialize NVML|NVIDIA-SMI has failed", "an error of nvidia-smi",
     "load the driver, or reboot after its update"),
    (r"^\S+ port \d+ ==> ", "ibdev2netdev", "give nvidia-smi topo -m, or a copy of /sys"),
    (r"\bNPU ?0[ \t]+X\b|\bnpu-smi\b", "Ascend's npu-smi", "give lstopo --of xml"),
    (r"\bxpu-smi\b|\bGPU 0/0\b.*\bGPU 1/0\b", "Intel's xpu-smi", "give lstopo --of xml"),
    (r"\bmthreads-gmi\b|\bmx-smi\b|\bixsmi\b|\bhy-smi\b", "another maker's smi",
     "give lstopo --of xml"),
    (r"^CA '\S+'$|^CA type:", "ibstat", "give nvidia-smi topo -m, or a copy of /sys"),
    (r"^available: \d+ nodes", "numactl -H", "give lstopo --of xml"),
    (r"^Architecture:\s+\S+$", "lscpu", "give lstopo --of xml"),
)  # fmt: skip
#: Output and files of benchmarks: Busbar, nccl-tests, OSU, Intel, perftest and others.
_MEASURED = (
    r'"bus_factor"\s*:|^collective,algorithm,|^# *(?:Collective test starting|nThread \d)|^# OSU |'
    r"^# *Intel\(R\) MPI Benchmarks|out-of-place +in-place|\"out_of_place\"\s*:|"
    r"#bytes +#iterations|COMMS-RES|alg_bandwidth\(GB/s\)|^# *Benchmarking: |payload \| +busbw"
)
#: A row of a single GPU, or of a damaged matrix, whose parser reports the reason.
_ALONE = r"\bGPU ?[0-9]+[ \t|,;]+(?:X|NV[0-9]+|PIX|PXB|PHB|NODE|SYS|SOC)(?:\s|$)"
#: A header that only ``topo -m`` prints above such a row.
_ALONE_HEADER = r"\bGPU ?0\b.*CPU ?Affinity"


def recognise(text: str) -> tuple[str, ...]:
    """The modules in topology.sources that can parse this text, as ``("smi_topo",)``.

    A report may hold several sections (``nvidia-smi -L``, ``topo -m``, ``topo -p2p r`` one after
    the other), hence several names. Raises ProbeError, with a list of formats, for other text.
    """
    bounded("text", text)
    for name, mark in _DOCUMENTS:
        if re.search(mark, text):
            return (name,)
    rows = "\n".join(plain(line) for line in lines("text", text))
    names = tuple(name for name, mark in _SECTIONS if re.search(mark, rows))
    alone = "smi_topo" not in names and re.search(_ALONE, rows)
    if alone and (not names or re.search(_ALONE_HEADER, rows)):
        names = ("smi_topo", *names)
    if names:
        return names
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
    """Recognise a text and parse all of its sections. Raises ProbeError if that fails."""
    modules = [importlib.import_module(f"topology.sources.{name}") for name in recognise(text)]
    maps: list[Topology] = [module.parse(text) for module in modules]
    return merge(maps)


TIMEOUT_S = 60
#: nvidia-smi's sources, which know less: they are used only if NVML does not answer.
_INSTEAD_OF_NVML = ("smi_topo", "smi_xml", "smi_nvlink", "smi_p2p")


def gather(files: Iterable[str]) -> tuple[Topology, tuple[str, ...]]:
    """The map of the named files, or of this machine without files; also notes for users.

    ``-`` is standard input; a folder is a copy of ``/`` with sys and proc. Of several statements of
    a fact the first file's is used. Raises MissingFile, and ProbeError, with the file, if it cannot
    be read or parsed, if two matrices of one program are unlike, or if no source of this machine
    answers.
    """
    names = list(files)
    if not names:
        return _machine()
    maps = [_file(name) for name in names]
    for (first, a), (second, b) in combinations(zip(names, maps, strict=True), 2):
        if difference := _difference(a, b):
            reason = (
                f"a matrix unlike the one of {first} ({difference}); give one machine at a time"
            )
            raise ProbeError(second, reason)
    return merge(maps), ()


#: What matrices of paths state of a pair. Rates differ from run to run, P2P by the operation.
_PATHS = ("level", "nvlinks")


def _difference(a: Topology, b: Topology) -> str:
    """What two matrices of one program state differently; empty if nothing, or no such matrices."""
    one, other = (
        {
            (pair.a, pair.b, pair.fact.name, pair.fact.source): pair.fact.value
            for pair in topology.pairs
            if pair.fact.name in _PATHS
        }
        for topology in (a, b)
    )
    gpus = [sorted(gpu.busid or gpu.id for gpu in topology.gpus) for topology in (a, b)]
    if (one or other) and a.sources == b.sources and gpus[0] != gpus[1]:
        return f"other GPUs: {len(gpus[0])} and {len(gpus[1])}"
    differing = (key for key, value in one.items() if other.get(key, value) != value)
    key = next(differing, None)
    return "" if key is None else f"{key[0]} and {key[1]}, {key[2]}: {one[key]} and {other[key]}"


def _file(name: str) -> Topology:
    where = "standard input" if name == "-" else name
    try:
        if name != "-" and Path(name).is_dir():
            from topology.sources import sysfs

            return sysfs.read(Path(name))
        return parse(_text(name))
    except OSError as error:
        if isinstance(error, FileNotFoundError) and not Path(name).exists():
            raise unreadable(Path(name), error, Unsupported) from None
        raise ProbeError(where, f"cannot be read: {error.strerror or error}") from None
    except ProbeError as error:
        raise ProbeError(where, str(error)) from None


def _text(name: str) -> str:
    """The file's text. Raises ProbeError if it exceeds the limit; reads at most one byte more."""
    limit = MAX_BYTES
    raw = sys.stdin.buffer.read(limit + 1) if name == "-" else read_some(Path(name), limit)
    if len(raw) > MAX_BYTES:
        raise ProbeError("text", f"more than {MAX_BYTES} bytes; no machine's map is so large")
    return decoded(raw)


def _machine() -> tuple[Topology, tuple[str, ...]]:
    maps: list[Topology] = []
    notes: list[str] = []
    tried = [name for name in LIVE if name not in _INSTEAD_OF_NVML]
    for name in tried:
        if name == "hwloc" and shutil.which(LIVE[name][0]) is None:
            continue  # sysfs has stated the same, so its absence needs no note
        _ask(name, maps, notes)
    if not any("nvml" in topology.sources for topology in maps) and shutil.which("nvidia-smi"):
        for name in _INSTEAD_OF_NVML:
            _ask(name, maps, notes)
    if not maps:
        raise ProbeError("machine", f"no source answers here ({'; '.join(notes)}); use --from FILE")
    machine = _with_host_name(merge(maps))
    if not (machine.gpus or any(Path("/dev").glob("nvidia*")) or Path("/dev/dxg").exists()):
        # No GPU is expected here, so that NVML does not start is no news.
        notes = [note for note in notes if not note.startswith("nvml:")]
    return machine, tuple(notes)


def _with_host_name(machine: Topology) -> Topology:
    """This machine's map, in which its host has a name even if no source states one."""
    devices = tuple(
        replace(one, name=one.name or socket.gethostname()) if one.kind is Kind.HOST else one
        for one in machine.devices
    )
    return replace(machine, devices=devices)


def _ask(name: str, maps: list[Topology], notes: list[str]) -> None:
    source, command = importlib.import_module(f"topology.sources.{name}"), LIVE[name]
    try:
        maps.append(source.parse(_printed(source.NAME, command)) if command else source.read())
    except ProbeError as error:
        notes.append(str(error))


def _printed(source: str, command: Sequence[str]) -> str:
    """The output of a command. Raises ProbeError if the command is missing, fails or hangs."""
    path = shutil.which(command[0])
    if path is None:
        raise ProbeError(source, f"{command[0]} is not installed here; give its output with --from")
    try:
        done = subprocess.run(  # a fixed command of ours, found by which
            [path, *command[1:]], capture_output=True, timeout=TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ProbeError(source, f"{' '.join(command)}: {error}") from None
    text = done.stdout.decode("utf-8", "replace")
    if done.returncode != 0:
        lines = (done.stderr.decode("utf-8", "replace") or text).strip().splitlines() or ["nothing"]
        raise ProbeError(source, f"{' '.join(command)} failed ({done.returncode}): {lines[-1]}")
    return text
