"""Fits as files: JSON, versioned.

A file reads back equal to what was written; anything else is refused.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from math import log
from pathlib import Path
from typing import Any

from busbar.errors import Unsupported
from collectives.model.costs import Costs, Curve, LinkCosts, Shared

KEY = "busbar_fit"
VERSION = 1
_MOST_BYTES = 16 << 20


@dataclass(frozen=True)
class Fit:
    """Costs measured with several numbers of ranks; ``name``: where they were read from."""

    costs: tuple[Costs, ...]
    name: str = "fit"

    def for_ranks(self, nranks: int) -> Costs:
        """The costs measured with that many ranks, else with the nearest number, which a note says.

        Ranks that share cores or memory hinder each other, so costs are best taken as the run will
        be.
        """
        best = min(self.costs, key=lambda c: abs(log(max(1, c.ranks) / nranks)))
        if best.ranks == nranks:
            return best
        note = f"measured with {best.ranks} ranks, not with {nranks}"
        return replace(best, notes=(*best.notes, note))

    @property
    def sources(self) -> frozenset[str]:
        """SHA-256 of all files that it was fitted on."""
        return frozenset(source for costs in self.costs for source in costs.sources)


def digest(data: bytes) -> str:
    """The identity of a file."""
    return hashlib.sha256(data).hexdigest()


def dump(costs: Sequence[Costs]) -> str:
    """Costs as JSON text."""
    return json.dumps({KEY: VERSION, "costs": [asdict(one) for one in costs]}, indent=1) + "\n"


def read(path: Path) -> Fit:
    """The fit of a file. Raises Unsupported naming the file and what is wrong with it."""
    try:
        with path.open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
        text = data.decode()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no text"
        raise Unsupported(f"{path}: cannot be read: {reason}") from None
    if len(data) > _MOST_BYTES:
        raise Unsupported(f"{path}: too large for a fit")
    try:
        return replace(load(text), name=str(path))
    except Unsupported as error:
        raise Unsupported(f"{path}: {error}") from None


def load(text: str) -> Fit:
    """The fit of a JSON text. Raises Unsupported saying what is wrong with it."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        raise Unsupported("no fit: it is no JSON") from None
    if not isinstance(document, dict) or KEY not in document:
        raise Unsupported(f"no fit: no {KEY!r} in it; python -m collectives fit writes one")
    if document[KEY] != VERSION:
        raise Unsupported(
            f"version {str(document[KEY])[:40]!r} of a fit is not {VERSION}; fit again"
        )
    try:
        found = tuple(_costs(one) for one in document["costs"])
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise Unsupported(f"malformed fit: {type(error).__name__} {error}") from None
    if not found:
        raise Unsupported("malformed fit: it has no costs")
    return Fit(found)


def _costs(one: Mapping[str, Any]) -> Costs:
    links = {str(name): _link(link) for name, link in one["links"].items()}
    if not links:
        raise ValueError("no class of links")
    table = tuple(tuple(map(str, row)) for row in one["table"])
    if any(len(row) != len(table) for row in table):
        raise ValueError("table is not square")
    start = float(one["start"])
    if not 0 <= start < float("inf"):
        raise ValueError(f"start {start!r} is no time")
    return Costs(
        links,
        start,
        int(one["ranks"]),
        bool(one["alone"]),
        str(one["transport"]),
        tuple(map(str, one["sources"])),
        tuple(map(str, one["notes"])),
        {str(k): str(v) for k, v in one["environment"].items()},
        table,
        tuple(map(int, one.get("cores", ()))),
    )


def _link(one: Mapping[str, Any]) -> LinkCosts:
    burst, still, total = (
        None if one[kind] is None else _curve(one[kind]) for kind in ("burst", "still", "sum")
    )
    said = str(one["said"])
    kept = one.get("shared")
    shared = kept and Shared(**{f.name: _curve(kept[f.name]) for f in fields(Shared)})
    return LinkCosts(
        _curve(one["trip"]),
        _curve(one["swap"]),
        _curve(one["add"]),
        burst,
        said,
        still,
        total,
        shared or None,
    )


def _curve(one: Mapping[str, Any]) -> Curve:
    return Curve(
        tuple(map(float, one["alpha"])),
        tuple(map(float, one["beta"])),
        tuple(map(float, one["edges"])),
        tuple((float(low), float(high)) for low, high in one["intervals"]),
        int(one["points"]),
        None if one["error"] is None else float(one["error"]),
    )
