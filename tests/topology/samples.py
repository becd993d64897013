"""Texts of machines by dialect: a folder of our own, laid out as a folder of public texts is."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import NamedTuple

from tests.topology import texts
from tests.topology.drawn import GPU, NIC, Card, Machine, Numa, Root, Switch, nccl
from tests.topology.drawn_hwloc import hwloc
from tests.topology.test_topo_layouts import PREFIXES, RESHAPES, text_of


class Samples(NamedTuple):
    """A folder with a folder a dialect; ``public`` where others have published its texts."""

    folder: Path
    public: bool


#: GPUs and NICs of the texts that are not ``topo -m``.
COUNTS = {
    "nccl-xml/pod.xml": (8, 4),
    "nccl-xml/switched.xml": (2, 3),
    "hwloc/pod-1.xml": (8, 4),
    "hwloc/pod-2.xml": (8, 4),
    "hwloc/pod-3.xml": (8, 4),
    "hwloc/small.xml": (2, 1),
    "smi-xml/a100.xml": (2, 0),
    "nvlink/a100.txt": (2, 0),
    "p2p/two.txt": (2, 0),
    "bandwidth/p2p.txt": (2, 0),
    "bandwidth/nvbandwidth.txt": (2, 0),
    "bandwidth/nvbandwidth.json": (2, 0),
}
#: ``topo -m`` as it comes from today's nvidia-smi.
RAW = ("pod-as_it_is",)
_GRAPH = '<graphs version="1"><graph id="0" pattern="4" crossnic="0" nchannels="1"/></graphs>\n'


def _pod() -> Machine:
    """Four NUMA nodes, each with a switch above two GPUs and a NIC; all GPUs have NVLinks."""
    bus, cpu = count(1), count()

    def card(kind: str, name: str = "") -> Card:
        return Card(kind, [f"0000:{next(bus):02x}:00.0"], [name] if name else [])

    def numa(n: int) -> Numa:
        root, port, inner = (f"0000:{next(bus):02x}" for _ in range(3))
        below = [card(GPU), card(GPU), card(NIC, f"mlx5_{n}")]
        switch = Switch(f"{port}:00.0", [f"{inner}:{m:02x}.0" for m in range(3)], [*below])
        cores = [[next(cpu)] for _ in range(4)]
        return Numa(n, cores, [Root(root, [f"{root}:00.0"], [switch])])

    made = Machine([[numa(0), numa(1)], [numa(2), numa(3)]], 0, {}, 2)
    gpus = [gpu.functions[0] for gpu in made.cards(GPU)]
    made.nvlinks = {(a, b): 2 for i, a in enumerate(gpus) for b in gpus[i + 1 :]}
    return made


def _topo_m(machine: Machine, reshape: str, prefix: str) -> str:
    """``nvidia-smi topo -m`` of a machine."""
    gpus = [card.functions[0] for card in machine.cards(GPU)]
    nics = machine.cards(NIC)
    ends = [*gpus, *(card.functions[0] for card in nics)]
    cells = [["X" if a == b else machine.cell(a, b) for b in ends] for a in ends]
    homes = [machine.paths[gpu][1].removeprefix("N") for gpu in gpus]
    cpus = {str(n.index): f"{n.cores[0][0]}-{n.cores[-1][-1]}" for n in machine.numas}
    rest = [[cpus[home], home, "N/A"] for home in homes]
    labels = [*(f"GPU{n}" for n in range(len(gpus))), *(f"NIC{n}" for n in range(len(nics)))]
    names = [card.names[0] for card in nics]
    return text_of(labels, cells, rest, names, reshape, prefix, underlined=reshape == "as it is")


def write(folder: Path) -> None:
    """Fill a folder: every dialect, and an index of the GPUs and NICs of each ``topo -m``."""
    pod = _pod()
    made = {
        f"topo-m/pod-{name.replace(' ', '_')}.txt": _topo_m(pod, name, prefix)
        for name, prefix in zip(RESHAPES, PREFIXES, strict=False)
    }
    rows = [f"| {Path(name).stem} | 8 | 4 |" for name in made]
    made |= {
        "nccl-xml/pod.xml": nccl(pod, [*range(4)]),
        "nccl-xml/switched.xml": texts.NCCL_XML.replace(
            'count="18" tclass="0x068000"/></gpu>',
            'count="9" tclass="0x068000"/>'
            '<nvlink target="0000:c2:00.0" count="9" tclass="0x068000"/></gpu>',
        ),
        "nccl-xml/graph-pod.xml": _GRAPH,
        **{f"hwloc/pod-{n}.xml": hwloc(pod, n, lambda _: False) for n in (1, 2, 3)},
        "hwloc/small.xml": texts.HWLOC,
        "smi-xml/a100.xml": texts.SMI_XML,
        "nvlink/a100.txt": texts.NVLINK,
        "p2p/two.txt": texts.P2P,
        "bandwidth/p2p.txt": texts.P2P_TEST,
        "bandwidth/nvbandwidth.txt": texts.NVBANDWIDTH,
        "bandwidth/nvbandwidth.json": texts.NVBANDWIDTH_JSON,
    }
    for name, text in {**made, "INDEX.md": "\n".join(rows)}.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
