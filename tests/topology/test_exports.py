"""Exports: what other programs would read is what the map says, and nothing in it can break out."""

from __future__ import annotations

import re
import sys
import xml.etree.ElementTree as ET
from dataclasses import replace

import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from busbar.cpulist import members
from busbar.errors import ProbeError, Unavailable
from tests.conftest import examples
from topology.exports import EXPORTS, export, shares
from topology.model.device import Fact
from topology.model.topology import Device, Kind, Topology
from topology.sources import gather

from .conftest import Loaded
from .machines import dgx_1v, shapes, switched
from .test_model import topologies


def order_of(topology: Topology) -> tuple[str, ...]:
    """All GPUs."""
    return tuple(gpu.id for gpu in topology.gpus)


@given(topologies(), st.sampled_from(sorted(EXPORTS)))
@examples(150)
def test_any_map_is_exported_or_refused(topology: Topology, name: str) -> None:
    """Rule: an export gives text or a ProbeError, whatever the map; nothing else happens."""
    try:
        assert export(name, topology, order_of(topology)).endswith("\n")
    except ProbeError as error:
        assert error.reason


def test_unknown_format_is_refused_with_the_known_ones() -> None:
    """Rule: an unknown option value is an error that names the choices."""
    with pytest.raises(ProbeError, match="no format 'yaml'; there are cuda, rankfile"):
        export("yaml", dgx_1v(), ())


def test_cuda_numbers_by_bus_id() -> None:
    """Rule: the indices mean what nvidia-smi's do, as CUDA would count the fastest first."""
    assert export("cuda", dgx_1v(), ("GPU0", "GPU3", "GPU2")) == (
        "export CUDA_DEVICE_ORDER=PCI_BUS_ID\nexport CUDA_VISIBLE_DEVICES=0,3,2\n"
    )


@given(shapes(8), st.data())
def test_ranks_share_the_cpus_near_their_gpus(shape: list[list[int]], data: st.DataObject) -> None:
    """Rule: a rank gets CPUs of its GPU's node, a CPU goes to one rank, shares differ by one."""
    topology = switched(shape)
    order = tuple(data.draw(st.permutations(order_of(topology))))
    chosen = [set(cpus) for cpus in shares(topology, order)]
    for id, cpus in zip(order, chosen, strict=True):
        numa = topology.ancestor(id, Kind.NUMA)
        assert numa is not None
        assert cpus <= set(members(str(numa.get("cpus"))) or [])
    assert sum(map(len, chosen)) == len(set().union(*chosen))
    for home in topology.of(Kind.NUMA):
        sizes = [
            len(cpus)
            for id, cpus in zip(order, chosen, strict=True)
            if topology.ancestor(id, Kind.NUMA) == home
        ]
        assert not sizes or max(sizes) - min(sizes) <= 1


def cores() -> Topology:
    """Two GPUs of a node with four cores of two threads, numbered as Intel does."""
    topology = switched([[2]])
    numa = topology.devices[1]
    numa = replace(numa, facts=(Fact("cpus", "0-7", "x"),))
    rows = tuple(
        Device(f"CORE{n}", Kind.CORE, n, parent="NUMA0", facts=(Fact("cpus", f"{n},{n + 4}", "x"),))
        for n in range(4)
    )
    return replace(topology, devices=(topology.devices[0], numa, *topology.devices[2:], *rows))


def test_threads_of_a_core_stay_together() -> None:
    """Rule: where cores are known a core is never cut in two, and slots are core numbers."""
    assert shares(cores(), ("GPU0", "GPU1")) == [[0, 1, 4, 5], [2, 3, 6, 7]]
    lines = export("rankfile", cores(), ("GPU1", "GPU0")).splitlines()
    assert [line for line in lines if not line.startswith("#")] == [
        "rank 0=localhost slot=0-1",
        "rank 1=localhost slot=2-3",
    ]
    assert "Cores=0-3" in export("gres-conf", cores(), ())


