"""Fuses copies and reductions of one rank: data is loaded or added once, and stored to all targets.

A rank that adds a chunk and then stores the sum to others does both in one pass, block by block,
while the block is in its registers or first-level cache. The sum is then not read again. The same
holds for data that a rank loads and forwards, and for one place that it copies to several. Only
passes of one rank are fused, so every move is still done by the rank that does it in the unfused
order, and each message is loaded or stored once. docs/shared-memory.md says which bytes are saved.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

from collectives.execution.shm.tasks import STAGE, Place, Work

Scratch = Callable[[Place], bool]
"""True for a place whose content is not needed after the iteration."""


class _Fuser:
    """Appends copies and reductions in order; fuses a copy with an earlier pass of its rank."""

    def __init__(self) -> None:
        self.works: list[Work] = []
        # For each place, the last pass that touches it, and the last that writes it.
        self.touched: dict[Place, int] = {}
        self.written: dict[Place, int] = {}
        # For each place, the last pass of its owner that only copies it.
        self.copied: dict[Place, int] = {}

    def add(self, work: Work) -> None:
        """Append a pass, or add its targets to those of an earlier pass."""
        number = self.partner(work)
        if number is None:
            self.append(work)
            return
        earlier = self.works[number]
        for place in work.targets:
            if place not in earlier.targets:
                earlier.targets.append(place)
            self.touched[place] = self.written[place] = number

    def partner(self, work: Work) -> int | None:
        """The number of an earlier pass that may also store to this pass's targets, or None.

        The earlier pass made or copied the data that this one reads; no later one uses the targets.
        """
        if not is_copy(work) or work.sources[0].rank != work.rank:
            return None
        source = work.sources[0]
        number, writer = self.copied.get(source, -1), self.written.get(source, -1)
        if writer >= 0 and self.works[writer].rank == work.rank:
            number = max(number, writer)
        if number < 0 or number < writer:
            return None
        free = all(self.touched.get(place, -1) <= number for place in work.targets)
        return number if free else None

    def append(self, work: Work) -> None:
        """Append a pass without fusing it."""
        number = len(self.works)
        self.works.append(work)
        for place in work.places:
            self.touched[place] = number
        for place in work.targets:
            self.written[place] = number
        if is_copy(work) and work.sources[0].rank == work.rank:
            self.copied[work.sources[0]] = number


def is_copy(work: Work) -> bool:
    """True if a pass copies between memory of ranks, without staging."""
    return len(work.sources) == 1 and all(p.segment != STAGE for p in work.places)


def fuse(works: Sequence[Work], scratch: Scratch) -> list[Work]:
    """Fuse the passes that may be fused, in order; ``works`` stay unchanged.

    Places must be equal or disjoint. Stores to a rank's own scratch that no pass reads are dropped.
    """
    fuser = _Fuser()
    for work in works:
        fuser.add(Work(work.rank, work.size, list(work.targets), list(work.sources)))
    _drop_unread(fuser.works, scratch)
    return fuser.works


def _drop_unread(works: Sequence[Work], scratch: Scratch) -> None:
    """Drop targets in a rank's own scratch that are not read before they are written again."""
    read_later: dict[Place, bool] = {}
    for work in reversed(works):
        needed = [
            p
            for p in work.targets
            if p.rank != work.rank or p.segment == STAGE or read_later.get(p, not scratch(p))
        ]
        # A pass must store somewhere: it is a move of the schedule, even if its result is not used.
        work.targets = needed or work.targets
        read_later.update(dict.fromkeys(work.targets, False))
        read_later.update(dict.fromkeys(work.sources, True))


def relayed(entries: Sequence[tuple[tuple[int, int], Work]], nranks: int) -> list[Work]:
    """Choose put or get for each plain message so that it can be fused with another pass.

    The sender stores data that it has just made or has copied elsewhere. The receiver loads data
    that it forwards. Other messages are done by the rank that has moved less so far.
    """
    sent_on = {work.sources[0] for _, work in entries if is_message(work)}
    moved, writer = [0] * nranks, dict[Place, int]()
    stored: dict[Place, int] = defaultdict(int)  # how often the owner of a place has stored it
    works: list[Work] = []
    for _, work in entries:
        if is_message(work):
            source, target = work.sources[0], work.targets[0]
            again = writer.get(source) == source.rank or stored[source] > 0
            idle = moved[source.rank] <= moved[target.rank]
            put = again or (target not in sent_on and idle)
            work = Work(source.rank if put else target.rank, work.size, [target], [source])
            stored[source] += put
            moved[work.rank] += work.size * (1 if again else 2)
        else:
            moved[work.rank] += work.moved
        for place in work.targets:
            writer[place] = work.rank
            stored[place] = 0
        works.append(work)
    return works


def is_message(work: Work) -> bool:
    """True if a pass is a plain message from one rank to another."""
    return is_copy(work) and work.sources[0].rank != work.targets[0].rank
