"""rocm-smi's and amd-smi's tables of pairs, as text and JSON."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from busbar.errors import ProbeError
from topology.model.topology import Kind, Topology
from topology.sources import amd, gather

from . import texts


def test_rocm_smi_states_links_hops_and_numa_nodes() -> None:
    """Rule: xGMI of one hop is a link, PCIe of three hops crosses CPUs, NUMA nodes are GPUs'."""
    topology = gather.parse(texts.ROCM)
    assert topology.sources == ("amd-smi",)
    assert topology.matrix() == (("X", "NV1", "SYS"), ("NV1", "X", "SYS"), ("SYS", "SYS", "X"))
    assert [gpu.get("numa_affinity") for gpu in topology.gpus] == ["0", "0", "1"]
    assert topology.pair("GPU0", "GPU2", "link_weight") == 72
    assert topology.pair("GPU2", "GPU1", "link_hops") == 3


@pytest.mark.parametrize(("weight", "cell"), [(13, "NV1"), (15, "NV1"), (30, "?"), (45, "?")])
def test_xgmi_over_another_gpu_is_no_link(weight: int, cell: str) -> None:
    """Rule: every xGMI pair has one hop in the tables; 15 a hop in the weight tell direct ones."""
    text = texts.ROCM.replace(" 15 ", f" {weight} ")
    assert gather.parse(text).relation("GPU0", "GPU1").text == cell


def test_amd_smi_states_access_rates_and_bus_ids() -> None:
    """Rule: tables are joined by bus id; access is directed; a link has the largest rate stated."""
    topology = gather.parse(texts.AMD)
    assert [gpu.busid for gpu in topology.gpus] == ["0000:05:00.0", "0000:26:00.0"]
    assert topology.pair("GPU0", "GPU1", "p2p_access") is False
    assert topology.pair("GPU1", "GPU0", "p2p_access") is True
    (link,) = topology.links
    assert (link.a, link.b, link.count, link.rate) == ("GPU0", "GPU1", 1, 64e9)


def test_json_says_the_same() -> None:
    """Rule: both programs' JSON is read; PCIe of two hops leaves the level unknown."""
    rocm = gather.parse(texts.ROCM_JSON)
    assert rocm.matrix() == (("X", "NV1"), ("NV1", "X"))
    pcie = gather.parse(texts.AMD_JSON)
    assert pcie.matrix() == (("X", "?"), ("?", "X")) and not pcie.links
    assert pcie.pair("GPU1", "GPU0", "link_hops") == 2
    nested = json.dumps({"topology": json.loads(texts.AMD_JSON)})
    assert amd.parse(nested).pairs == pcie.pairs


@pytest.mark.parametrize("text", [texts.ROCM, texts.AMD], ids=["rocm-smi", "amd-smi"])
def test_a_cut_text_states_nothing_else(text: str) -> None:
    """Rule: of a text cut anywhere every statement is one of the whole text's, or it is refused.

    A link whose hops or rate were cut off may be stated with less.
    """
    whole = amd.parse(text)
    facts = {(p.a, p.b, p.fact.name, p.fact.value) for p in whole.pairs}
    for at in range(len(text)):
        try:
            part = amd.parse(text[:at])
        except ProbeError:
            continue
        assert [gpu.busid for gpu in part.gpus] == [gpu.busid for gpu in whole.gpus]
        assert {(p.a, p.b, p.fact.name, p.fact.value) for p in part.pairs} <= facts
        assert {(x.a, x.b, x.count) for x in part.links} <= {
            (x.a, x.b, x.count) for x in whole.links
        }


@pytest.mark.parametrize(
    ("old", "new", "reason", "line"),
    [
        ("GPU1   XGMI         0            PCIE", "GPU1   PCIE         0            PCIE",
         "edited or cut", None),
        ("GPU1   1            0            3", "GPU1   1            0", "2 of 3 cells", 13),
        ("GPU2   PCIE         PCIE         0\n", "", "expected the row of GPU2", 20),
        ("GPU0   0            15           72", "GPU0   0            1S           72",
         "'1S' in the table of weight", 6),
        ("       GPU0         GPU1         GPU2\nGPU0   0            1 ",
         "       GPU0         GPU1         GPU3\nGPU0   0            1 ", "other GPUs", 11),
        ("       GPU0         GPU1         GPU2\nGPU0   0            15",
         "       GPU0         GPU0         GPU2\nGPU0   0            15", "twice", 5),
    ],
)  # fmt: skip
def test_damage_is_refused_by_line(old: str, new: str, reason: str, line: int | None) -> None:
    """Rule: a table that is cut, edited or contradicts itself is refused, with its line."""
    assert old in texts.ROCM
    with pytest.raises(ProbeError, match=reason) as refused:
        amd.parse(texts.ROCM.replace(old, new, 1))
    assert refused.value.line == line


@given(st.integers(1, 8), st.data())
def test_drawn_machines_come_back(count: int, data: st.DataObject) -> None:
    """Rule: whatever pairs a machine has, text and map agree on each."""
    pairs = {
        (a, b): data.draw(st.sampled_from(["XGMI 1", "XGMI 2", "PCIE 2", "PCIE 3", "XXXX 0"]))
        for a in range(count)
        for b in range(a + 1, count)
    }

    def table(title: str, part: int, self_: str) -> str:
        head = " ".join(f"GPU{n}" for n in range(count))
        rows = [
            " ".join([f"GPU{a}", *(self_ if a == b else pairs[min(a, b), max(a, b)].split()[part]
                                   for b in range(count))])
            for a in range(count)
        ]  # fmt: skip
        return "\n".join([f"== {title} between two GPUs ==", head, *rows, ""])

    topology: Topology = amd.parse(table("Hops", 1, "0") + table("Link Type", 0, "0"))
    assert len(topology.of(Kind.GPU)) == count
    expected = {"XGMI 1": "NV1", "XGMI 2": "?", "PCIE 2": "?", "PCIE 3": "SYS", "XXXX 0": "?"}
    for (a, b), said in pairs.items():
        assert topology.relation(f"GPU{a}", f"GPU{b}").text == expected[said]
