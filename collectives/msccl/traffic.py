"""A placed schedule as messages with bytes, rank by rank: what formats for simulators are made of."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from collectives.errors import Unsupported
from collectives.layout import Layout
from collectives.moves import Buffer
from collectives.schedule import Schedule

__all__ = ["Message", "Turn", "turns"]


class Message(NamedTuple):
    """Bytes to or from a peer; ``tag`` tells a pair's messages apart, in their order."""

    peer: int
    nbytes: int
    tag: int


@dataclass
class Turn:
    """What a rank does in one step: all messages at once, then the additions."""

    sends: list[Message] = field(default_factory=list)
    receives: list[Message] = field(default_factory=list)
    reduced_bytes: int = 0


def turns(schedule: Schedule, where: Layout, nbytes: int) -> list[list[Turn]]:
    """For every rank the steps in which it does something; empty messages are left out.

    ``nbytes`` is the collective's size, as in the size column of nccl-tests. Raises Unsupported
    for a size that leaves the ranks nothing.
    """
    n = schedule.nranks
    part = where.spec.size(n, nbytes, 1).elements
    if part < 1:
        raise Unsupported(f"{where.spec.name} on {n} ranks: {nbytes} bytes leave no rank any")
    edges = {
        (rank, buffer): where.bounds(rank, buffer, part).tolist()
        for rank in range(n)
        for buffer in Buffer
    }
    tags: dict[tuple[int, int], int] = {}
    found: list[list[Turn]] = [[] for _ in range(n)]
    for moves in schedule.all_moves:
        now: dict[int, Turn] = {}
        for src, dst, buffer, chunk, _, _, count, reduce in moves.joined().table.T.tolist():
            bounds = edges[src, Buffer(buffer)]
            size = bounds[chunk + count] - bounds[chunk]
            if not size:
                continue
            if src != dst:
                tag = tags[src, dst] = tags.get((src, dst), -1) + 1
                now.setdefault(src, Turn()).sends.append(Message(dst, size, tag))
                now.setdefault(dst, Turn()).receives.append(Message(src, size, tag))
            if reduce:
                now.setdefault(dst, Turn()).reduced_bytes += size
        for rank, turn in now.items():
            found[rank].append(turn)
    return found
