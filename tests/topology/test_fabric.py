"""The health of the NVSwitch fabric, from nvidia-smi's XML and from NVML."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topology.diagnostics import check
from topology.model.topology import Topology
from topology.sources import fabric, own_json, smi_xml

from . import mock_nvml, texts

FABRIC = """
\t\t<fabric>
\t\t\t<state>Completed</state>
\t\t\t<status>{status}</status>
\t\t\t<health>
\t\t\t\t<summary>{summary}</summary>
\t\t\t\t<bandwidth>{bandwidth}</bandwidth>
\t\t\t\t<route_recovery_in_progress>False</route_recovery_in_progress>
\t\t\t\t<route_unhealthy>{route}</route_unhealthy>
\t\t\t\t<access_timeout_recovery>False</access_timeout_recovery>
\t\t\t\t<incorrect_configuration>{configuration}</incorrect_configuration>
\t\t\t</health>
\t\t</fabric>
"""
WELL = {
    "status": "Success", "summary": "Healthy", "bandwidth": "Full", "route": "False",
    "configuration": "None",
}  # fmt: skip


def _xml(**said: str) -> Topology:
    block = FABRIC.format(**{**WELL, **said})
    return smi_xml.parse(texts.SMI_XML.replace("</gpu>", f"{block}</gpu>", 1))


def _fabric_findings(topology: Topology) -> list[tuple[str, str]]:
    found = [finding for finding in check(topology) if finding.code.startswith("nvswitch-")]
    return [(finding.code, finding.evidence) for finding in found]


@pytest.mark.parametrize(
    ("said", "evidence"),
    [
        ({"summary": "Unhealthy", "route": "True"}, "unhealthy, route unhealthy: GPU0"),
        ({"summary": "Limited Capacity", "bandwidth": "Degraded"},
         "limited capacity, bandwidth degraded: GPU0"),
        ({"route": "True"}, "route unhealthy: GPU0"),
        ({"configuration": "Insufficient Nvlinks"},
         "incorrect configuration: insufficient nvlinks: GPU0"),
    ],
)  # fmt: skip
def test_nvidia_smi_states_an_unhealthy_fabric(said: dict[str, str], evidence: str) -> None:
    """Rule: `Unhealthy` or a named problem in <health> is a finding although registration is well.

    Found from outside: `route_unhealthy True` gave no finding.
    """
    assert _fabric_findings(_xml(**said)) == [("nvswitch-fabric-health", evidence)]


def test_healthy_and_unstated_fabrics_are_no_finding() -> None:
    """Rule: `Healthy`, and `N/A` where the machine does not report health, accuse nothing."""
    assert _fabric_findings(_xml()) == []
    nothing = dict.fromkeys(("summary", "bandwidth", "route", "configuration"), "N/A")
    assert _fabric_findings(_xml(**nothing)) == []
    assert _xml(**nothing).device("GPU0").get("fabric_health") is None


def test_an_unknown_error_of_the_registration_is_one() -> None:
    """Rule: nvidia-smi's "Unknown Error", elsewhere no value, is an error of the registration."""
    assert _fabric_findings(_xml(status="Unknown Error")) == [
        ("nvswitch-fabric", "fabric registration: unknown error: GPU0")
    ]


@given(st.integers(0, 2**32 - 1))
def test_a_mask_never_fails_and_zero_states_nothing(mask: int) -> None:
    """Rule: any healthMask is read; fields of 0 state nothing; only named values are problems."""
    problems = fabric.problems_of_mask(mask)
    stated = any(mask >> shift & 3 for shift in (0, 2, 4, 6, 12)) or mask >> 8 & 0xF
    assert stated or not problems
    assert ("route unhealthy" in (problems or ())) == (mask >> 4 & 3 == 1)
    assert ("bandwidth degraded" in (problems or ())) == (mask & 3 == 1)


@pytest.mark.parametrize("version", [2, 3])
def test_nvml_states_the_health(nvml_library: Path, tmp_path: Path, version: int) -> None:
    """Rule: healthMask is read from both versions of the structure, the summary from version 3."""
    described = mock_nvml.description("dgx-a100")
    # No degraded bandwidth; an unhealthy route; insufficient NVLinks.
    mask = 2 | 1 << 4 | 5 << 8
    described["override"] = {
        "gpu.3.fabric_health_mask": mask, "gpu.3.fabric_health_summary": 2,
        "gpu.4.fabric_health_mask": 2 | 2 << 4, "gpu.4.fabric_health_summary": 1,
        **{f"gpu.{n}.fabric_version": version for n in range(8)},
    }  # fmt: skip
    topology = own_json.parse(mock_nvml.read(nvml_library, described, tmp_path))
    words = "route unhealthy, incorrect configuration: insufficient nvlinks: GPU3"
    summary = "unhealthy, " if version == 3 else ""
    assert _fabric_findings(topology) == [("nvswitch-fabric-health", summary + words)]
    assert topology.device("GPU4").get("fabric_problems") == ()
    assert topology.device("GPU0").get("fabric_problems") is None
