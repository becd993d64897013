"""Records of formats 1 to 3 in the form of format 4: a line a placement, one name a field.

What formats 1 and 2 lack is derived: ranks per core, and whether a rank's work was its own.
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
# Names of format 3 that are others now, of a placement.
_RENAMED: Mapping[str, str] = {
    "times": "times_s", "per_rank": "per_rank_s", "warm_up": "warm_up_s", "limit": "limit_s",
    "sent": "sent_bytes", "received": "received_bytes", "total": "total_bytes", "sync": "window",
}  # fmt: skip
# Of a record's parameters those that are no parameter of an algorithm.
_PARAMETERS = {
    "algorithm": "chosen_algorithm",
    "injected": "injected",
    "per_iteration": "per_iteration",
}
#: Parts that a record can do without, and their types.
_PARTS: Mapping[str, Any] = {
    "step": Step,
    "window": Window,
    "noise": Noise,
    "core_wait": tuple[float, ...],
    "overlapped": Overlap,
    "library_facts": dict[str, Any],
}


def per_core(transport: str, ranks: int, environment: Mapping[str, Any]) -> float | None:
    """Ranks per core; None where it is not known, and on GPUs, whose ranks wait for no core."""
    if transport in _ON_GPUS or environment.get("devices"):
        return None
    return of_environment(environment, ranks)


def shared_work(transport: str, algorithm: str, schedule: str = "") -> bool:
    """Whether work of one rank may have been carried out by another process.

    Until format 3 the executor of ``shm`` gave ranks' work to whoever had a core and fused it
    across steps, for every schedule. A row of ``auto`` without the hash of one ran the library.
    """
    if transport != "shm" or algorithm == LIBRARY:
        return False
    return bool(schedule) or algorithm != "auto"


def to_format_4(
    document: Mapping[str, Any], environment: Mapping[str, Any]
) -> Iterator[dict[str, Any]]:
    """The placements of a record of an older format.

    Raises ValueError, TypeError or AttributeError where it is none.
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
    """A line without what is damaged of the parts that it can do without, and remarks on them."""
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
    """A part as far as it is of its type; None where nothing is; and the keys that are left out."""
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
