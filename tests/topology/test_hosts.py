"""hwloc's XML of several machines: one map of several hosts."""

from __future__ import annotations

import pytest

from busbar.errors import ProbeError
from topology.model.topology import Kind
from topology.sources import gather, hwloc, own_json

from . import texts

OTHER = texts.HWLOC.replace("node07", "node08")


def _assembled(extra: str = "") -> str:
    """Both machines below one System object, as hwloc-assembler writes them."""
    start, end = texts.HWLOC.index('  <object type="Machine"'), texts.HWLOC.index("</topology>")
    machines = texts.HWLOC[start:end] + OTHER[start:end]
    return f'<topology>\n<object type="System">\n{machines}</object>{extra}</topology>\n'


@pytest.mark.parametrize("text", [texts.HWLOC + OTHER, _assembled()], ids=["documents", "System"])
def test_several_machines_are_hosts_of_one_map(text: str) -> None:
    """Rule: each machine is a host with its own devices; relations between hosts are unknown."""
    topology = gather.parse(text)
    assert [host.name for host in topology.of(Kind.HOST)] == ["node07", "node08"]
    one = hwloc.parse(texts.HWLOC)
    assert len(topology.devices) == 2 * len(one.devices)
    assert [gpu.id for gpu in topology.gpus] == ["GPU0", "GPU1", "GPU2", "GPU3"]
    assert [gpu.busid for gpu in topology.gpus] == [gpu.busid for gpu in one.gpus] * 2
    assert topology.relation("GPU0", "GPU1") == topology.relation("GPU2", "GPU3")
    assert topology.relation("GPU1", "GPU3").level is None
    host = topology.ancestor("NIC1", Kind.HOST)
    assert host is not None and host.id == "HOST1"
    assert own_json.parse(own_json.dump(topology)) == topology


def test_lines_are_those_of_the_whole_text() -> None:
    """Rule: an error in the second document names its line in the file."""
    text = texts.HWLOC + OTHER.replace('value="node08"/>', 'value="node08">')
    with pytest.raises(ProbeError) as refused:
        hwloc.parse(text)
    assert refused.value.line is not None
    assert refused.value.line > texts.HWLOC.count("\n")


def test_matrices_above_several_machines_are_a_gap() -> None:
    """Rule: a matrix whose rows are numbers that machines share is not read, and this is said."""
    topology = hwloc.parse(_assembled('<distances2 type="NUMANode" nbobjs="2"/>'))
    assert ["several machines" in gap.reason for gap in topology.gaps] == [True]


def test_a_cut_second_machine_is_refused() -> None:
    """Rule: a text that is cut inside a document gives no map of fewer devices."""
    for at in range(len(texts.HWLOC) + 60, len(texts.HWLOC + OTHER) - 12, 97):
        with pytest.raises(ProbeError):
            hwloc.parse((texts.HWLOC + OTHER)[:at])
