"""The programs of a collective's ranks in shared memory at one size, as plans use them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from collectives.execution.lower import lower
from collectives.execution.shm.dependences import DependenceGraph, dependence_graph
from collectives.execution.shm.tasks import PlacedProgram, ordered
from collectives.schedule.layout import Layout
from collectives.schedule.moves import Buffer
from collectives.schedule.place import place
from collectives.schedule.schedule import Schedule
from collectives.schedule.spec import Collective

# From so many elements a chunk on it does not matter that chunks differ by one.
_EVEN = 16


@dataclass(eq=False)
class NodePrograms:
    """All ranks' programs over ``elements`` a part."""

    nranks: int
    programs: list[PlacedProgram]

    @cached_property
    def dependence_graph(self) -> DependenceGraph:
        """The passes of every rank, with whom they wait for."""
        return dependence_graph(ordered(self.programs), self.nranks)

    @property
    def most_sent(self) -> int:
        """Elements that the rank sends which sends most."""
        return max(program.sent for program in self.programs)


class Drafts:
    """The drafts of one schedule; with equal chunks one of one element a chunk serves all sizes."""

    def __init__(self, schedule: Schedule, spec: Collective, root: int, in_place: bool) -> None:
        self._schedule = place(schedule, spec, root)
        self._layout = Layout.of(self._schedule, spec, root)
        #: Chunks of a part.
        self.split = max(1, self._layout.split)
        self._in_place = in_place and spec.in_place
        self._made: dict[int, NodePrograms] = {}

    def of(self, elements: int) -> tuple[NodePrograms, float]:
        """The draft for so many elements a part, and elements that one of its own stands for."""
        split = self.split
        if elements and (elements % split == 0 or elements >= _EVEN * split):
            return self._draft(split), elements / split
        return self._draft(elements), 1.0

    def _draft(self, elements: int) -> NodePrograms:
        if elements not in self._made:
            places = {buffer: (int(buffer), 0) for buffer in Buffer}
            n = self._schedule.nranks
            lowered = (
                lower(self._schedule, self._layout, rank, elements, in_place=self._in_place)
                for rank in range(n)
            )
            programs = [PlacedProgram(one.rank, one.steps, places) for one in lowered]
            self._made[elements] = NodePrograms(n, programs)
        return self._made[elements]
