"""Tuning decisions as data, and their JSON file. Measures nothing."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import msgspec

from busbar.errors import MissingFile, Unsupported
from busbar.files import read

FORMAT = "busbar-tuning 2"
_MOST_BYTES = 1 << 24
ANY = "any"


@dataclass(frozen=True, order=True)
class Tunable:
    """One candidate: an algorithm as ``-A`` takes it, and the transport that carries it.

    The library's own algorithms are ``library``, or ``library/NAME`` if one was forced.
    """

    algorithm: str
    transport: str

    def __str__(self) -> str:
        """``ring:segments=4 on shm``."""
        return f"{self.algorithm} on {self.transport}"


@dataclass(frozen=True)
class Range:
    """The choice from ``low`` bytes up to the next range.

    ``seconds``: its time at ``low``; ``default_seconds``: the default's time there, if measured.
    """

    low: Annotated[int, msgspec.Meta(ge=0)]
    choice: Tunable
    seconds: float
    default_seconds: float | None = None


@dataclass(frozen=True)
class Rules:
    """Ranges in rising order for one collective on ``ranks`` ranks of ``nodes`` nodes.

    ``transport`` is the one whose candidates were compared; ``any`` for all transports together;
    ``mpi/library`` and ``nccl/library`` for a library's own algorithms, forced one by one. ``low``
    and ``high``: smallest and largest size that was examined. ``source``: ``measured`` or
    ``predicted``. ``default`` is chosen unless another candidate is faster by more than ``noise``.
    ``oversubscribed``: True if ranks shared cores during the measurement; None if unknown, or on
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
    ranges: Annotated[tuple[Range, ...], msgspec.Meta(min_length=1)]
    oversubscribed: bool | None = None


# Used at import: ranks that are threads may crash msgspec if they are the first to use a type.
msgspec.convert([], list[Rules])


def dump(rules: Iterable[Rules], environment: Mapping[str, Any]) -> bytes:
    """The tuning file as JSON, which ``-A auto`` reads."""
    every = [asdict(one) for one in rules]
    document = {"format": FORMAT, "environment": dict(environment), "rules": every}
    return (json.dumps(document, indent=1) + "\n").encode()


def load(path: Path) -> list[Rules]:
    """Read the rules of a file. Raises Unsupported, naming the file and what is wrong with it."""
    if not path.exists():
        raise MissingFile(f"there is no {path}; busbar tune measures, and writes it", path)
    return parse(read(path, _MOST_BYTES), path)


def parse(data: bytes, path: Path) -> list[Rules]:
    """The rules in a file's bytes. Raises Unsupported with ``path`` in the message."""
    try:
        document = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        if data.lstrip().startswith(b'{"format":'):
            raise Unsupported(
                f"{path}: these are records; busbar tune --from {path} decides on them"
            ) from None
        raise Unsupported(f"{path}: no JSON: {error}") from None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise Unsupported(f"{path}: not a tuning file of format {FORMAT!r}; busbar tune writes one")
    try:
        rules = msgspec.convert(document.get("rules"), list[Rules])
    except msgspec.ValidationError as error:
        raise Unsupported(f"{path}: {str(error).replace('`$', '`rules')}") from None
    for number, one in enumerate(rules):
        if any(b.low <= a.low for a, b in pairwise(one.ranges)):
            raise Unsupported(f"{path}: rules[{number}].ranges: sizes must rise")
    return rules


def lookup(
    rules: Iterable[Rules],
    path: Path,
    collective: str,
    ranks: int,
    transports: Sequence[str],
    oversubscribed: bool | None = None,
) -> Rules:
    """The rules for a collective on ``ranks`` ranks, for the first of ``transports`` with rules.

    Rules measured with shared cores do not apply if these ranks do not share cores
    (``oversubscribed``), and the reverse. Raises Unsupported, naming the rules that the file has.
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
            " so it does not apply; busbar tune measures here"
        )
    has = sorted({(r.collective, r.ranks, r.transport) for r in known})
    listed = ", ".join(f"{c} on {n} ranks over {t}" for c, n, t in has[:6]) or "nothing"
    more = f" and {len(has) - 6} more" * (len(has) > 6)
    raise Unsupported(
        f"{path} has no rules for {collective} on {ranks} ranks over {' or '.join(transports)};"
        f" it has {listed}{more}; busbar tune makes them"
    )
