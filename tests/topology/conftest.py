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
from .samples import Samples, write

Loaded = tuple[dict[str, Any], Topology]


PUBLIC = os.environ.get("BUSBAR_SAMPLES")


@pytest.fixture(
    scope="session",
    params=["own", *([pytest.param("public", marks=pytest.mark.thorough)] if PUBLIC else [])],
)
def samples(request: pytest.FixtureRequest) -> Samples:
    """A folder of texts by dialect: our own, and public ones where BUSBAR_SAMPLES names them."""
    if request.param == "own":
        return Samples(once("topology", write), False)
    return Samples(Path(str(PUBLIC)) / "topology", True)


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
