"""Parses a name with parameters, such as ``topk:fraction=0.01``, by a table of constructors."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import TypeVar

from busbar.arguments import unknown
from busbar.errors import Unsupported
from collectives.schedule.catalogue import parse

T = TypeVar("T")


def named(what: str, text: str, table: Mapping[str, Callable[..., T]]) -> T:
    """Call the table's entry that ``text`` names; ``what`` names the kind of thing in errors.

    Parameters are numbers; those that an entry knows are its keyword-only ones. Raises Unsupported
    with the names that there are, and whatever the entry says of a value.
    """
    name, given = parse(text)
    if name not in table:
        raise unknown(what, name, list(table))
    known = {
        p.name: p.default
        for p in inspect.signature(table[name]).parameters.values()
        if p.kind is inspect.Parameter.KEYWORD_ONLY
    }
    for key, value in given.items():
        if key not in known:
            has = ", ".join(known) or "none"
            raise Unsupported(f"{what} {name} has no parameter {key!r}; its parameters: {has}")
        whole = isinstance(known[key], int)
        if not isinstance(value, int if whole else (int, float)):
            kind = "a whole number" if whole else "a number"
            raise Unsupported(f"{what} {name}: {key} must be {kind}, not {value!r}")
    return table[name](**given)
