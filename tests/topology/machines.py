"""Small machines built in place, for tests of placement, views and exports."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

from topology.model.device import Fact
from topology.model.topology import Device, Kind, Link, LinkKind, PairFact, Topology

from .mock_nvml import description

SOURCE = "test"
#: NVLinks of a DGX-1V, by pair.
DGX_1V = {(a, b): count for a, b, count in description("dgx-1v")["nvlink"]}


def stated(levels: dict[tuple[int, int], str], size: int) -> Topology:
    """GPUs of which only relations are known, as ``nvidia-smi topo -m`` tells them."""
    gpus = tuple(Device(f"GPU{n}", Kind.GPU, n) for n in range(size))
    pairs = []
    for (a, b), cell in levels.items():
        nvlinks = cell.startswith("NV")
        fact = Fact(*(("nvlinks", int(cell[2:])) if nvlinks else ("level", cell)), SOURCE)
        pairs.append(PairFact(f"GPU{a}", f"GPU{b}", fact))
    return Topology(gpus, (), tuple(pairs), (), (), (SOURCE,))


def field_report() -> Topology:
    """The 7-GPU machine: PIX inside [0,1,2] and [3,4,5,6], PHB across."""
    return stated(
        {(a, b): "PIX" if (a < 3) == (b < 3) else "PHB" for a in range(7) for b in range(a + 1, 7)},
        7,
    )


def dgx_1v() -> Topology:
    """The NVLinks of a DGX-1V; everything else crosses the sockets."""
    cells = {(a, b): "SYS" for a in range(8) for b in range(a + 1, 8)}
    return stated(cells | {pair: f"NV{count}" for pair, count in DGX_1V.items()}, 8)


def switched(shape: Sequence[Sequence[int]], nvlinks: int = 0) -> Topology:
    """NUMA nodes with PCIe switches with GPUs: ``shape[numa][switch]`` GPUs.

    Gen3 x16 everywhere.
    """
    devices = [Device("HOST", Kind.HOST)]
    links: list[Link] = []
    facts = (Fact("pcie_gen_max", 3, SOURCE), Fact("pcie_width_max", 16, SOURCE))
    for numa, switches in enumerate(shape):
        cpus = Fact("cpus", f"{8 * numa}-{8 * numa + 7}", SOURCE)
        devices.append(Device(f"NUMA{numa}", Kind.NUMA, numa, parent="HOST", facts=(cpus,)))
        for number, gpus in enumerate(switches):
            switch = f"SW{numa}.{number}"
            devices.append(Device(switch, Kind.BRIDGE, parent=f"NUMA{numa}", facts=facts))
            for _ in range(gpus):
                index = sum(device.kind is Kind.GPU for device in devices)
                devices.append(Device(f"GPU{index}", Kind.GPU, index, parent=switch, facts=facts))
                if nvlinks:
                    links.append(
                        Link(LinkKind.NVLINK, f"GPU{index}", "NVS0", SOURCE, nvlinks, version=4)
                    )
    if nvlinks:
        devices.append(Device("NVS0", Kind.SWITCH, 0))
    return Topology(tuple(devices), tuple(links), (), (), (), (SOURCE,))


def shapes(most: int) -> st.SearchStrategy[list[list[int]]]:
    """Shapes for ``switched`` with 2 to ``most`` GPUs."""
    numa = st.lists(st.integers(1, 3), min_size=1, max_size=3)
    return st.lists(numa, min_size=1, max_size=3).filter(
        lambda shape: 2 <= sum(map(sum, shape)) <= most
    )


@st.composite
def ranks(draw: st.DrawFn, most: int = 7, classes: int = 4) -> list[list[int]]:
    """A symmetric table of classes of ways between 2 to ``most`` devices; the diagonal is 0."""
    size = draw(st.integers(2, most))
    table = [[0] * size for _ in range(size)]
    for a in range(size):
        for b in range(a):
            table[a][b] = table[b][a] = draw(st.integers(0, classes - 1))
    return table
