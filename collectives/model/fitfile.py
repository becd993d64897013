"""Fits as files: versioned JSON that reads back equal; anything else is refused."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields, is_dataclass, replace
from math import log
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_origin, get_type_hints

from busbar.errors import Unsupported
from busbar.files import read_text
from collectives.model.costs import Costs

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
    text = read_text(path, _MOST_BYTES)
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
    found: Costs = _made(Costs, one)
    if not found.links:
        raise ValueError("no class of links")
    if any(len(row) != len(found.table) for row in found.table):
        raise ValueError("table is not square")
    if not 0 <= found.start < float("inf"):
        raise ValueError(f"start {found.start!r} is no time")
    return found


def _made(kind: Any, value: Any) -> Any:
    """A JSON value as the type that an annotation names; fields with a default may be missing."""
    if is_dataclass(kind):
        hints = get_type_hints(kind)
        wanted = [f.name for f in fields(kind) if f.name in value or f.default is MISSING]
        return kind(**{name: _made(hints[name], value[name]) for name in wanted})  # type: ignore[operator]
    kinds = get_args(kind)
    if NoneType in kinds:
        return None if value is None else _made(kinds[0], value)
    if get_origin(kind) is tuple:
        each = kinds[:1] * len(value) if kinds[-1] is Ellipsis else kinds
        return tuple(_made(*pair) for pair in zip(each, value, strict=True))
    if get_origin(kind) is Mapping:
        return {str(key): _made(kinds[1], one) for key, one in value.items()}
    return kind(value)