def test_launchers_get_one_entry_a_rank() -> None:
    """Rule: MPICH's list and Slurm's masks have a share for every rank, in the order of ranks."""
    order = ("GPU1", "GPU0")
    assert "-bind-to user:0+1+4+5,2+3+6+7" in export("mpich", cores(), order)
    line = export("slurm", cores(), order)
    assert "--cpu-bind=mask_cpu:0x33,0xcc" in line
    assert "--gpu-bind=map_gpu:1,0" in line and not line.startswith("#")


def test_a_part_of_the_gpus_says_why_slurm_allocates_all() -> None:
    """Rule: map_gpu counts allocated GPUs, so all are allocated, and a comment gives the reason."""
    comment, line = export("slurm", cores(), ("GPU1",)).splitlines()
    assert comment == (
        "# all 2 GPUs of the node, since map_gpu counts the GPUs that the job has; tasks use 1"
    )
    assert "--gpus-per-node=2 " in line and "map_gpu:1 " in line


def test_gpus_without_known_cpus_are_no_binding() -> None:
    """Rule: a binding is never invented."""
    with pytest.raises(ProbeError, match="no source says which CPUs are near GPU0"):
        export("rankfile", dgx_1v(), ("GPU0",))


def test_gres_conf_has_every_link() -> None:
    """Rule: Links= has one number a GPU, -1 at its own place, as gres.conf(5) wants it."""
    rows = [row for row in export("gres-conf", dgx_1v(), ()).splitlines() if row[0] != "#"]
    assert rows[0] == "Name=gpu File=/dev/nvidia0 Links=-1,1,1,2,2,0,0,0"
    assert len(rows) == 8


def test_slurm_topologies_name_the_hosts() -> None:
    """Rule: topology.conf and topology.yaml list the same nodes."""
    yaml = pytest.importorskip("yaml")
    hosts = (Device("HOST0", Kind.HOST, name="node 1\nSwitchName=x"), Device("HOST1", Kind.HOST))
    topology = Topology(hosts)
    nodes = "node-1-SwitchName-x,HOST1"
    unnamed, line = export("topology-conf", topology, ()).splitlines()
    assert unnamed.startswith("# no source names HOST1:")
    assert line == f"SwitchName=leaf0 Nodes={nodes}"
    read = yaml.safe_load(export("topology-yaml", topology, ()))
    assert read[0]["tree"]["switches"] == [{"switch": "leaf0", "nodes": nodes}]


def test_what_a_pasted_matrix_lacks_is_left_to_fill_in() -> None:
    """Rule: a name that no source states is no value in an export; a comment asks for it."""
    yaml = pytest.importorskip("yaml")
    conf = export("topology-conf", dgx_1v(), ()).splitlines()
    assert conf[0].startswith("# no source names HOST:") and conf[1].endswith("Nodes=HOST")
    text = export("k8s-labels", dgx_1v(), ())
    labels = yaml.safe_load(text)["metadata"]["labels"]
    assert {name.partition("/")[2] for name in labels} == {
        *("gpu.count", "gpu.interconnect", "gpu.nvlink", "nic.count")
    }
    for name in ("gpu.model", "gpu.models", "numa.count"):
        assert f'# topology.busbar/{name}: ""  no source states it' in text
    alone = Topology(tuple(Device(f"GPU{n}", Kind.GPU, n) for n in range(2)))
    labels = yaml.safe_load(export("k8s-labels", alone, ()))["metadata"]["labels"]
    assert "topology.busbar/gpu.nvlink" not in labels  # no source states what connects them


