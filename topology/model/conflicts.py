"""Contradictions between the statements of a merged topology."""

from __future__ import annotations

from topology.model.device import Contradiction
from topology.model.facts import SYMMETRIC, VOLATILE, Fact, Value
from topology.model.map import DERIVED, Map
from topology.model.relation import Level

#: The source that is named for a count of NVLinks that were listed one by one.
LINKS = "the links"
#: Sources round sizes and clocks to units of their own.
_ROUNDING = 0.005
#: NCCL's map has no root complexes, so it says PHB where NVML says NODE; both are right.
_SAME_NODE = frozenset({Level.PHB, Level.NODE})


def contradictions(topology: Map) -> tuple[Contradiction, ...]:
    """Return facts that sources state differently, and pairs whose tree is not what was stated."""
    found = [
        Contradiction(device.id, name, said)
        for device in topology.devices
        for name, said in _differing(device.facts)
    ]
    found += [Contradiction("machine", name, said) for name, said in _differing(topology.facts)]
    found += _pair_conflicts(topology)
    return tuple(found)


def _differing(facts: tuple[Fact, ...]) -> list[tuple[str, dict[str, Value]]]:
    said: dict[str, dict[str, Value]] = {}
    for fact in facts:
        if fact.name not in VOLATILE:
            said.setdefault(fact.name, {})[fact.source] = fact.value
    return [(name, values) for name, values in said.items() if not _agree(list(values.values()))]


def _agree(values: list[Value]) -> bool:
    """Whether statements are the same but for rounding (MiB, MHz) and the maker's name."""
    first = values[0]
    if all(isinstance(value, int | float) for value in values):
        numbers = [float(value) for value in values if isinstance(value, int | float)]
        return max(numbers) - min(numbers) <= _ROUNDING * abs(max(numbers, key=abs))
    if all(isinstance(value, str) for value in values):
        return len({str(value).lower().removeprefix("nvidia ") for value in values}) == 1
    return all(value == first for value in values)


def _pair_conflicts(topology: Map) -> list[Contradiction]:
    found: list[Contradiction] = []
    for a, b in topology.stated(topology.endpoints, *SYMMETRIC):
        levels = topology.pair_said(a, b, "level")
        tree = topology.tree_level(a, b)
        if levels and tree is not None:
            levels[DERIVED] = tree.name
        known = {Level[str(value)] for value in levels.values()}
        if len(known) > 1 and not known <= _SAME_NODE:
            found.append(Contradiction(f"{a} and {b}", "level", levels))
        counts = topology.pair_said(a, b, "nvlinks")
        wired = topology.wired_nvlinks(a, b)
        if counts and wired is not None:
            counts[LINKS] = wired
        if len(set(counts.values())) > 1:
            found.append(Contradiction(f"{a} and {b}", "nvlinks", counts))
    return found
