"""A pass over memory that ranks share: what one rank does without waiting in between."""

from __future__ import annotations

from dataclasses import dataclass, field

from collectives.execution.shm.tasks import Place

STAGE = -1
"""The segment number of a rank's private staging; ``start`` of a place is then its slot."""


@dataclass(eq=False)
class Work:
    """A pass of ``rank`` over ``size`` elements, and its waits: (peer, task number).

    ``published``: another rank waits for it. ``cold``: targets that no other pass reads or writes
    in an iteration, so that they need no place in a cache. ``stage``: higher than the stage of
    every pass of another rank that it waits for; stage s of window w is done in round w + s.
    """

    rank: int
    size: int
    targets: list[Place]
    sources: list[Place]
    waits: list[tuple[int, int]] = field(default_factory=list)
    published: bool = False
    cold: set[Place] = field(default_factory=set)
    stage: int = 0

    @property
    def places(self) -> list[Place]:
        """The pass's targets and sources."""
        return [*self.targets, *self.sources]

    @property
    def moved(self) -> int:
        """Elements that the pass reads and writes."""
        return self.size * len(self.places)
