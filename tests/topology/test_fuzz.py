"""Hostile, endless and overlong texts; `tests.torture` damages good ones."""

from __future__ import annotations

import importlib
import re

import pytest

from busbar.errors import ProbeError
from tests.conftest import thorough
from topology.diagnostics import check

from . import texts

PARSERS = {
    name: importlib.import_module(f"topology.sources.{name}")
    for name in (
        "gather", "smi_topo", "smi_p2p", "smi_nvlink", "smi_xml", "nccl_xml", "hwloc", "sysfs",
        "bandwidth", "own_json", "amd",
    )
}  # fmt: skip


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
    monkeypatch.setattr("topology.sources.text.MAX_NODES", 5000)
    with pytest.raises(ProbeError, match=HOSTILE[text]):
        PARSERS[name].parse(text)


def test_a_lone_carriage_return_is_no_line() -> None:
    """Rule: an error in XML names a line that the text has; expat counts carriage returns, too."""
    with pytest.raises(ProbeError) as refused:
        PARSERS["hwloc"].parse('<topology><object \rtype="Machine\r></topology>')
    assert refused.value.line == 1


@pytest.mark.parametrize("name", PARSERS)
def test_endless_texts_are_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: every parser bounds what it takes in."""
    monkeypatch.setattr("topology.sources.text.MAX_BYTES", 100)
    with pytest.raises(ProbeError, match="101 characters"):
        PARSERS[name].parse("x" * 101)


@pytest.mark.parametrize(
    "number",
    ["9" * 5000, "1e999", *thorough("1" + "0" * 399, "14.9.9966", "²")],
    ids=lambda text: text[:9],
)
@pytest.mark.parametrize(("name", "text"), texts.VALID, ids=lambda text: text[:9])
def test_numbers_of_any_length(name: str, text: str, number: str) -> None:
    """Rule: what stands where a number should is read or refused, in one line of bounded length."""
    for match in re.finditer(r"[0-9]+(?:\.[0-9]+)?", text):
        changed = text[: match.start()] + number + text[match.end() :]
        try:
            topology = PARSERS[name].parse(changed)
            topology.graph  # noqa: B018 - what follows from the numbers
            check(topology)
        except ProbeError as error:
            assert len(str(error)) < 1200
