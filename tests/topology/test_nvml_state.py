"""A GPU's state now, through the real pynvml answered by the mock library."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from . import mock_nvml

SCRIPT = """
import json, sys
from busbar.errors import ProbeError
from topology.sources.nvml import gauge
for busid, uuid in json.loads(sys.argv[1]):
    try:
        gpu = gauge(busid, uuid)
        looks = [vars(gpu.look()), vars(gpu.look())]
        print(json.dumps({"name": gpu.name, "busid": gpu.busid, "uuid": gpu.uuid, "looks": looks}))
        gpu.close()
    except ProbeError as error:
        print(json.dumps(str(error)))
"""


def _asked(
    library: Path, folder: Path, machine: dict[str, Any], gpus: list[tuple[str | None, str | None]]
) -> list[Any]:
    said = mock_nvml.carried_out(library, machine, folder, SCRIPT, json.dumps(gpus))
    return [json.loads(line) for line in said.splitlines()]


def test_a_gpu_is_found_by_address_or_uuid(nvml_library: Path, tmp_path: Path) -> None:
    """Rule: the GPU that is named answers, with our units; one that is not there is an error."""
    machine = mock_nvml.description("dgx-a100")
    uuid = "GPU-00000000-0000-0000-0000-000000000003"
    asked = [("00000000:0F:00.0", None), (None, uuid), ("0000:ff:00.0", None)]
    second, fourth, missing = _asked(nvml_library, tmp_path, machine, asked)
    assert (second["busid"], fourth["uuid"]) == ("0000:0f:00.0", uuid)
    look = second["looks"][0]
    assert (look["clock_sm_hz"], look["clock_memory_hz"]) == (1095e6, 1215e6)
    assert (look["power_w"], look["energy_j"], look["temperature_c"]) == (90.0, 99.0, 41.0)
    assert look["throttle"] == [] and second["looks"][1]["at"] >= look["at"]
    assert "no GPU 0000:ff:00.0" in missing


def test_what_a_gpu_does_not_say_is_none(nvml_library: Path, tmp_path: Path) -> None:
    """Rule: a call that is refused leaves its figure unknown, and the others as they are."""
    machine = mock_nvml.description("gtx-7")
    machine["gpu"] = {k: v for k, v in machine["gpu"].items() if k not in ("energy_mj", "power_mw")}
    machine["gpu"]["reasons"] = 0x44
    for gpu in machine["gpus"]:
        gpu.pop("power_mw", None), gpu.pop("energy_mj", None), gpu.pop("reasons", None)
    [found] = _asked(nvml_library, tmp_path, machine, [(machine["gpus"][0]["busid"], None)])
    for look in found["looks"]:
        assert look["energy_j"] is None and look["power_w"] is None
        assert look["clock_memory_hz"] > 0
        assert look["throttle"] == ["sw_power_cap", "hw_thermal_slowdown"]


def test_without_a_driver_it_is_one_line(nvml_library: Path, tmp_path: Path) -> None:
    """Rule: NVML that does not start is said with its reason."""
    pytest.importorskip("pynvml")
    machine = {**mock_nvml.description("dgx-a100"), "override": {"gpu_count": "!15"}}
    [said] = _asked(nvml_library, tmp_path, machine, [("0000:0f:00.0", None)])
    assert "no state of GPU 0000:0f:00.0" in said


def test_two_threads_may_find_the_same_thing_refused() -> None:
    """Rule: what NVML refuses is not asked again, also when two looks find it at the same time."""
    from topology.sources.nvml import Gauge

    class Library:
        NVMLError = ValueError
        within = False

        def nvmlDeviceGetPowerUsage(self, handle: object) -> int:  # noqa: N802
            if not self.within:
                self.within = True
                gauge.look()  # as another thread does meanwhile
            raise self.NVMLError

    gauge = Gauge(Library(), None, {"busid": "", "uuid": "", "name": ""})
    assert gauge.look().power_w is None and not gauge._calls
