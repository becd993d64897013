"""The algorithms that were chosen, built and proven for this run's ranks."""

from __future__ import annotations

from typing import Any

from bench.options import Choice, Options
from collectives.catalogue import build, parameters
from collectives.cost import traffic
from collectives.errors import Unsupported
from collectives.layout import Elements
from collectives.schedule import Schedule
from collectives.spec import Collective
from collectives.verify import verify

__all__ = ["Chosen", "choose", "roots"]


class Chosen:
    """An algorithm ready to run on so many ranks; schedules are proven, one a root.

    Raises Unsupported where the algorithm cannot serve the ranks.
    """

    def __init__(self, spec: Collective, options: Options, choice: Choice, nranks: int) -> None:
        self.label, self._name = choice.label, choice.name
        self._spec, self._nranks = spec, nranks
        self._schedules: dict[int, Schedule] = {}
        self.parameters: dict[str, Any] = dict(choice.parameters)
        if self.library:
            return
        if options.grid is not None and "grid" in parameters(spec.name, choice.name):
            self.parameters.setdefault("grid", options.grid)
        for root in roots(spec, options, nranks):
            self.schedule(root)

    @property
    def library(self) -> bool:
        """Whether it is the library's own collective, which has no schedule."""
        return self._name == "library"

    def schedule(self, root: int) -> Schedule | None:
        """The placed schedule for a root, or None for the library."""
        if self.library:
            return None
        if root not in self._schedules:
            made = build(self._spec.name, self._name, self._nranks, root=root, **self.parameters)
            verify(made, self._spec, root=root)
            if self._spec.in_place:
                verify(made, self._spec, root=root, in_place=True)
            self._schedules[root] = made
        return self._schedules[root]

    def traffic(self, elements: Elements, itemsize: int, root: int) -> tuple[int, int]:
        """Bytes out and in of the busiest rank, by the schedule's own count."""
        schedule = self.schedule(root)
        assert schedule is not None, "the library has no schedule to count"
        sent, received = traffic(schedule, self._spec, elements, itemsize, root)
        return int(sent.max()), int(received.max())


def roots(spec: Collective, options: Options, nranks: int) -> range:
    """The roots to sweep: all for ``-r all``, else the one that was given.

    Raises Unsupported for a root that is no rank. Where a collective has no root the one given
    still reaches the algorithms that have one.
    """
    if options.root is None:
        return range(nranks) if spec.rooted else range(1)
    if options.root >= nranks:
        raise Unsupported(f"-r {options.root}: there are only ranks 0 to {nranks - 1}")
    return range(options.root, options.root + 1)


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
            chosen.append(Chosen(spec, options, choice, nranks))
        except Unsupported as error:
            if not options.every_algorithm:
                raise
            notes.append(f"left out: {error}")
    if not chosen:
        raise Unsupported(notes[0])
    return chosen, notes
