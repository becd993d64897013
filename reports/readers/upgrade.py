"""Convert records of formats 1 to 3 to format 4: one line per placement, one name per field.

Facts that formats 1 and 2 lack are derived: ranks per core, and whether ranks shared their work.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

import msgspec

from reports.records.cores import of_environment
from reports.records.measurement import LIBRARY, GpuSample, Noise, Overlap, Window
from reports.records.steps import Step
from reports.records.table import HEAD_FIELDS

_ON_GPUS = ("nccl", "ipc")
# Fields of a placement in format 3 that have new names.
_RENAMED: Mapping[str, str] = {
    "times": "times_s", "per_rank": "per_rank_s", "warm_up": "warm_up_s", "limit": "limit_s",
    "sent": "sent_bytes", "received": "received_bytes", "total": "total_bytes", "sync": "window",
}  # fmt: skip
# Entries of format 3's parameters that are no parameters of an algorithm, and their fields.
_PARAMETERS = {
    "algorithm": "chosen_algorithm",
    "injected": "injected",
    "per_iteration": "per_iteration",
}
#: Optional parts of a record, and their types.
_PARTS: Mapping[str, Any] = {
    "step": Step,
    "window": Window,
    "noise": Noise,
    "core_wait": tuple[float, ...],
    "overlapped": Overlap,
    "library_facts": dict[str, Any],
}


def per_core(transport: str, ranks: int, environment: Mapping[str, Any]) -> float | None:
    """Ranks per core; None if not known, or on GPUs, where ranks do not wait for cores."""
    if transport in _ON_GPUS or environment.get("devices"):
        return None
    return of_environment(environment, ranks)


def shared_work(transport: str, algorithm: str, schedule: str = "") -> bool:
    """True if work of one rank may have been carried out by another process.

    Before format 3 the ``shm`` executor gave a rank's work to any process with a core and fused it
    across steps, for every schedule. A row of ``auto`` without a schedule's hash ran the library.
    """
    if transport != "shm" or algorithm == LIBRARY:
        return False
    return bool(schedule) or algorithm != "auto"


def to_format_4(
    document: Mapping[str, Any], environment: Mapping[str, Any]
) -> Iterator[dict[str, Any]]:
    """Convert a record of an older format: one line per placement.

    Raises ValueError, TypeError or AttributeError if it is no such record.
    """
    head = {name: document[name] for name in HEAD_FIELDS if name in document}
    if document["format"] < 3:
        transport, algorithm = head.get("transport", ""), head.get("algorithm", "")
        if isinstance(head.get("ranks"), int):
            head["ranks_per_core"] = per_core(transport, head["ranks"], environment)
        head["worksharing"] = shared_work(transport, algorithm, head.get("schedule", ""))
    head["ranks_per_core"] = head.get("ranks_per_core") or None
    parameters = dict(document.get("parameters", {}))
    for old, new in _PARAMETERS.items():
        if old in parameters:
            head[new] = parameters.pop(old)
    placed = {
        "library_facts": parameters.pop("said", {}),
        "overlapped": parameters.pop("overlap", {}),
        **{name: document.get(name, {}) for name in ("noise", "core_wait")},
    }
    head["parameters"] = parameters
    if document.get("step"):
        head["step"] = document["step"]
    gpus = document.get("gpus", ())
    if not isinstance(gpus, (list, tuple)) or not all(isinstance(gpu, dict) for gpu in gpus):
        raise ValueError("gpus are not a list of objects")
    for placement, key in (("out", "out"), ("in", "in_place")):
        half: Any = document.get(key)
        if half is None:
            continue
        if not isinstance(half, dict):
            raise ValueError("a placement is no object")
        line = {**head, "timing": "each", "across": "max", "placement": placement}
        for name, value in half.items():
            if value != {}:
                line[_RENAMED.get(name, name)] = value
        for name, by_placement in placed.items():
            if isinstance(by_placement, dict) and by_placement.get(placement):
                line[name] = by_placement[placement]
        line["gpus"] = [gpu for gpu in gpus if gpu.get("placement") == placement]
        yield line


def without_damage(line: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Remove damaged optional parts from a line. Returns the line, and notes on these parts."""
    sound, remarks = dict(line), list[str]()
    for name, kind in _PARTS.items():
        if name in line:
            sound[name], odd = _sound(line[name], kind)
            remarks += [f"{name} is left out, which cannot be read"] * (sound[name] is None)
            remarks += [f"{name}: {key} is left out, which cannot be read" for key in odd]
            if sound[name] is None:
                del sound[name]
    sound["gpus"] = []
    for gpu in line.get("gpus", ()):
        one, odd = _sound(gpu, GpuSample)
        sound["gpus"].append(one)
        remarks += [f"gpus: {key} is left out, which cannot be read" for key in odd]
    return sound, remarks


def _sound(value: Any, kind: Any) -> tuple[Any, list[str]]:
    """The valid fields of a part (None if it has another type), and the keys that are left out."""
    with suppress(msgspec.ValidationError):
        msgspec.convert(value, kind)
        return value, []
    if not isinstance(value, dict) or not issubclass(kind, msgspec.Struct):
        return None, []
    sound, odd = dict(value), list[str]()
    for field in msgspec.structs.fields(kind):
        try:
            if field.name in value:
                msgspec.convert(value[field.name], field.type)
        except msgspec.ValidationError:
            del sound[field.name]
            odd.append(field.name)
    return sound, odd