def test_this_machines_host_has_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: sources of this machine that do not name it do not leave its host without a name."""
    monkeypatch.setattr("socket.gethostname", lambda: "node7")
    monkeypatch.setattr(gather, "LIVE", {"sysfs": ()})
    machine, _ = gather.gather(())
    assert export("topology-conf", machine, ()) == "SwitchName=leaf0 Nodes=node7\n"


def test_labels_keep_kubernetes_rules(machine: Loaded) -> None:
    """Rule: label names and values are ones that Kubernetes accepts."""
    yaml = pytest.importorskip("yaml")
    _, topology = machine
    labels = yaml.safe_load(export("k8s-labels", topology, ()))["metadata"]["labels"]
    assert labels["topology.busbar/gpu.count"] == str(len(topology.gpus))
    for name, value in labels.items():
        assert re.fullmatch(r"[a-z0-9.-]+/[A-Za-z0-9._-]{1,63}", name)
        assert re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?", value)


@given(st.text(max_size=30))
def test_drawings_escape_names(name: str) -> None:
    """Rule: a device's name is text in DOT and GraphML, never markup."""
    topology = Topology((Device("GPU0", Kind.GPU, 0, name=name),))
    dot = export("dot", topology, ())
    assert (
        dot.count("\n") == 4 + len(topology.graph.hops) + len(topology.graph.topology.devices) - 1
    )
    label = re.search(r'"GPU0" \[label="((?:[^"\\]|\\.)*)"\];', dot)
    assert label is not None
    try:
        root = ET.fromstring(export("graphml", topology, ()))
    except ET.ParseError:
        # XML 1.0 has no way to write control characters.
        assert any(not c.isprintable() for c in name)
    else:
        assert root.tag.endswith("graphml")


def test_graphml_reads_back_with_bandwidths() -> None:
    """Rule: another program gets every device and link with its bandwidth in bytes per second."""
    topology = switched([[2], [2]])
    graph = nx.parse_graphml(export("graphml", topology, ()))
    assert graph.edges["GPU0", "SW0.0"]["bandwidth"] == 12e9
    assert set(graph.nodes) == {d.id for d in topology.devices}


def test_graphml_without_its_library_says_what_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: an optional dependency that is absent is a sentence with the remedy."""
    monkeypatch.setitem(sys.modules, "networkx", None)
    with pytest.raises(Unavailable, match=r"networkx is not installed; .*reports"):
        export("graphml", switched([[2]]), ())


def test_measured_racks_are_switches_below_a_spine() -> None:
    """Rule: racks that were told apart are leaves.

    Of other hosts than the map's nothing is told.
    """
    hosts = tuple(Device(f"HOST{n}", Kind.HOST, name=f"host{n}") for n in range(4))
    known = Topology(hosts, facts=(Fact("racks", "host0 host2; host1 host3", "measured"),))
    assert export("topology-conf", known, ()) == (
        "SwitchName=leaf0 Nodes=host0,host2\nSwitchName=leaf1 Nodes=host1,host3\n"
        "SwitchName=spine Switches=leaf0,leaf1\n"
    )
    assert "children: leaf0,leaf1" in export("topology-yaml", known, ())
    for other in ("none told apart", "host0 host2; host1", ""):
        one = Topology(hosts, facts=(Fact("racks", other, "measured"),))
        assert (
            export("topology-conf", one, ()) == "SwitchName=leaf0 Nodes=host0,host1,host2,host3\n"
        )


def test_a_starters_host_is_no_node() -> None:
    """Rule: where ranks were measured the nodes are their hosts, whatever else was merged."""
    hosts = tuple(Device(f"HOST{n}", Kind.HOST, name=f"host{n}") for n in range(2))
    ranks = tuple(Device(f"RANK{n}", Kind.RANK, n, parent=f"HOST{n}") for n in range(2))
    whole = Topology((*hosts, *ranks, Device("HOST", Kind.HOST, name="head")))
    assert export("topology-conf", whole, ()) == "SwitchName=leaf0 Nodes=host0,host1\n"


def test_a_rankfile_without_all_cores_is_refused() -> None:
    """Rule: where the cores of some CPUs are unknown the CPUs are named, and there is no file."""
    known = cores()
    gone = known.of(Kind.CORE)[0].id
    part = replace(known, devices=tuple(one for one in known.devices if one.id != gone))
    with pytest.raises(ProbeError, match="not those of CPUs"):
        export("rankfile", part, ("GPU1", "GPU0"))
