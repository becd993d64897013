"""Tuning decisions as plain data, and their JSON file. Knows nothing of measuring."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, get_type_hints

from busbar.errors import Unsupported
from busbar.files import read

FORMAT = "busbar-tuning 2"
_MOST_BYTES = 1 << 24
ANY = "any"
LIBRARY = "library"


@dataclass(frozen=True, order=True)
class Tunable:
    """Something to choose: an algorithm as ``-A`` takes it, and the transport that carries it.

    The library's own algorithms are ``library``, or ``library/NAME`` where one was forced.
    """

    algorithm: str
    transport: str

    def __str__(self) -> str:
        """``ring:segments=4 on shm``."""
        return f"{self.algorithm} on {self.transport}"


@dataclass(frozen=True)
class Range:
    """From ``low`` bytes up to the next range's: what to take.

    ``seconds`` at ``low``; ``default_seconds`` the default's there, None where it was not measured.
    """

    low: int
    choice: Tunable
    seconds: float
    default_seconds: float | None = None


@dataclass(frozen=True)
class Rules:
    """Ranges in rising order for one collective on so many ranks of so many nodes.

    ``transport`` is the one whose candidates were compared, ``any`` for all of them together,
    ``mpi/library`` and ``nccl/library`` for a library's own algorithms, forced one by one;
    ``low`` and ``high`` bound the sizes that were looked at; ``source`` is ``measured`` or
    ``predicted``. ``default`` stays chosen wherever nothing beats it by more than ``noise``.
    ``oversubscribed``: whether ranks shared cores while it was measured; None: not known, or on
    GPUs.
    """

    collective: str
    ranks: int
    nodes: int
    dtype: str
    transport: str
    source: str
    default: Tunable
    noise: float
    low: int
    high: int
    ranges: tuple[Range, ...]
    oversubscribed: bool | None = None


def dump(rules: Iterable[Rules], environment: Mapping[str, Any]) -> bytes:
    """Our JSON, which ``-A auto`` reads."""
    every = [asdict(one) for one in rules]
    document = {"format": FORMAT, "environment": dict(environment), "rules": every}
    return (json.dumps(document, indent=1) + "\n").encode()


def load(path: Path) -> list[Rules]:
    """The rules of a file. Raises Unsupported, naming the file and what is wrong with it."""
    if not path.exists():
        raise Unsupported(f"there is no {path}; busbar tune measures, and writes it")
    return parse(read(path, _MOST_BYTES), path)


def parse(data: bytes, path: Path) -> list[Rules]:
    """The rules in the bytes of a file. Raises Unsupported; ``path`` is what the message names."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise Unsupported(f"{path}: no JSON: {error}") from None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise Unsupported(
            f"{path}: not a tuning file of format {FORMAT!r}; python -m bench.tune writes one"
        )
    entries = document.get("rules")
    if not isinstance(entries, list):
        raise Unsupported(f"{path}: rules: a list is missing")
    return [_rules(path, number, one) for number, one in enumerate(entries)]


def _rules(path: Path, number: int, one: Any) -> Rules:
    where = f"{path}: rules[{number}]"
    if not isinstance(one, dict):
        raise Unsupported(f"{where}: not an object")
    kinds = {
        name: kind for name, kind in get_type_hints(Rules).items() if kind in (str, int, float)
    }
    for name, kind in kinds.items():
        allowed = (int, float) if kind is float else (kind,)
        if type(one.get(name)) not in allowed:
            raise Unsupported(f"{where}.{name}: missing, or of a wrong type")
    if not isinstance(one.get("ranges"), list) or not one["ranges"]:
        raise Unsupported(f"{where}.ranges: missing, or empty")
    ranges = tuple(_range(f"{where}.ranges[{i}]", r) for i, r in enumerate(one["ranges"]))
    if any(b.low <= a.low for a, b in pairwise(ranges)):
        raise Unsupported(f"{where}.ranges: sizes must rise")
    shared = one.get("oversubscribed")
    if type(shared) not in (bool, type(None)):
        raise Unsupported(f"{where}.oversubscribed: neither true nor false")
    default = _candidate(f"{where}.default", one.get("default"))
    fields = {name: one[name] for name in kinds}
    return Rules(**fields, default=default, ranges=ranges, oversubscribed=shared)


def _range(where: str, one: Any) -> Range:
    if not isinstance(one, dict) or type(one.get("low")) is not int or one["low"] < 0:
        raise Unsupported(f"{where}.low: missing, or no size")
    seconds: Any = one.get("seconds")
    default: Any = one.get("default_seconds")
    if type(seconds) not in (int, float) or not (default is None or type(default) in (int, float)):
        raise Unsupported(f"{where}: seconds are no numbers")
    return Range(one["low"], _candidate(f"{where}.choice", one.get("choice")), seconds, default)


def _candidate(where: str, one: Any) -> Tunable:
    names = ("algorithm", "transport")
    if not isinstance(one, dict) or not all(isinstance(one.get(n), str) for n in names):
        raise Unsupported(f"{where}: needs an algorithm and a transport")
    return Tunable(one["algorithm"], one["transport"])


def lookup(
    rules: Iterable[Rules],
    path: Path,
    collective: str,
    ranks: int,
    transports: Sequence[str],
    oversubscribed: bool | None = None,
) -> Rules:
    """The rules for a collective on so many ranks over the first of the transports that has any.

    Rules that are known to be of ranks that share cores where these do not (``oversubscribed``), or
    the other way round, are not taken. Raises Unsupported, naming what the file has instead.
    """
    known = list(rules)
    unlike = False
    for transport in transports:
        mine = [
            one
            for one in known
            if (one.collective, one.ranks, one.transport) == (collective, ranks, transport)
        ]
        fitting = [one for one in mine if oversubscribed in (None, one.oversubscribed)]
        fitting += [one for one in mine if one.oversubscribed is None]
        if fitting:
            return fitting[0]
        unlike = unlike or bool(mine)
    if unlike:
        crowded, free = ("shared cores", "each have one"), ("each had a core", "share cores")
        theirs, here = free if oversubscribed else crowded
        raise Unsupported(
            f"{path} has rules for {collective} on {ranks} ranks that {theirs}; here they {here},"
            " so it does not apply; python -m bench.tune measures here"
        )
    has = sorted({(r.collective, r.ranks, r.transport) for r in known})
    listed = ", ".join(f"{c} on {n} ranks over {t}" for c, n, t in has[:6]) or "nothing"
    more = f" and {len(has) - 6} more" * (len(has) > 6)
    raise Unsupported(
        f"{path} has no rules for {collective} on {ranks} ranks over {' or '.join(transports)};"
        f" it has {listed}{more}; python -m bench.tune makes them"
    )
