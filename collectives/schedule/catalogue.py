"""Find specifications and algorithms by name, and build placed schedules."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib import import_module
from itertools import product
from pathlib import Path
from typing import cast

from busbar.errors import Unsupported
from collectives.schedule.passes import named, then
from collectives.schedule.place import place
from collectives.schedule.schedule import Schedule
from collectives.schedule.spec import Collective

_HERE = Path(__file__).parents[1]

# Collectives that consist of two others, one after the other.
_COMPOSED: Mapping[str, Sequence[Sequence[str]]] = {
    "allreduce": (("reduce_scatter", "allgather"), ("reduce", "broadcast")),
    "broadcast": (("scatter", "allgather"),),
    "reduce": (("reduce_scatter", "gather"),),
}


# Names in textbooks and papers, and the algorithms that may be meant.
_SYNONYMS: Mapping[str, Sequence[str]] = {
    **dict.fromkeys(("parameter_server", "hub", "server"), ("ps",)),
    "sharded_parameter_server": ("sharded_ps",),
    **dict.fromkeys(("rhd", "recursive_halving_doubling"), ("halving_doubling",)),
    "recursive_halving": ("halving_doubling", "halving"),
    "rsag": ("halving_doubling", "reduce_scatter_gather"),
    "butterfly": ("recursive_doubling",),
}
# The default algorithm of a collective is the first of these that it has.
_USUAL = ("ring", "binomial", "pairwise", "dissemination", "direct")


def _modules(folder: Path) -> list[str]:
    return sorted(p.stem for p in folder.glob("*.py") if not p.stem.startswith("_"))


def parse(text: str) -> tuple[str, dict[str, object]]:
    """Split ``chain:segments=32`` or ``torus:grid=4x4`` into the name and its parameters.

    Raises Unsupported for a value that is no number and no list of numbers like 4x4.
    """
    name, *pairs = text.split(":")
    parameters: dict[str, object] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or key in parameters:
            raise Unsupported(f"{text!r}: {pair!r} is not one key=value; write name:key=value")
        parameters[key] = _value(text, value)
    return name, parameters


def _value(text: str, value: str) -> object:
    try:
        if "x" in value:
            return tuple(int(part) for part in value.split("x"))
        return int(value) if value.lstrip("-").isdigit() else float(value)
    except ValueError:
        raise Unsupported(f"{text!r}: {value!r} is no number, nor numbers like 4x4") from None


def collectives() -> list[str]:
    """The names of all collectives."""
    return _modules(_HERE / "specs")


@cache
def spec(collective: str) -> Collective:
    """The specification of a collective by name. Raises Unsupported with the list of names."""
    if collective not in collectives():
        from busbar.arguments import unknown

        raise unknown("collective", collective, collectives())
    return cast(Collective, import_module(f"collectives.specs.{collective}").SPEC)


def algorithms(collective: str) -> list[str]:
    """The names of a collective's algorithms."""
    return _modules(_HERE / "algorithms" / spec(collective).name)


def synonyms(known: Iterable[str]) -> dict[str, str]:
    """Textbooks' names of algorithms, each with the ``known`` algorithm that is meant."""
    names = set(known)
    meant = {word: names.intersection(each) for word, each in _SYNONYMS.items()}
    return {word: min(each) for word, each in meant.items() if len(each) == 1}


def algorithm(collective: str, name: str) -> Callable[..., Schedule]:
    """An algorithm by name: ``f(n, **parameters) -> Schedule``.

    Raises Unsupported with the list of names.
    """
    known = algorithms(collective)
    if name not in known:
        from busbar.arguments import unknown

        raise unknown("algorithm", name, known, collective, synonyms(known))
    module = import_module(f"collectives.algorithms.{collective}.{name}")
    return cast(Callable[..., Schedule], getattr(module, name))


def _stages(collective: str, name: str) -> list[tuple[str, str]]:
    """(collective, algorithm) of each part of a name like ``halving+ring``, or of a plain name."""
    names = name.split("+")
    if len(names) == 1:
        algorithm(collective, name)
        return [(collective, name)]
    forms = _COMPOSED.get(spec(collective).name, ())
    if tuple(names) in forms:  # the names of collectives stand for their default algorithms
        return [(stage, usual(stage)) for stage in names]
    for form in forms:
        if len(form) == len(names) and all(
            one in algorithms(stage) for stage, one in zip(form, names, strict=True)
        ):
            return list(zip(form, names, strict=True))
    if not forms:
        raise Unsupported(f"{collective}: {name!r}: nothing composes to {collective}")
    known = "; ".join(
        " + ".join(f"{stage} ({', '.join(algorithms(stage))})" for stage in form) for form in forms
    )
    raise Unsupported(f"{collective}: no composition {name!r}; there are: {known}")


