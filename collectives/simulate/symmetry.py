"""Symmetry classes of ranks, links and messages, found by colour refinement.

Everything begins with a colour for its kind. A message then takes the colours of its ranks and
links, and a rank or link those of its messages, as multisets, until no colour splits any more.
Things of one colour then have the same view of the machine and the schedule. The same happens to
them at the same time, so the simulation needs only one of them.

Colours are 64-bit hashes, and multisets are sums of them. If refinement does not end in few
colours, everything gets its own, which is always correct.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from collectives.simulate.flows import Flows
from collectives.simulate.messages import Traffic

Numbers = NDArray[np.int64]
Colours = NDArray[np.uint64]

_MOST_ROUNDS = 4096


class SymmetryClasses(NamedTuple):
    """The class of every rank, link and message, numbered from 0; links as in `Flows.rate`."""

    rank: Numbers
    link: Numbers
    message: Numbers


def _mix(x: Colours) -> Colours:
    """A hash of every number (the finaliser of SplitMix64, Steele, Lea, Flood 2014)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: Colours = x ^ (x >> np.uint64(31))
    return mixed


def _with(x: Colours, y: Colours) -> Colours:
    return _mix(x * np.uint64(0x9E3779B97F4A7C15) + y)


def _bits(values: NDArray[np.float64]) -> Colours:
    return _mix(values.view(np.uint64))


def _own(flows: Flows) -> Colours:
    """The initial colour of messages."""
    colour = _mix(flows.pattern().astype(np.uint64))
    for column in (flows.chunks, flows.added, flows.latency, flows.cap):
        colour = _with(colour, _bits(np.ascontiguousarray(column)))
    return _with(colour, flows.times.astype(np.uint64))


def _start(traffic: Traffic) -> Colours:
    """The initial colour of ranks: their local additions, pattern by pattern."""
    colour = np.zeros(traffic.nranks, np.uint64)
    for number, pattern in enumerate(traffic.patterns):
        if len(pattern.local_ranks):
            tag = np.full(len(pattern.local), number, np.uint64)
            colour[pattern.local_ranks] += _with(_mix(tag + np.uint64(1)), _bits(pattern.local))
    return colour


def _different(colours: Colours) -> int:
    return len(np.unique(colours))


class _Refinement:
    def __init__(self, flows: Flows, traffic: Traffic) -> None:
        self.flows = flows
        self.own = _own(flows)
        self.rank = _start(traffic)
        self.link = _bits(flows.rate)
        self.message = self.own

    def round(self) -> None:
        """Give messages the colours of their ranks and links, and these those of their messages."""
        flows = self.flows
        seen = flows.routes.hashes(_mix(self.link + np.uint64(7)))
        colour = _with(_with(self.own, self.rank[flows.src]), self.rank[flows.dst])
        self.message = _with(colour, seen)
        ranks = [np.zeros_like(self.rank) for _ in range(2)]
        for of, end in zip(ranks, (flows.src, flows.dst), strict=True):
            np.add.at(of, end, self.message)
        self.rank = _with(_with(self.rank, ranks[0]), ranks[1])
        self.link = _with(self.link, flows.routes.gather(self.message))


def _numbered(colours: Colours) -> Numbers:
    return np.unique(colours, return_inverse=True)[1].astype(np.int64)


def classes_of(flows: Flows, traffic: Traffic) -> SymmetryClasses:
    """The classes of a schedule's ranks, links and messages on a machine."""
    work = _Refinement(flows, traffic)
    before = (-1, -1)
    for _ in range(_MOST_ROUNDS):
        work.round()
        now = _different(work.rank), _different(work.link)
        if now == before:
            return SymmetryClasses(
                _numbered(work.rank), _numbered(work.link), _numbered(work.message)
            )
        if 2 * now[0] > traffic.nranks > 8:
            break
        before = now
    return alone(flows, traffic)


def alone(flows: Flows, traffic: Traffic) -> SymmetryClasses:
    """Every rank, link and message a class of its own."""
    return SymmetryClasses(
        np.arange(traffic.nranks), np.arange(len(flows.rate)), np.arange(len(flows))
    )
