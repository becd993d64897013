"""The health of an NVSwitch fabric as a GPU states it: the same facts from NVML and nvidia-smi."""

from __future__ import annotations

from collections.abc import Callable, Mapping

#: nvmlGpuFabricInfo's ``healthSummary``.
SUMMARY: Mapping[int, str] = {1: "healthy", 2: "unhealthy", 3: "limited capacity"}
#: Fields of ``healthMask``: the name of nvidia-smi's element, first bit, mask of the field.
_FIELDS: Mapping[str, tuple[int, int]] = {
    "bandwidth": (0, 0x3),
    "route_recovery_in_progress": (2, 0x3),
    "route_unhealthy": (4, 0x3),
    "access_timeout_recovery": (6, 0x3),
    "incorrect_configuration": (8, 0xF),
    "partition_assigned": (12, 0x3),
}
#: Values of ``incorrect_configuration`` above 1, which is none, in the words of nvidia-smi.
_CONFIGURATION: Mapping[int, str] = {
    2: "incorrect sysguid", 3: "incorrect chassis s/n", 4: "no partition",
    5: "insufficient nvlinks", 6: "incompatible gpu firmware", 7: "invalid location",
    8: "invalid gpu state",
}  # fmt: skip
#: The value of an element that is a problem, and the name of the problem.
_PROBLEMS: Mapping[str, tuple[str, str]] = {
    "bandwidth": ("degraded", "bandwidth degraded"),
    "route_recovery_in_progress": ("true", "route recovery in progress"),
    "route_unhealthy": ("true", "route unhealthy"),
    "access_timeout_recovery": ("true", "recovery from an access timeout"),
    "partition_assigned": ("false", "no partition assigned"),
}


def problems(value: Callable[[str], str | None]) -> tuple[str, ...] | None:
    """Name the problems, from the text of each element of ``<health>`` (None: not stated).

    Returns None if no element states anything: that is neither healthy nor unhealthy.
    """
    states = {name: text.lower() for name in _FIELDS if (text := value(name)) is not None}
    if not states:
        return None
    words = [word for name, (bad, word) in _PROBLEMS.items() if states.get(name) == bad]
    configuration = states.get("incorrect_configuration", "none")
    if configuration not in ("none", "false"):
        words.append(f"incorrect configuration: {configuration}")
    return tuple(words)


def problems_of_mask(mask: int) -> tuple[str, ...] | None:
    """Name the problems in NVML's ``healthMask``. None if it states nothing."""

    def text(name: str) -> str | None:
        shift, width = _FIELDS[name]
        field = mask >> shift & width
        if field == 0:
            return None
        if name == "incorrect_configuration":
            return "none" if field == 1 else _CONFIGURATION.get(field, f"code {field}")
        if name == "bandwidth":
            return {1: "degraded", 2: "full"}.get(field)
        return {1: "true", 2: "false"}.get(field)

    return problems(text)