def usual(collective: str) -> str:
    """The default algorithm of a collective."""
    known = algorithms(collective)
    return next((name for name in _USUAL if name in known), known[0])


def compositions(collective: str) -> list[str]:
    """The names of all compositions of two algorithms that form a collective."""
    forms = _COMPOSED.get(spec(collective).name, ())
    return ["+".join(names) for form in forms for names in product(*map(algorithms, form))]


def parameters(collective: str, name: str) -> Mapping[str, inspect.Parameter]:
    """An algorithm's parameters except the rank count; those of a composition are of its parts."""
    known: dict[str, inspect.Parameter] = {}
    for stage in _stages(collective, name):
        known |= inspect.signature(algorithm(*stage)).parameters
    known.pop("n")
    return known


def check_parameter(
    name: str, key: str, value: object, known: Mapping[str, inspect.Parameter]
) -> None:
    """Raise Unsupported for an unknown parameter, or a value that does not fit its annotation."""
    if key not in known:
        has = ", ".join(known) or "none"
        raise Unsupported(f"{name} has no parameter {key!r}; its parameters: {has}")
    wanted = str(known[key].annotation)
    fits = (
        isinstance(value, (list, tuple)) and all(isinstance(v, int) for v in value)
        if "Sequence" in wanted
        else isinstance(value, (int, float) if "float" in wanted else int)
    )
    if not fits and not (value is None and "None" in wanted):
        kind = "sizes like 4x4" if "Sequence" in wanted else "a whole number"
        kind = "a number" if "float" in wanted else kind
        raise Unsupported(f"{name}: {key} must be {kind}, not {value!r}")


def check(
    name: str,
    nranks: int,
    root: int,
    values: Mapping[str, object],
    known: Mapping[str, inspect.Parameter],
) -> None:
    """Raise Unsupported for wrong parameters, fewer than 1 rank, or a root that is no rank."""
    for key, value in values.items():
        check_parameter(name, key, value, known)
    if nranks < 1:
        raise Unsupported(f"{nranks} ranks; at least 1 is needed")
    if not 0 <= root < nranks:
        raise Unsupported(f"root {root} is not a rank; there are {nranks}, from 0")


def draft(collective: str, name: str, nranks: int, *, root: int = 0, **values: object) -> Schedule:
    """An algorithm's own schedule, in vector form; arguments and errors as for `build`."""
    known = parameters(collective, name)
    pack = values.pop("pack", None)
    if pack not in (None, 0, 1):
        raise Unsupported(f"{name}: pack must be 0 or 1, not {pack!r}")
    check(name, nranks, root, values, known)
    parts = []
    for stage in _stages(collective, name):
        accepted = inspect.signature(algorithm(*stage)).parameters
        own = {key: value for key, value in values.items() if key in accepted}
        if "root" in accepted:
            own["root"] = root
        parts.append(algorithm(*stage)(nranks, **own))
    schedule = parts[0] if len(parts) == 1 else then(*parts)
    if pack is not None:
        schedule, values = replace(schedule, packed=bool(pack)), {**values, "pack": pack}
    if "root" in known:
        values = {"root": root, **values}
    return named(schedule, name, **values)


def build(collective: str, name: str, nranks: int, *, root: int = 0, **values: object) -> Schedule:
    """A placed schedule of an algorithm by name. ``values`` are parameters that it must know.

    A name like ``halving+ring`` is one algorithm after the other: a reduce-scatter and an
    all-gather, or a reduce and a broadcast, form an all-reduce. Every algorithm has the parameter
    ``pack`` (1 or 0): whether all data that a pair of ranks exchanges in a step travels as one
    message. Raises Unsupported for an unknown name or parameter, or a rank count that the algorithm
    does not support.
    """
    return place(draft(collective, name, nranks, root=root, **values), spec(collective), root)
