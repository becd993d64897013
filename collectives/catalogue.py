"""Finds specifications and algorithms by their names, and builds placed schedules from them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import cast

from collectives.errors import Unsupported
from collectives.passes import named
from collectives.place import place
from collectives.schedule import Schedule
from collectives.spec import Collective

__all__ = ["algorithm", "algorithms", "build", "collectives", "parameters", "spec"]

_HERE = Path(__file__).parent


def _modules(folder: Path) -> list[str]:
    return sorted(p.stem for p in folder.glob("*.py") if not p.stem.startswith("_"))


def collectives() -> list[str]:
    """The names of all collectives."""
    return _modules(_HERE / "specs")


@cache
def spec(collective: str) -> Collective:
    """The specification of that name. Raises Unsupported with the list of names."""
    if collective not in collectives():
        raise Unsupported(f"no collective {collective!r}; there are: {', '.join(collectives())}")
    return cast(Collective, import_module(f"collectives.specs.{collective}").SPEC)


def algorithms(collective: str) -> list[str]:
    """The names of a collective's algorithms."""
    return _modules(_HERE / "algorithms" / spec(collective).name)


def algorithm(collective: str, name: str) -> Callable[..., Schedule]:
    """The algorithm of that name: ``f(n, **parameters) -> Schedule``.

    Raises Unsupported with the list of names.
    """
    known = algorithms(collective)
    if name not in known:
        raise Unsupported(f"{collective}: no algorithm {name!r}; there are: {', '.join(known)}")
    module = import_module(f"collectives.algorithms.{collective}.{name}")
    return cast(Callable[..., Schedule], getattr(module, name))


def parameters(collective: str, name: str) -> Mapping[str, inspect.Parameter]:
    """An algorithm's parameters beside the rank count, by name."""
    found = dict(inspect.signature(algorithm(collective, name)).parameters)
    found.pop("n")
    return found


def build(collective: str, name: str, nranks: int, *, root: int = 0, **given: object) -> Schedule:
    """A placed schedule of an algorithm by name. ``given`` are parameters that it must know.

    Raises Unsupported for an unknown name or parameter, or a rank count that it cannot serve.
    """
    known = parameters(collective, name)
    for key in given:
        if key not in known:
            has = ", ".join(known) or "none"
            raise Unsupported(f"{name} has no parameter {key!r}; its parameters: {has}")
    if nranks < 1:
        raise Unsupported(f"{nranks} ranks; at least 1 is needed")
    if "root" in known:
        given = {"root": root, **given}
    schedule = algorithm(collective, name)(nranks, **given)
    return named(place(schedule, spec(collective), root), name, **given)
