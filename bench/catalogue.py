"""The algorithms that were chosen, built and proven for this run's ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from bench.options import Choice, Options
from collectives.catalogue import build, parameters
from collectives.cost import traffic
from collectives.errors import Unsupported
from collectives.schedule import Schedule
from collectives.spec import Collective
from collectives.verify import verify

__all__ = ["Chosen", "choose"]


@dataclass(frozen=True)
class Chosen:
    """An algorithm ready to run; ``schedule`` is None for the library's own collective."""

    label: str
    spec: Collective
    schedule: Schedule | None
    parameters: Mapping[str, Any] = field(default_factory=dict)

    def traffic(self, elements: int, itemsize: int, root: int) -> tuple[int, int]:
        """Bytes out and in of the busiest rank, by the schedule's own count."""
        if self.schedule is None:
            return 0, 0
        sent, received = traffic(self.schedule, self.spec, elements, itemsize, root)
        return int(sent.max()), int(received.max())


def choose(
    spec: Collective, options: Options, nranks: int, *, library: bool = True
) -> tuple[list[Chosen], list[str]]:
    """What to run on so many ranks, and a note for each that cannot be.

    An algorithm asked for by name that cannot serve ``nranks`` raises Unsupported; with
    ``-A all`` it is left out with a note. ``library``: whether there is a library to compare with.
    """
    chosen: list[Chosen] = []
    notes: list[str] = []
    for choice in options.algorithms:
        if choice.name == "library" and not library:
            notes.append("left out: library, since threads of one process have none")
            continue
        try:
            chosen.append(_one(spec, options, choice, nranks))
        except Unsupported as error:
            if not options.every_algorithm:
                raise
            notes.append(f"left out: {error}")
    if not chosen:
        raise Unsupported(notes[0])
    return chosen, notes


def _one(spec: Collective, options: Options, choice: Choice, nranks: int) -> Chosen:
    if choice.name == "library":
        return Chosen("library", spec, None)
    given = dict(choice.parameters)
    known = parameters(spec.name, choice.name)
    if options.grid is not None and "grid" in known:
        given.setdefault("grid", options.grid)
    for key, value in given.items():
        if key in ("grid", "dims") and isinstance(value, int):
            given[key] = (value,)
    schedule = build(spec.name, choice.name, nranks, root=options.root, **given)
    verify(schedule, spec, root=options.root)
    verify(schedule, spec, root=options.root, in_place=spec.in_place)
    return Chosen(choice.label, spec, schedule, given)
