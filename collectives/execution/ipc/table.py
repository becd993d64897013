"""One rank's plan as the flat words that the CUDA executor reads (``native/cuda/plan.cuh``).

Pure: turns a dependence graph (`collectives.execution.shm.dependences`) and addresses into numbers.
Nothing here touches a device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from collectives.execution.shm.dependences import ENTRY, STAGE, DependenceGraph, Work
from collectives.execution.shm.tasks import Place

Wait = tuple[int, int]

# The names of plan.cuh's enumerations, in order.
HEADER = (
    "Records", "Ranks", "Stride", "Iterations", "Words", "Gone", "Claim", "Status", "Deadline",
    "Tell", "Index",
)  # fmt: skip
STATUS = ("Reason", "Peer", "Stop")

WORD = 8
PACK = 16
# Bytes that make another team worth its signals.
TEAM_BYTES = 8192


@dataclass(frozen=True)
class Addresses:
    """Where a rank's plan finds what is not in the ranks' buffers; see plan.cuh's header.

    ``words[r]``: where rank r keeps what is signalled to it. ``tell[r]``: the word in which rank r
    looks whether this rank is gone; 0 for itself. ``gone``, ``claim``, ``status``: what this rank
    has for all its plans. ``place(p)``: of a place in a rank's segment.
    """

    words: Sequence[int]
    tell: Sequence[int]
    gone: int
    claim: int
    status: int
    place: Callable[[Place], int]


@dataclass(frozen=True)
class StagingArea:
    """Staging of a rank: where each slot begins, bytes of a team in it (0: all in one), in all."""

    begins: tuple[int, ...]
    strides: tuple[int, ...]
    nbytes: int

    @classmethod
    def of(cls, works: Sequence[Work], slots: int, nteams: int, itemsize: int) -> StagingArea:
        """For a rank's works. A team keeps to its own part of a slot, whatever a pass's size.

        Teams do not wait for each other, so another pass of another size must not reach into
        what a slower team has put aside.
        """
        most = [0] * slots
        for work in works:
            for place in (*work.targets, *work.sources):
                if place.segment == STAGE:
                    most[place.start] = max(most[place.start], work.size)
        strides = [part(size, nteams, itemsize) * itemsize for size in most]
        begins, at = [], 0
        for stride in strides:
            begins.append(at)
            at += stride * nteams
        return cls(tuple(begins), tuple(strides if nteams > 1 else [0] * slots), at)


def part(size: int, nteams: int, itemsize: int) -> int:
    """Elements of a team's part of a pass; `pass_part` in pass.cuh reckons the same."""
    per, each = PACK // itemsize, -(-size // nteams)
    return -(-each // per) * per


def teams(found: DependenceGraph, itemsize: int, most: int) -> int:
    """Blocks of a rank: enough for its largest pass, no more than can be resident.

    Where passes do not cover equal pieces, a team's part of one may need another team's of the
    one before: a single team does all then.
    """
    if not found.aligned:
        return 1
    largest = max((w.size for works in found.works for w in works), default=0)
    return max(1, min(most, -(-largest * itemsize // TEAM_BYTES)))


def control_bytes(nranks: int, nteams: int) -> int:
    """Bytes of a plan's words on a rank: signals to it, and its teams' iterations."""
    return WORD * (nranks * nteams + nteams)


def table(
    found: DependenceGraph,
    rank: int,
    nteams: int,
    slots: StagingArea,
    to: Addresses,
    stage: int,
    deadline: float,
    *,
    rotated: bool = True,
) -> NDArray[np.uint64]:
    """The words of ``rank``'s plan, whose staging begins at ``stage``; ``deadline`` in seconds.

    ``rotated``: a pass reads the next rank's data first, so that ranks read from different GPUs;
    otherwise rank 0's first, so that equal sums of floats have equal bits.
    """
    nranks, works = len(found.works), found.works[rank]
    strides = [2 + len(works) for works in found.works]
    listeners = _listeners(found, rank)
    first = rank + 1 if rotated else 0

    def turn(place: Place) -> int:
        return (place.rank - first) % nranks

    def signals(task: int) -> list[int]:
        return [to.words[peer] + WORD * rank for peer in listeners.get(task, ())]

    def waits(of: Sequence[Wait]) -> list[int]:
        return [n for peer, task in of for n in (peer, strides[peer], _mark(task))]

    def places(of: Sequence[Place]) -> Iterator[int]:
        for p in of:
            if p.segment == STAGE:
                yield from (stage + slots.begins[p.start], slots.strides[p.start])
            else:
                yield from (to.place(p), 0)

    def record(task: int, of: Sequence[Wait], work: Work | None) -> list[int]:
        tell = signals(task)
        head = [work.size if work else 0, _mark(task), len(of), len(tell)]
        head += [len(work.targets), len(work.sources)] if work else [0, 0]
        sources = sorted(work.sources, key=turn) if work else []
        body = [*places(work.targets if work else ()), *places(sources)]
        return [*head, *waits(of), *tell, *body]

    records = [record(ENTRY, (), None)]
    records += [record(task, work.waits, work) for task, work in enumerate(works)]
    records.append(record(len(works), found.exits[rank], None))
    return _laid_out(records, nranks, strides[rank], nteams, rank, to, deadline)


def _mark(task: int) -> int:
    """The value of a rank's word in an iteration after it has done a task; 1 after entering."""
    return 2 + task


def _listeners(found: DependenceGraph, rank: int) -> dict[int, list[int]]:
    """The ranks that wait for each task of a rank."""
    listeners: dict[int, list[int]] = {}
    for other, works in enumerate(found.works):
        for waits in (*(work.waits for work in works), found.exits[other]):
            for peer, task in waits:
                if peer == rank and other not in listeners.setdefault(task, []):
                    listeners[task].append(other)
    return listeners


def _laid_out(
    records: list[list[int]],
    nranks: int,
    stride: int,
    nteams: int,
    rank: int,
    to: Addresses,
    deadline: float,
) -> NDArray[np.uint64]:
    tell = len(HEADER)
    index = tell + nranks
    first = index + len(records)
    starts = np.cumsum([first, *(len(record) for record in records)])[:-1].tolist()
    mine = to.words[rank]
    iterations = mine + WORD * nranks * nteams
    header = [len(records), nranks, stride, iterations, mine, to.gone, to.claim, to.status]
    header += [int(deadline * 1e9), tell, index]
    flat = [*header, *to.tell, *starts, *(word for record in records for word in record)]
    return np.array(flat, np.uint64)
