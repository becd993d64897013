"""Machines in YAML, and the mock libnvidia-ml.so.1 that answers for them to the real pynvml.

A description's ``gpu`` holds what all GPUs share and ``gpus`` what each has of its own; ``groups``
gives common-ancestor levels (devices of one group are that near, outermost last), ``nvlink`` pairs
with their link counts, or ``nvswitches`` with links per switch. ``expect`` holds what the map must
be.
"""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import combinations
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
MACHINES = sorted(path.stem for path in (HERE / "machines").glob("*.yaml"))
#: NVML's numbers of NVLink's generations (nvmlNvlinkVersion_enum): 2.0, 3.1, 4.0, 5.0.
VERSIONS = {2: 2, 3: 5, 4: 6, 5: 7}
LEVELS = {"PIX": 10, "PXB": 20, "PHB": 30, "NODE": 40, "SYS": 50}
NVSWITCH, GPU_PEER = 2, 0


def description(name: str) -> dict[str, Any]:
    """Read one machine's description."""
    import yaml

    loaded: dict[str, Any] = yaml.safe_load((HERE / "machines" / f"{name}.yaml").read_text())
    return loaded


def compile_mock(folder: Path, *flags: str) -> Path:
    """Compile the mock under the driver's SONAME into a folder of its own and return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    library = folder / "libnvidia-ml.so.1"
    command = [os.environ.get("CC", "cc"), "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror"]
    command += [
        "-Wl,-soname,libnvidia-ml.so.1",
        *flags,
        "-o",
        str(library),
        str(HERE / "mock_nvml.c"),
    ]
    subprocess.run(command, check=True)
    return folder


def answers(machine: dict[str, Any]) -> dict[str, Any]:
    """Flatten a description into the keys that the mock looks up."""
    gpus = [{**machine.get("gpu", {}), **own} for own in machine["gpus"]]
    keys: dict[str, Any] = {
        "gpu_count": len(gpus),
        "driver_version": machine.get("driver_version", "550.54.15"),
        "cuda_driver_version": 12040,
    }
    for n, gpu in enumerate(gpus):
        keys |= {f"gpu.{n}.{key}": value for key, value in _flat(gpu)}
        keys.setdefault(f"gpu.{n}.uuid", f"GPU-00000000-0000-0000-0000-{n:012d}")
    for a, b in combinations(range(len(gpus)), 2):
        level = _level(machine, a, b)
        for way in ((a, b), (b, a)):
            keys["pair.{}.{}.level".format(*way)] = LEVELS[level]
            for index in range(5):
                keys["pair.{}.{}.p2p.{}".format(*way, index)] = machine.get("p2p", 0)
    for n, rows in enumerate(_wires(machine, gpus)):
        if rows:
            keys[f"gpu.{n}.links"] = len(rows)
        for link, (kind, peer) in enumerate(rows):
            up = link not in gpus[n].get("links_down", [])
            row = {
                "up": int(up),
                "version": VERSIONS[machine.get("nvlink_version", 3)],
                "type": kind,
                "peer": peer,
            }
            keys |= {f"gpu.{n}.link.{link}.{key}": value for key, value in row.items()}
            keys[f"gpu.{n}.field.164.{link}"] = machine.get("nvlink_mb_s", 25000)
    return keys | machine.get("override", {})


def _flat(value: Any, prefix: str = "") -> list[tuple[str, Any]]:
    if isinstance(value, dict):
        return [row for key, inner in value.items() for row in _flat(inner, f"{prefix}{key}.")]
    if isinstance(value, list):
        return [row for key, inner in enumerate(value) for row in _flat(inner, f"{prefix}{key}.")]
    return [(prefix[:-1], int(value) if isinstance(value, bool) else value)]


def _level(machine: dict[str, Any], a: int, b: int) -> str:
    for level, groups in machine.get("groups", {}).items():
        if any(a in group and b in group for group in groups):
            return str(level)
    return "SYS"


def _wires(machine: dict[str, Any], gpus: list[dict[str, Any]]) -> list[list[tuple[int, str]]]:
    """Each GPU's links: the kind and the bus id of what is at the other end."""
    rows: list[list[tuple[int, str]]] = [[] for _ in gpus]
    for a, b, count in machine.get("nvlink", []):
        rows[a] += [(GPU_PEER, gpus[b]["busid"])] * count
        rows[b] += [(GPU_PEER, gpus[a]["busid"])] * count
    for switch, count in machine.get("nvswitches", {}).items():
        for row in rows:
            row += [(NVSWITCH, switch)] * count
    return rows


def carried_out(
    library: Path, machine: dict[str, Any], folder: Path, script: str, *words: str
) -> str:
    """What a script prints in a process of its own, whose NVML is the mock of a machine."""
    file = folder / "machine.txt"
    file.write_text("".join(f"{key}={value}\n" for key, value in answers(machine).items()))
    return printed(script, *words, LD_LIBRARY_PATH=str(library), BUSBAR_MOCK_NVML=str(file))


def printed(script: str, *words: str, **env: str) -> str:
    """What a script prints in a process of its own, with these variables."""
    done = subprocess.run(
        [sys.executable, "-c", script, *words],
        env={**os.environ, "PYTHONPATH": str(ROOT), **env},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def read(library: Path, machine: dict[str, Any], folder: Path) -> str:
    """Let the real pynvml ask the mock; gives the map as our JSON."""
    script = "from topology.sources import nvml, own_json; print(own_json.dump(nvml.read()))"
    return carried_out(library, machine, folder, script)
