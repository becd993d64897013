"""Busbar's own JSON format: the whole model with provenance, versioned; it reads back equal."""

from __future__ import annotations

import json
from dataclasses import fields
from math import isfinite
from types import UnionType
from typing import Any

from busbar.errors import ProbeError
from topology.model.device import Fact, Gap
from topology.model.topology import Device, Kind, Level, Link, LinkKind, PairFact, Topology
from topology.sources.text import loaded

NAME = "json"
VERSION = 1
KEY = "busbar_topology"


def dump(topology: Topology) -> str:
    """The topology as JSON text; equal topologies give equal text."""
    document = {
        KEY: VERSION,
        "sources": list(topology.sources),
        "facts": _facts_out(topology.facts),
        "devices": [_out(device) for device in topology.devices],
        "links": [_out(link) for link in topology.links],
        "pairs": [{"a": p.a, "b": p.b, **vars(p.fact)} for p in topology.pairs],
        "gaps": [vars(gap) for gap in topology.gaps],
    }
    return json.dumps(document, indent=1) + "\n"


def parse(text: str) -> Topology:
    """Parse Busbar's JSON. Raises ProbeError with the line, or with the entry and its problem."""
    document = loaded(NAME, text)
    if not isinstance(document, dict) or KEY not in document:
        raise ProbeError(NAME, f"no {KEY!r} key: this is not a topology that Busbar wrote")
    if document[KEY] != VERSION:
        raise ProbeError(
            NAME, f"version {document[KEY]!r} is not {VERSION}; use the Busbar that wrote it"
        )
    try:
        return _topology_in(document)
    except ProbeError as error:
        raise ProbeError(NAME, error.reason) from None
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ProbeError(NAME, f"malformed entry: {type(error).__name__} {error}") from None


def _facts_out(facts: tuple[Fact, ...]) -> list[list[Any]]:
    return [[fact.name, fact.value, fact.source] for fact in facts]


def _out(thing: Device | Link) -> dict[str, Any]:
    values = {field.name: getattr(thing, field.name) for field in fields(thing)}
    values["kind"] = thing.kind.value
    if isinstance(thing, Device):
        values["facts"] = _facts_out(thing.facts)
    return {name: value for name, value in values.items() if value is not None}


def _value(value: Any) -> str | int | float | bool | tuple[Any, ...]:
    if isinstance(value, list) and all(isinstance(item, str | int | float) for item in value):
        return tuple(map(_value, value))
    if isinstance(value, float) and not isfinite(value):
        raise ValueError(f"{value!r} is no finite number")
    if isinstance(value, str | int | float | bool):
        return value
    raise TypeError(f"{value!r} is no value of a fact")


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not a text")
    return value


def _checked(entry: dict[str, Any], kinds: dict[str, type | UnionType]) -> dict[str, Any]:
    """The members that an entry has, each checked for its type."""
    values = {name: entry[name] for name in kinds if entry.get(name) is not None}
    for name, value in values.items():
        if not isinstance(value, kinds[name]) or isinstance(value, bool):
            raise TypeError(f"{name} {value!r} is not of the kind it should be")
        _value(value)
    return values


_DEVICE: dict[str, type | UnionType] = {
    "id": str, "index": int, "name": str, "busid": str, "uuid": str, "parent": str
}  # fmt: skip
_LINK: dict[str, type | UnionType] = {
    "a": str, "b": str, "source": str, "count": int, "version": int, "rate": int | float
}  # fmt: skip


def _facts_in(rows: Any) -> tuple[Fact, ...]:
    return tuple(Fact(_text(name), _value(value), _text(source)) for name, value, source in rows)


def _device_in(entry: dict[str, Any]) -> Device:
    facts = _facts_in(entry.get("facts", []))
    return Device(kind=Kind(entry["kind"]), facts=facts, **_checked(entry, _DEVICE))


def _link_in(entry: dict[str, Any]) -> Link:
    link = Link(kind=LinkKind(entry["kind"]), **_checked(entry, _LINK))
    if link.count < 0:
        raise ValueError(f"{link.count} is no number of links")
    return link


def _topology_in(document: dict[str, Any]) -> Topology:
    entries = document.get("pairs", [])
    facts = _facts_in((e["name"], e["value"], e["source"]) for e in entries)
    pairs = tuple(
        PairFact(_text(e["a"]), _text(e["b"]), fact) for e, fact in zip(entries, facts, strict=True)
    )
    for pair in pairs:
        if pair.fact.name == "level" and pair.fact.value not in Level.__members__:
            raise ValueError(f"{pair.fact.value!r} is no level")
    return Topology(
        tuple(_device_in(entry) for entry in document.get("devices", [])),
        tuple(_link_in(entry) for entry in document.get("links", [])),
        pairs,
        _facts_in(document.get("facts", [])),
        tuple(
            Gap(*(_text(entry[key]) for key in ("source", "subject", "call", "reason")))
            for entry in document.get("gaps", [])
        ),
        tuple(_text(name) for name in document.get("sources", [])),
    )
