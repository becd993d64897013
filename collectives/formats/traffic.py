"""A placed schedule as messages with bytes, rank by rank: the source of simulators' formats."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from busbar.errors import Unsupported
from collectives.schedule.layout import Layout, Slots
from collectives.schedule.moves import Buffer
from collectives.schedule.schedule import Schedule

Column = NDArray[np.int64]


class Message(NamedTuple):
    """Bytes to or from a peer; ``tag`` tells a pair's messages apart, in their order."""

    peer: int
    nbytes: int
    tag: int


@dataclass
class Turn:
    """A rank's part of one step: all messages at once, then the additions."""

    sends: list[Message] = field(default_factory=list)
    receives: list[Message] = field(default_factory=list)
    reduced_bytes: int = 0


def _messages(schedule: Schedule, where: Layout, part: int) -> Column:
    """All moves in the order of their steps; rows: step, src, dst, bytes, reduce, tag."""
    slots = Slots(where)
    ranks = range(schedule.nranks)
    before = np.concatenate([where.bounds(r, b, part) for b in Buffer for r in ranks])
    first = slots.first + np.arange(slots.first.size).reshape(slots.first.shape)
    found = []
    for number, step in enumerate(schedule.steps):
        m = step.moves().joined()
        at = first[m.src_buffer, m.src] + m.src_chunk
        nbytes = before[at + m.count] - before[at]
        found.append(np.stack([np.full(len(m), number), m.src, m.dst, nbytes, m.reduce]))
    every = np.concatenate([np.empty((5, 0), np.int64), *found], axis=1)
    every = every[:, every[3] > 0]
    pair = every[1] * schedule.nranks + every[2]
    order = np.argsort(pair, kind="stable")
    starts = np.flatnonzero(np.diff(pair[order], prepend=-1))
    tag = np.empty(len(pair), np.int64)
    tag[order] = np.arange(len(pair)) - np.repeat(starts, np.diff(starts, append=len(pair)))
    return np.concatenate([every, tag[None]])


def _by(ranks: Column, nranks: int) -> list[Column]:
    """The places of every rank's messages, in their order."""
    order = np.argsort(ranks, kind="stable")
    return np.split(order, np.cumsum(np.bincount(ranks, minlength=nranks))[:-1])


def turns(schedule: Schedule, where: Layout, nbytes: int) -> Iterator[list[Turn]]:
    """For every rank the steps in which it does something; empty messages are left out.

    ``nbytes`` is the collective's size, as in the size column of nccl-tests. Raises Unsupported
    for a size that leaves the ranks nothing. The ranks come one at a time: those of a large
    schedule would not fit together.
    """
    n = schedule.nranks
    part = where.spec.size(n, nbytes, 1).elements
    if part < 1:
        raise Unsupported(f"{where.spec.name} on {n} ranks: {nbytes} bytes leave no rank any")
    every = _messages(schedule, where, part)
    return (
        _of_rank(every[:, sent], every[:, got])
        for sent, got in zip(_by(every[1], n), _by(every[2], n), strict=True)
    )


def _of_rank(sent: Column, got: Column) -> list[Turn]:
    found: dict[int, Turn] = {}
    for step, src, dst, nbytes, _, tag in sent.T.tolist():
        turn = found.setdefault(step, Turn())
        if src != dst:
            turn.sends.append(Message(dst, nbytes, tag))
    for step, src, dst, nbytes, reduce, tag in got.T.tolist():
        turn = found.setdefault(step, Turn())
        if src != dst:
            turn.receives.append(Message(src, nbytes, tag))
        turn.reduced_bytes += nbytes if reduce else 0
    return [found[step] for step in sorted(found) if found[step] != Turn()]
