"""Where the public samples lie, and the compiled mock of NVML."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.once import once
from topology.model.merge import merge
from topology.model.topology import Topology
from topology.sources import nvml, sysfs

from . import mock_nvml

Loaded = tuple[dict[str, Any], Topology]


@pytest.fixture(scope="session")
def samples() -> Path:
    """The folder of real texts; tests say that they skipped where it is not given."""
    root = os.environ.get("BUSBAR_SAMPLES")
    if not root:
        pytest.skip("BUSBAR_SAMPLES is unset: no real texts to read")
    return Path(root) / "topology"


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
        (to / "said").write_text(mock_nvml.snapshot(nvml_library, described, to))

    topology = nvml.parse((once(f"nvml-{request.param}", ask) / "said").read_text())
    if "sysfs" in described:
        topology = merge([topology, sysfs.parse(described["sysfs"])])
    return described, topology
