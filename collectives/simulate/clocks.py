"""What the engines share: the problem in seconds, the clocks of ranks, and where time went."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from collectives.simulate.stages import Stage

__all__ = ["PARTS", "Clocks", "Problem", "Timed"]

Numbers = NDArray[np.int64]
Amounts = NDArray[np.float64]

#: What the time of a chain of messages is made of; see `collectives.simulate.outcome.Outcome`.
PARTS = ("posting", "latency", "wire", "sharing", "adding")


@dataclass(frozen=True)
class Timed:
    """A stage in bytes and seconds."""

    stage: Stage
    nbytes: Amounts
    wire: Amounts
    adds: Amounts
    local: Amounts
    post: Amounts

    @classmethod
    def of(cls, stage: Stage, chunk: float, overhead: float, gamma: float) -> Timed:
        """With chunks of ``chunk`` bytes. ``adds``: seconds that a receiver adds what a row brings."""
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
    def starts(self) -> Numbers:
        """Where each rank class begins in `ends`."""
        rank = self.ends[0]
        return (
            np.flatnonzero(np.concatenate([[True], rank[1:] != rank[:-1]])) if len(rank) else rank
        )


@dataclass(frozen=True)
class Problem:
    """Stages in seconds, the order of steps, rates of links, and how many classes of ranks."""

    stages: Sequence[Timed]
    steps: Numbers
    rate: Amounts
    nranks: int


@dataclass
class Clocks:
    """When every class of ranks enters its next step, and the parts that this time is made of.

    ``now``: shape (classes,). ``parts``: shape (classes, len(PARTS)), along the chain of messages
    that the class waited for; they add up to ``now``.
    """

    now: Amounts
    parts: Amounts

    @classmethod
    def begin(cls, nranks: int) -> Clocks:
        """All at 0."""
        return cls(np.zeros(nranks), np.zeros((nranks, len(PARTS))))
