"""The model: what it refuses, what it derives, and that its JSON loses nothing."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from busbar.errors import ProbeError
from topology.model.device import Fact, Gap
from topology.model.topology import Device, Kind, Level, Link, LinkKind, PairFact, Topology
from topology.sources import own_json

TEXT = st.text(max_size=12)
VALUES = st.one_of(
    TEXT,
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    st.lists(st.integers(0, 99), max_size=3).map(tuple),
    st.lists(TEXT, max_size=3).map(tuple),
)
FACTS = st.lists(st.builds(Fact, TEXT, VALUES, TEXT), max_size=4).map(tuple)


@st.composite
def topologies(draw: st.DrawFn) -> Topology:
    """Any topology that hangs together: parents come before children."""
    ids = draw(st.lists(TEXT, min_size=1, max_size=6, unique=True))
    devices = []
    for n, id in enumerate(ids):
        parent = draw(st.sampled_from([None, *ids[:n]]))
        kind = draw(st.sampled_from(Kind))
        index = draw(st.none() | st.integers(0, 9))
        devices.append(Device(id, kind, index, draw(TEXT), None, None, parent, draw(FACTS)))
    end = st.sampled_from(ids)
    count = st.integers(1, 18)
    links = st.lists(st.builds(Link, st.sampled_from(LinkKind), end, end, TEXT, count), max_size=3)
    levels = st.sampled_from(list(Level)).map(lambda level: Fact("level", level.name, "x"))
    pairs = st.lists(st.builds(PairFact, end, end, levels), max_size=3)
    gaps = st.lists(st.builds(Gap, TEXT, TEXT, TEXT, TEXT), max_size=2)
    sources = st.lists(TEXT, max_size=2).map(tuple)
    parts = [draw(part.map(tuple)) for part in (links, pairs)]
    return Topology(tuple(devices), *parts, draw(FACTS), draw(gaps.map(tuple)), draw(sources))


@given(topologies())
def test_json_reads_back_equal_and_writes_the_same(topology: Topology) -> None:
    """Rule: JSON keeps every fact and its provenance, and equal maps give equal text."""
    text = own_json.dump(topology)
    assert own_json.parse(text) == topology
    assert own_json.dump(own_json.parse(text)) == text


@given(topologies())
def test_relations_are_symmetric(topology: Topology) -> None:
    """Rule: a to b is what b to a is, whatever is known."""
    matrix = topology.matrix()
    assert matrix == tuple(zip(*matrix, strict=True))


def _gpu(n: int, parent: str | None = None) -> Device:
    return Device(f"GPU{n}", Kind.GPU, n, parent=parent)


@pytest.mark.parametrize(
    ("devices", "links", "reason"),
    [
        ((_gpu(0), _gpu(0)), (), "two devices are called GPU0"),
        ((_gpu(0, "NUMA0"),), (), "GPU0 hangs on NUMA0, which is absent"),
        ((_gpu(0, "GPU1"), _gpu(1, "GPU0")), (), "its own ancestor"),
        ((_gpu(0),), (Link(LinkKind.NVLINK, "GPU0", "GPU1", "x"),), "names GPU1, which is absent"),
    ],
)
def test_a_map_that_does_not_hang_together_is_refused(
    devices: tuple[Device, ...], links: tuple[Link, ...], reason: str
) -> None:
    """Rule: no duplicate ids, no absent ends, no cycles."""
    with pytest.raises(ProbeError, match=reason):
        Topology(devices, links)


def test_statements_come_before_the_tree_and_keep_their_sources() -> None:
    """Rule: the first source is believed; the others are kept and contradictions reported."""
    pairs = tuple(
        PairFact("GPU0", "GPU1", Fact("level", level, who))
        for level, who in (("PIX", "a"), ("SYS", "b"))
    )
    gpu = Device(
        "GPU0", Kind.GPU, 0, facts=(Fact("pcie_width", 8, "a"), Fact("pcie_width", 16, "b"))
    )
    topology = Topology((gpu, _gpu(1)), (), pairs, sources=("a", "b"))
    relation = topology.relation("GPU1", "GPU0")
    assert (relation.level, relation.sources) == (Level.PIX, ("a", "b"))
    assert gpu.get("pcie_width") == 8
    assert {(c.subject, c.name) for c in topology.contradictions()} == {
        ("GPU0", "pcie_width"),
        ("GPU0 and GPU1", "level"),
    }


def test_unknown_devices_are_named_with_those_there_are() -> None:
    """Rule: a mistyped device is one clear error."""
    with pytest.raises(ProbeError, match="no device 'GPU9'; GPUs and NICs here: GPU0"):
        Topology((_gpu(0),)).relation("GPU0", "GPU9")


@pytest.mark.parametrize(
    "change",
    [
        {"busbar_topology": 2},
        {"devices": [{"id": "GPU0"}]},
        {"devices": [{"id": "GPU0", "kind": "toaster"}]},
        {"devices": [{"id": 3, "kind": "gpu"}]},
        {"devices": [{"id": "GPU0", "kind": "gpu", "facts": [["a", None, "b"]]}]},
        {"devices": "GPU0"},
        {"pairs": [{"a": "GPU0", "b": "GPU0", "name": "level", "value": "FAR", "source": "x"}]},
        {"gaps": [{"source": "x"}]},
    ],
)
def test_broken_json_is_refused(change: dict[str, object]) -> None:
    """Rule: our JSON is checked as any other text is."""
    document = {"busbar_topology": 1, "devices": [], **change}
    with pytest.raises(ProbeError):
        own_json.parse(json.dumps(document))
