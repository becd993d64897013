"""The generators by name, and machines from texts like ``fattree:32x32:taper=2:gbs=50``."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import isfinite
from pathlib import Path
from typing import NamedTuple

from busbar.errors import Unsupported
from collectives.simulate.machines import grids
from collectives.simulate.machines.dragonfly import dragonfly
from collectives.simulate.machines.fattree import fattree
from collectives.simulate.machines.machine import Machine
from collectives.simulate.machines.maps import from_file
from collectives.simulate.machines.nodes import nvswitch, rail


class Generator(NamedTuple):
    """The generator of a machine, and the function that completes its parameters for n ranks."""

    make: Callable[..., Machine]
    sized: Callable[[int, Mapping[str, object]], Mapping[str, object]]


Given = Mapping[str, object]


def _line(n: int, given: Given) -> Given:
    return {} if "n" in given else {"n": n}


def _square(n: int, given: Given) -> Given:
    side = next(d for d in range(int(n**0.5), 0, -1) if n % d == 0)
    return {} if "grid" in given else {"grid": (n // side, side)}


def _two_levels(n: int, given: Given) -> Given:
    """Leaves that are about as many as they have ranks."""
    leaf = 1 << ((n - 1).bit_length() + 1) // 2
    return {} if "down" in given else {"down": (n,) if n <= 2 else (leaf, -(-n // leaf))}


def _nodes(n: int, given: Given) -> Given:
    gpus = given.get("gpus", 8)
    assert isinstance(gpus, int)
    return {} if "nodes" in given else {"nodes": -(-n // max(1, gpus))}


def _balanced(n: int, given: Given) -> Given:
    """The smallest balanced dragonfly, a = 2p = 2h (Kim et al.)."""
    if given.keys() & {"p", "a", "h", "g"}:
        return {}
    p = 1
    while 2 * p * p * (2 * p * p + 1) < n:
        p += 1
    return {"p": p, "a": 2 * p, "h": p}


GENERATORS: Mapping[str, Generator] = {
    "ring": Generator(grids.ring, _line),
    "full": Generator(grids.full, _line),
    "torus": Generator(grids.torus, _square),
    "dgx1": Generator(grids.dgx1, lambda n, given: {}),
    "nvswitch": Generator(nvswitch, _nodes),
    "rail": Generator(rail, _nodes),
    "fattree": Generator(fattree, _two_levels),
    "dragonfly": Generator(dragonfly, _balanced),
}
# Of every machine: what a message costs each of its ranks, how fast a rank adds, what sockets hold,
# what a link passes at once after a pause.
_COMMON = ("overhead_us", "add_gbs", "buffer_kib", "burst_kib")


def machine(text: str, nranks: int) -> Machine:
    """The machine of a text: a generator's name, and parameters ``key=value`` behind colons.

    The first parameter needs no key: ``torus:8x8``. What gives the number of places may be left
    out, and is then chosen for ``nranks``. In the place of a generator a file may stand that
    ``python -m topology --from`` reads; its ``latency_us`` is that of links of which the map knows
    none. Every machine takes ``overhead_us``, ``add_gbs``, the rate of additions in GB/s (without
    it they take what the file's sweep says, else no time), ``buffer_kib``, what is taken for sent
    before it has left, and with it ``burst_kib``, what a link passes at once after a pause.
    Raises Unsupported.
    """
    name, *parts = text.split(":")
    if Path(name).is_file() and name not in GENERATORS:
        generator = Generator(partial(from_file, name), lambda n, given: {})
    elif name in GENERATORS:
        generator = GENERATORS[name]
    else:
        raise Unsupported(
            f"no machine {name!r}; there are: {', '.join(GENERATORS)}; or the file of a map"
        )
    make, sized = generator
    known = inspect.signature(make).parameters
    first = next(iter(known))
    given: dict[str, object] = {}
    for place, part in enumerate(parts):
        key, equals, value = part.partition("=")
        if not equals and place == 0:
            key, value = first, part
        elif not equals or key in given:
            raise Unsupported(f"{text!r}: {part!r} is not one key=value; write {name}:key=value")
        if key not in (*known, *_COMMON):
            has = ", ".join((*known, *_COMMON))
            raise Unsupported(f"{text!r}: {name} has no parameter {key!r}; its parameters: {has}")
        kind = str(known[key].annotation) if key in known else "float"
        given[key] = _value(text, key, value, kind)
    common = {key: given.pop(key) for key in _COMMON if key in given}
    made = make(**{**given, **sized(nranks, given)})
    overhead, adds = common.get("overhead_us", 0.0), common.get("add_gbs")
    assert isinstance(overhead, float)
    if isinstance(adds, float):
        made = made.adding(1e-9 / adds)
    buffer, burst = (common.get(key, 0.0) for key in ("buffer_kib", "burst_kib"))
    assert isinstance(buffer, float) and isinstance(burst, float)
    if burst and not buffer:
        raise Unsupported(f"{text!r}: burst_kib needs buffer_kib, what is taken for sent")
    return replace(made, overhead=overhead * 1e-6, buffer=buffer * 1024, burst=burst * 1024)


# Rates are what things are divided by; times and counts may be nothing.
def _positive(key: str) -> bool:
    return key.endswith("gbs") or key == "taper"


def _value(text: str, key: str, value: str, kind: str) -> int | float | Sequence[int]:
    sort = (
        "sizes like 4x4"
        if "Sequence" in kind
        else "a number"
        if "float" in kind
        else "a whole number"
    )
    try:
        if "Sequence" in kind:
            return tuple(_whole(side) for side in value.split("x"))
        if kind == "int":
            return _whole(value)
        number = float(value)
    except ValueError:
        raise Unsupported(f"{text!r}: {key} must be {sort}, not {value!r}") from None
    if not isfinite(number) or number < 0 or (number == 0 and _positive(key)):
        least = "above 0" if _positive(key) else "0 or more"
        raise Unsupported(f"{text!r}: {key}={value}; it must be {least}")
    return number


def _whole(text: str) -> int:
    if not text.isdecimal() or len(text) > 9:
        raise ValueError(text)
    return int(text)
