"""NVML through the real pynvml, answered by the mock library."""

from __future__ import annotations

from pathlib import Path

import pytest

from busbar.installation import extra
from topology.model.topology import Kind, LinkKind
from topology.sources import own_json

from . import mock_nvml
from .conftest import Loaded


def test_matrix_is_the_expected_one(machine: Loaded) -> None:
    """Rule: levels and NVLinks come through ctypes as the machine has them."""
    described, topology = machine
    expected = tuple(tuple(line.split()) for line in described["expect"]["matrix"].splitlines())
    assert topology.matrix() == expected
    for pair, level in described["expect"].get("levels", {}).items():
        stated = topology.relation(*pair.split("-")).level
        assert stated is not None
        assert stated.name == level


def test_devices_have_their_facts(machine: Loaded) -> None:
    """Rule: names, bus ids, clocks, power and affinities arrive in our units."""
    described, topology = machine
    for gpu, own in zip(topology.gpus, described["gpus"], strict=True):
        said = {**described["gpu"], **own}
        assert gpu.busid == said["busid"]
        assert gpu.name == said["name"]
        assert gpu.get("clock_memory_max_hz") == said["clock_max"][2] * 1_000_000
        assert gpu.get("pcie_width") == said["pcie_width"]
        if isinstance(said["power_mw"], int):
            assert gpu.get("power_w") == said["power_mw"] / 1000
        if gpu.get("nvlinks"):
            assert gpu.get("nvlink_version") == described.get("nvlink_version", 3)
        if "nodes" in said:
            assert gpu.get("numa_affinity") == str(said["nodes"][0].bit_length() - 1)
    expected = described["expect"]
    assert len(topology.of(Kind.SWITCH)) == expected.get("switches", 0)
    assert len(topology.of(Kind.MIG)) == expected.get("migs", 0)
    assert sum(link.kind is LinkKind.C2C for link in topology.links) == expected.get("c2c", 0)


def test_unsupported_calls_are_gaps(machine: Loaded) -> None:
    """Rule: what a card or driver does not answer is recorded with its reason, never a crash.

    That a card for consumers has no application clocks is an answer.
    """
    described, topology = machine
    calls = {gap.call for gap in topology.gaps}
    assert set(described["expect"].get("gaps", [])) <= calls
    assert all(gap.reason and gap.subject for gap in topology.gaps)
    assert "nvmlDeviceGetApplicationsClock" not in calls


@pytest.mark.parametrize("code", [1, 3, 4, 13, 15, 999])
def test_any_call_may_fail_alone(nvml_library: Path, tmp_path: Path, code: int) -> None:
    """Rule: each call may fail with any error, and all that is lost is its own fact."""
    described = mock_nvml.description("dgx-1v")
    keys = [
        key
        for key in mock_nvml.answers(described)
        if key.startswith("gpu.0.") and key != "gpu.0.links"
    ]
    described["override"] = dict.fromkeys(keys, f"!{code}")
    described["override"] |= {"pair.1.2.level": f"!{code}", "pair.2.1.p2p.0": f"!{code}"}
    topology = own_json.parse(mock_nvml.read(nvml_library, described, tmp_path))
    assert len(topology.gpus) == 8
    assert topology.device("GPU0").get("memory") is None
    assert topology.device("GPU1").get("memory") is not None
    assert topology.relation("GPU1", "GPU2").level is None
    assert topology.relation("GPU2", "GPU3").text == "NV2"


def test_missing_symbols_of_old_drivers_are_gaps(nvml_library: Path, tmp_path: Path) -> None:
    """Rule: a driver that does not export a call is a gap named Function Not Found."""
    old = mock_nvml.compile_mock(tmp_path / "old", "-DOLD_DRIVER")
    topology = own_json.parse(mock_nvml.read(old, mock_nvml.description("dgx-a100"), tmp_path))
    reasons = {gap.call: gap.reason for gap in topology.gaps}
    assert reasons["nvmlDeviceGetGpuFabricInfoV"] == "Function Not Found"
    assert reasons["nvmlDeviceGetMemoryAffinity"] == "Function Not Found"
    assert topology.relation("GPU0", "GPU1").level is not None


TRY = """
from busbar.errors import ProbeError
from topology.sources import nvml
try:
    nvml.read()
except ProbeError as error:
    print(error)
"""


def test_no_driver_is_a_sentence(nvml_library: Path, tmp_path: Path) -> None:
    """Rule: an NVML that does not start is one ProbeError that says so."""
    env = {"LD_LIBRARY_PATH": str(nvml_library), "BUSBAR_MOCK_NVML": str(tmp_path / "absent")}
    assert "NVML does not start: Driver Not Loaded" in mock_nvml.printed(TRY, **env)


def test_no_pynvml_is_a_sentence(tmp_path: Path) -> None:
    """Rule: without nvidia-ml-py the message names the package to install."""
    (tmp_path / "pynvml.py").write_text("raise ImportError\n")
    said = mock_nvml.printed(TRY, PYTHONPATH=f"{tmp_path}:{mock_nvml.ROOT}")
    assert extra("nvml") in said
