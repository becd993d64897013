"""The parameters of a prediction: seconds of a message by its size, for each class of link.

After Hockney (1994): a message of m bytes takes α + β·m seconds, with another α and β in each of at
most five ranges of m, since libraries change protocol and data changes its level of memory with
size. All times are seconds, all sizes bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

from topology.measured.sweep import BURST

Numbers = NDArray[np.float64]
Flags = NDArray[np.bool_]
Interval = tuple[float, float]


@dataclass(frozen=True)
class Curve:
    """Seconds by size: ``alpha[k] + beta[k]·m`` for ``edges[k−1] < m ≤ edges[k]``; none negative.

    Where one range ends above the beginning of the next, the next stays at that height until its
    own line has reached it: a curve never falls. ``intervals``: of every alpha and then every beta,
    95 % by bootstrap, empty where nothing was fitted. ``error``: the median relative error of the
    points.
    """

    alpha: tuple[float, ...]
    beta: tuple[float, ...]
    edges: tuple[float, ...] = ()
    intervals: tuple[Interval, ...] = ()
    points: int = 0
    error: float | None = None

    def __post_init__(self) -> None:
        if not len(self.alpha) == len(self.beta) == len(self.edges) + 1:
            raise ValueError("a curve needs an alpha and a beta a range")
        numbers = (*self.alpha, *self.beta, *self.edges)
        if not all(0 <= x < float("inf") for x in numbers):
            raise ValueError("alpha, beta and edges must be finite and not negative")
        if any(b <= a for a, b in zip((0.0, *self.edges), self.edges, strict=False)):
            raise ValueError("edges must rise")

    @classmethod
    def line(cls, alpha: float, beta: float) -> Curve:
        """A curve of one range."""
        return cls((alpha,), (beta,))

    def __call__(self, nbytes: ArrayLike) -> Numbers:
        """Seconds for sizes of any shape; a message of no bytes is none and takes none."""
        m = np.asarray(nbytes, np.float64)
        alpha, beta, edges = map(np.asarray, (self.alpha, self.beta, self.edges))
        at = np.searchsorted(edges, m)
        ends = alpha[:-1] + beta[:-1] * edges
        floor = np.maximum.accumulate(np.concatenate([[0.0], ends]))
        return np.where(m > 0, np.maximum(alpha[at] + beta[at] * m, floor[at]), 0.0)


@dataclass(frozen=True)
class Shared:
    """Costs of the shared-memory executor between two ranks, for eager and direct messages.

    Through mailboxes: ``hop``, one way alone; ``mail``, a message each way behind a barrier;
    ``mail_join``, the same with an addition; ``mail_burst``, `BURST` messages each way. Where
    messages lie: ``pull``, one way alone, of data just written, a message at a time; ``warm``, as
    `LinkCosts.still`;
    ``join``, as `LinkCosts.sum`.
    """

    hop: Curve
    mail: Curve
    mail_join: Curve
    mail_burst: Curve
    pull: Curve
    warm: Curve
    join: Curve


@dataclass(frozen=True)
class LinkCosts:
    """Costs of a class of links; each curve is one kind of measurement.

    ``trip``: one way alone. ``swap``: a message each way at once, until both have arrived. ``add``:
    as swap, with what arrives added. ``burst``: as swap, but `BURST` messages each way. In these,
    what is sent has just been written; ``still`` is a swap of data that nobody has written, so that
    caches may hold it already, and ``sum`` the same with an addition. ``said``: where the figures
    are from, in a few words. A curve that is None was not measured. ``shared``: where ranks share
    memory, what passes and eager messages cost, from the same measurements.
    """

    trip: Curve
    swap: Curve
    add: Curve
    burst: Curve | None
    said: str
    still: Curve | None = None
    sum: Curve | None = None
    shared: Shared | None = None

    @classmethod
    def assumed(cls, alpha: float, beta: float, said: str, gamma: float = 0.0) -> LinkCosts:
        """A link of one range whose two directions do not hinder each other, as on most networks.

        Additions take ``gamma`` seconds per byte. Messages share a port one after the other.
        """
        line = Curve.line(alpha, beta)
        return cls(line, line, Curve.line(alpha, beta + gamma), None, said)

    def alone(self, nbytes: Numbers, both: Flags, fresh: Flags | None = None) -> Numbers:
        """Seconds of a message that is the only one at its ports.

        ``both``: beside one back. ``fresh``: what is sent was written in this collective; all is
        where it is None. A swap is never taken to be faster than a trip, as each of its messages is
        one, and data that was left alone never to be slower.
        """
        trip = self.trip(nbytes)
        found = np.where(both, np.maximum(trip, self.swap(nbytes)), trip)
        return found if fresh is None else found * self._share(nbytes, fresh)

    def _share(self, nbytes: Numbers, fresh: Flags) -> Numbers:
        """The time of unmodified data over that of fresh data, at most 1."""
        if self.still is None:
            return np.ones(np.shape(nbytes))
        swap = np.maximum(self.trip(nbytes), self.swap(nbytes))
        with np.errstate(all="ignore"):
            share = np.where(swap > 0, self.still(nbytes) / swap, 1.0)
        return np.where(fresh, 1.0, np.minimum(1.0, share))

    def further(self, nbytes: Numbers, both: Flags, fresh: Flags | None = None) -> Numbers:
        """Seconds that one more message adds at a port that has another already.

        From bursts, where they were measured; else as much as a message alone, as in the
        single-port model of Chan et al. 2007. Never more than that. Flags as for `alone`.
        """
        alone = self.alone(nbytes, both, fresh)
        if self.burst is None:
            return alone
        extra = (self.burst(nbytes) - self.swap(nbytes)) / (BURST - 1)
        if fresh is not None:
            extra = extra * self._share(nbytes, fresh)
        return np.clip(extra, 0.0, alone)

    def added(self, nbytes: Numbers, shared: Flags | None = None) -> Numbers:
        """Seconds that adding a message takes beyond receiving it: γ·m where that is one number.

        ``shared``: others read the sum; all do where it is None. If not, it is not dearer.
        """
        both = np.ones(np.shape(nbytes), bool)
        found = np.maximum(0.0, self.add(nbytes) - self.alone(nbytes, both))
        if shared is None or self.sum is None or self.still is None:
            return found
        calm = np.maximum(0.0, self.sum(nbytes) - self.still(nbytes))
        return np.where(shared, found, np.minimum(calm, found))


@dataclass(frozen=True)
class Costs:
    """Costs of a machine's classes of links.

    ``start``: seconds that every measured collective takes beyond its schedule (leaving a barrier,
    calling). ``ranks``: how many ranks took part when it was measured, all at once or, if
    ``alone``, a pair at a time; 0 where nothing was. ``transport``: what moved the bytes.
    ``sources``: SHA-256 of the files that it was fitted on. ``notes``: what a reader should know.
    ``table``: which class the measured ranks have between each other, a row a rank. ``cores``: the
    one CPU that each of them ran on; empty where they were free to move.
    """

    links: Mapping[str, LinkCosts]
    start: float = 0.0
    ranks: int = 0
    alone: bool = False
    transport: str = ""
    sources: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    table: tuple[tuple[str, ...], ...] = ()
    cores: tuple[int, ...] = ()
