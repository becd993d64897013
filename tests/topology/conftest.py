"""Texts of machines, and the compiled mock of NVML."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.once import once
from topology.model.merge import merge
from topology.model.topology import Topology
from topology.sources import own_json, sysfs

from . import mock_nvml

Loaded = tuple[dict[str, Any], Topology]


#: A folder of published texts; tests that need it are collected only where it is.
PUBLIC = os.environ.get("BUSBAR_SAMPLES", "")
collect_ignore = [] if PUBLIC else ["test_samples.py"]


@pytest.fixture(scope="session")
def nvml_library() -> Path:
    """The folder with the compiled libnvidia-ml.so.1."""
    if shutil.which(os.environ.get("CC", "cc")) is None:
        pytest.skip("no C compiler to build the mock of NVML with")
    pytest.importorskip("pynvml")
    pytest.importorskip("yaml")
    return once("nvml", mock_nvml.compile_mock)


@pytest.fixture(scope="session", params=mock_nvml.MACHINES)
def machine(request: pytest.FixtureRequest, nvml_library: Path) -> Loaded:
    """A description and the map that NVML (and sysfs, where the description has it) gives of it."""
    described = mock_nvml.description(request.param)

    def ask(to: Path) -> None:
        (to / "said").write_text(mock_nvml.read(nvml_library, described, to))

    topology = own_json.parse((once(f"nvml-{request.param}", ask) / "said").read_text())
    if "sysfs" in described:
        topology = merge([topology, sysfs.parse(described["sysfs"])])
    return described, topology
