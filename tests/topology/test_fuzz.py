"""Any text gives a Topology or a ProbeError, and nothing else."""

from __future__ import annotations

import importlib
import json
import re
from types import ModuleType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from busbar.errors import ProbeError
from topology.diagnostics.findings import check
from topology.model.topology import Topology
from topology.sources import own_json, recognise

from . import texts

PARSERS = {
    name: importlib.import_module(f"topology.sources.{name}")
    for name in (
        "recognise", "smi_topo", "smi_p2p", "smi_nvlink", "smi_xml", "nccl_xml", "hwloc", "sysfs",
        "bandwidth", "own_json",
    )
}  # fmt: skip
WORDS = st.sampled_from(
    [
        "GPU0", "GPU1", "GPU 0:", "NIC0", "X", "PIX", "NV4", "OK", "NS", "CPU Affinity",
        "GPU NUMA ID", "0-3", "N/A",
        "\t", "  ", "|", "\n", "\n", "\x1b[4m", "Link 0:", "25 GB/s", "(UUID: a)",
        "P2P=Enabled Bandwidth Matrix (GB/s)",
        "Device: 0, A, pciBusID: 5, pciDeviceID: 0, pciDomainID:0", "D\\D", "0", "1", "nan",
        "memcpy CE GPU(row) <- GPU(column) (GB/s)",
        "/sys/devices/pci0000:00/0000:00:01.0/class:0x030200",
        "/sys/devices/system/node/node0/cpulist:0-3", "<", ">", "&a;", '"',
    ]
)  # fmt: skip
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(["index", "a", "b", "id", "kind", "facts", "name", "value", "source"]),
        inner, max_size=4,
    ),
    max_leaves=12,
)  # fmt: skip


def holds(module: ModuleType, text: str) -> None:
    """Parse; whatever comes of it can be shown, checked and saved."""
    try:
        topology = module.parse(text)
    except ProbeError as error:
        assert error.reason
        assert error.line is None or 1 <= error.line <= text.count("\n") + 1
        return
    assert isinstance(topology, Topology)
    topology.matrix()
    check(topology)
    assert own_json.parse(own_json.dump(topology)) == topology


@pytest.mark.parametrize("name", PARSERS)
@settings(max_examples=60, deadline=None)
@given(text=st.text() | st.lists(WORDS, max_size=24).map(" ".join))
def test_any_text(name: str, text: str) -> None:
    """Rule: noise, and noise in a format's own words, is read or refused."""
    holds(PARSERS[name], text)


@pytest.mark.parametrize(("name", "text"), [(name, text) for name, text in texts.VALID])
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_damaged_texts(name: str, text: str, data: st.DataObject) -> None:
    """Rule: cutting, doubling, swapping or replacing parts of a good text cannot crash a parser."""
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(text)))
        end = data.draw(st.integers(start, min(len(text), start + 60)))
        middle = data.draw(st.sampled_from(["", text[start:end] * 2]) | WORDS | st.text(max_size=6))
        text = text[:start] + middle + text[end:]
    holds(PARSERS[name], text)
    holds(recognise, text)


@settings(max_examples=150, deadline=None)
@given(
    document=st.dictionaries(
        st.sampled_from(["devices", "links", "pairs", "facts", "gaps", "sources"]), JSON
    )
)
def test_any_json_of_ours(document: dict[str, object]) -> None:
    """Rule: JSON of any shape is read or refused."""
    holds(own_json, json.dumps({"busbar_topology": 1, **document}))


HOSTILE = {
    '<!DOCTYPE a [<!ENTITY b "c">]><a>&b;</a>': "DTD with declarations",
    '<!DOCTYPE a [<!ENTITY % b "c">]><a/>': "DTD with declarations",
    '<!DOCTYPE a [<!ENTITY b SYSTEM "file:///etc/passwd">]><a>&b;</a>': "DTD with declarations",
    '<!DOCTYPE a SYSTEM "http://example.invalid/a.dtd"><a>&undefined;</a>': "the root is <a>",
    "<a>" * 1000: "more or deeper",
    "<system>" + "<cpu/>" * 6000 + "</system>": "more or deeper",
}


@pytest.mark.parametrize("name", ["smi_xml", "nccl_xml", "hwloc"])
@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: text[10:40])
def test_hostile_xml_is_refused(name: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: no entities, no DTD's contents, bounded depth and size; no file is opened."""
    monkeypatch.setattr("topology.sources.xml_text.MAX_NODES", 5000)
    with pytest.raises(ProbeError, match=HOSTILE[text]):
        PARSERS[name].parse(text)


@pytest.mark.parametrize("name", PARSERS)
def test_endless_texts_are_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: every parser bounds what it takes in."""
    monkeypatch.setattr("topology.sources.text.MAX_BYTES", 100)
    with pytest.raises(ProbeError, match="101 characters"):
        PARSERS[name].parse("x" * 101)


@pytest.mark.parametrize("number", ["1" + "0" * 399, "9" * 5000, "1e999", "14.9.9966", "²"])
@pytest.mark.parametrize(("name", "text"), texts.VALID)
def test_numbers_of_any_length(name: str, text: str, number: str) -> None:
    """Rule: what stands where a number should is read or refused, in one line of bounded length."""
    for match in re.finditer(r"[0-9]+(?:\.[0-9]+)?", text):
        changed = text[: match.start()] + number + text[match.end() :]
        try:
            holds(PARSERS[name], changed)
            PARSERS[name].parse(changed).graph  # noqa: B018 - what follows from the numbers
        except ProbeError as error:
            assert len(str(error)) < 1200
