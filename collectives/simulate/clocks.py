"""Shared by the engines: the problem in seconds, the ranks' clocks, and the breakdown of time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from collectives.simulate.fluid import Bytes
from collectives.simulate.stages import Stage

Numbers = NDArray[np.int64]
Amounts = NDArray[np.float64]

#: The parts of the time of a chain of messages; see `collectives.simulate.outcome.Outcome`.
PARTS = ("posting", "latency", "wire", "sharing", "adding")


@dataclass(frozen=True)
class TimedStage:
    """A stage in bytes and seconds."""

    stage: Stage
    nbytes: Amounts
    wire: Amounts
    adds: Amounts
    local: Amounts
    post: Amounts

    @classmethod
    def of(cls, stage: Stage, chunk: float, overhead: float, gamma: float) -> TimedStage:
        """A stage with chunks of ``chunk`` bytes; ``adds``: seconds of adding what a row brings."""
        nbytes = stage.chunks * chunk
        return cls(
            stage,
            nbytes,
            nbytes / stage.cap,
            stage.added * stage.into * chunk * gamma,
            stage.local * chunk * gamma,
            stage.posts * overhead,
        )

    @cached_property
    def ends(self) -> tuple[Numbers, Numbers, Amounts]:
        """By rank class, ascending: the classes, the rows they send or receive, what they add."""
        stage = self.stage
        rows = np.arange(len(stage.src))
        rank = np.concatenate([stage.dst, stage.src])
        row = np.concatenate([rows, rows])
        adds = np.concatenate([self.adds, np.zeros(len(rows))])
        order = np.argsort(rank, kind="stable")
        return rank[order], row[order], adds[order]

    @cached_property
    def waits(self) -> Numbers:
        """The rows that every rank class sends or receives, counted; one to itself counts twice."""
        return np.bincount(self.ends[0], minlength=len(self.post)).astype(np.int64)

    def rows_of(self, ranks: Numbers) -> Numbers:
        """The rows that some of these rank classes sends or receives, ascending."""
        if 4 * len(ranks) > len(self.post):
            new = np.zeros(len(self.post), bool)
            new[ranks] = True
            return np.flatnonzero(new[self.stage.src] | new[self.stage.dst])
        count = self.waits[ranks]
        first = np.searchsorted(self.ends[0], ranks)
        place = np.repeat(first - np.cumsum(count) + count, count) + np.arange(int(count.sum()))
        return np.unique(self.ends[1][place])

    @cached_property
    def _sent(self) -> dict[float, Bytes]:
        return {}

    def sent(self, rate: Amounts, slack: float) -> Bytes:
        """The messages for `Fluid`.

        ``slack``: the share of its time by which one may begin and end earlier or later, half of it
        to either side. Its time is what it takes if all messages of the step flow at once.
        """
        s = self.stage
        if slack not in self._sent:
            late = np.zeros(len(self.wire))
            if slack:
                kept = np.bincount(
                    s.links.ravel(), (s.load * self.nbytes[:, None]).ravel(), len(rate) + 1
                ) / np.append(rate, 1.0)
                kept[-1] = 0.0
                late = slack / 2 * np.maximum(self.wire, kept[s.links].max(axis=1, initial=0.0))
            self._sent[slack] = Bytes(self.nbytes, s.cap, s.links, s.load, late)
        return self._sent[slack]

    @cached_property
    def starts(self) -> Numbers:
        """The place in `ends` at which each rank class begins."""
        rank = self.ends[0]
        return (
            np.flatnonzero(np.concatenate([[True], rank[1:] != rank[:-1]])) if len(rank) else rank
        )


@dataclass(frozen=True)
class Problem:
    """Stages in seconds, the order of steps, rates of links, and how many classes of ranks."""

    stages: Sequence[TimedStage]
    steps: Numbers
    rate: Amounts
    nranks: int


@dataclass
class Clocks:
    """The times at which classes of ranks enter their next step, and the parts of these times.

    ``now``: shape (classes,). ``parts``: shape (classes, len(PARTS)), along the chain of messages
    that the class waited for; they add up to ``now``.
    """

    now: Amounts
    parts: Amounts

    @classmethod
    def begin(cls, nranks: int) -> Clocks:
        """All at 0."""
        return cls(np.zeros(nranks), np.zeros((nranks, len(PARTS))))
