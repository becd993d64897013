"""The generators by name, and machines from texts like ``fattree:32x32:taper=2:gbs=50``."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple

from busbar.errors import Unsupported
from collectives.schedule.catalogue import check_parameter, parse
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
_COMMON = {
    key: inspect.Parameter(key, inspect.Parameter.KEYWORD_ONLY, annotation="float")
    for key in ("overhead_us", "add_gbs", "buffer_kib", "burst_kib")
}


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
    known = {**inspect.signature(make).parameters, **_COMMON}
    if parts and "=" not in parts[0]:
        parts[0] = f"{next(iter(known))}={parts[0]}"
    given = {
        key: (value,) if isinstance(value, int) and "Sequence" in _kind(known, key) else value
        for key, value in parse(":".join([name, *parts]))[1].items()
    }
    for key, value in given.items():
        check_parameter(name, key, value, known)
        if "float" in _kind(known, key):
            _check_rate(text, key, value)
    common = {key: float(given.pop(key, 0.0)) for key in _COMMON}  # type: ignore[arg-type]
    made = make(**{**given, **sized(nranks, given)})
    if common["add_gbs"]:
        made = made.adding(1e-9 / common["add_gbs"])
    overhead = common["overhead_us"] * 1e-6
    buffer, burst = common["buffer_kib"] * 1024, common["burst_kib"] * 1024
    if burst and not buffer:
        raise Unsupported(f"{text!r}: burst_kib needs buffer_kib, what is taken for sent")
    return replace(made, overhead=overhead, buffer=buffer, burst=burst)


def _kind(known: Mapping[str, inspect.Parameter], key: str) -> str:
    return str(known[key].annotation) if key in known else ""


def _check_rate(text: str, key: str, value: Any) -> None:
    """Rates are what things are divided by; times and counts may be nothing."""
    positive = key.endswith("gbs") or key == "taper"
    if not isfinite(value) or value < 0 or (value == 0 and positive):
        least = "above 0" if positive else "0 or more"
        raise Unsupported(f"{text!r}: {key}={value}; it must be {least}")
