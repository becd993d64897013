"""A machine for the simulator: directed links with rates, and one route for every pair of ranks.

Knows no schedule. Nodes are numbered, first the places of ranks, then switches. A link has one
direction; a cable is two links.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from busbar.errors import Unsupported
from collectives.simulate.machines.routes import NO_LINK, Ids, Numbers, RankRoutes

Times = NDArray[np.float64]
# (senders, receivers) to their routes: link numbers, a row a message, in the order of the route
# (see `Machine.route_table`), or what knows them without a table.
Router = Callable[[Numbers, Numbers], Ids | RankRoutes]


class Weights(NamedTuple):
    """What caches spare where ranks share memory, as shares of 1.

    ``still``: of the time of bytes that nobody has written in the collective. ``calm``: of the time
    of additions whose sum nobody else reads.
    """

    still: float = 1.0
    calm: float = 1.0


#: Everything takes its whole time.
NONE = Weights()


class Sized(NamedTuple):
    """The ``rate`` of all links and the fields of `Machine` that depend on a buffer's size."""

    rate: Times
    gamma: float
    weights: Weights


GB = 1e9
MOST_PLACES = 1 << 20


@dataclass(frozen=True)
class Links:
    """Directed links as columns: nodes ``tail`` and ``head``, bytes per second, seconds."""

    tail: Ids
    head: Ids
    rate: Times
    latency: Times

    def __len__(self) -> int:
        return len(self.tail)


def cables(a: Numbers, b: Numbers, rate: float | Times, latency: float | Times) -> Links:
    """Links both ways: link i goes from ``a[i]`` to ``b[i]``, link len(a) + i goes back."""
    size = len(a)
    rates, latencies = (np.broadcast_to(np.asarray(v, float), size) for v in (rate, latency))
    return Links(
        np.concatenate([a, b]).astype(np.int32),
        np.concatenate([b, a]).astype(np.int32),
        np.tile(rates, 2),
        np.tile(latencies, 2),
    )


def joined(src: Numbers, dst: Numbers, *hops: Numbers) -> Ids:
    """Routes from one column of link numbers a hop; a message to its own rank takes no link."""
    route = np.stack(hops, axis=1)
    return np.where((src != dst)[:, None], route, NO_LINK).astype(np.int32)


@dataclass(frozen=True)
class Machine:
    """Places for ``nranks`` ranks, links between ``nnodes`` nodes, and a router.

    ``overhead``: seconds that each message costs each of its two ranks; ``gamma``: seconds that a
    rank takes to add a byte; ``buffer``: bytes from one rank to another that count as sent when
    they are handed over (`collectives.simulate.buffered`); ``burst``: bytes that a link passes at
    once after a pause, where there is a ``buffer``. ``names``: of the nodes; without them they go
    by their numbers. ``grid``: the sides of a torus, for drawings. ``weights``: what caches
    spare. ``sized``: rates of links, ``gamma`` and ``weights`` by the bytes of a rank's buffers,
    where they were measured and depend on that; see `at`.
    """

    name: str
    nranks: int
    nnodes: int
    links: Links
    router: Router = field(repr=False)
    overhead: float = 0.0
    gamma: float = 0.0
    buffer: float = 0.0
    burst: float = 0.0
    names: tuple[str, ...] = ()
    grid: tuple[int, ...] = ()
    weights: Weights = NONE
    sized: Callable[[float], Sized] | None = field(default=None, repr=False)

    def at(self, nbytes: float) -> Machine:
        """The machine as a rank finds it whose ``in`` and ``out`` take ``nbytes`` each."""
        if self.sized is None:
            return self
        found = self.sized(nbytes)
        links = replace(self.links, rate=found.rate)
        return replace(self, links=links, gamma=found.gamma, weights=found.weights, sized=None)

    def adding(self, gamma: float) -> Machine:
        """The machine with additions of ``gamma`` seconds a byte, whatever was measured of them."""
        known = self.sized

        def fixed(nbytes: float) -> Sized:
            assert known is not None
            found = known(nbytes)
            return found._replace(gamma=gamma, weights=found.weights._replace(calm=1.0))

        return replace(self, gamma=gamma, sized=fixed if known else None)

    def routes(self, src: Numbers, dst: Numbers) -> RankRoutes:
        """The links that messages take. Raises Unsupported for a rank that has no place."""
        top = max(int(src.max(initial=-1)), int(dst.max(initial=-1)))
        if top >= self.nranks:
            raise Unsupported(
                f"{self.name} has places for {self.nranks} ranks; rank {top} has none"
            )
        found = self.router(src.astype(np.int64), dst.astype(np.int64))
        return RankRoutes(found, len(self.links)) if isinstance(found, np.ndarray) else found

    def route_table(self, src: Numbers, dst: Numbers) -> Ids:
        """The links that messages take: shape (messages, most hops), NO_LINK past a route's end.

        Raises Unsupported for a rank that the machine has no place for, and for more hops than
        memory should hold.
        """
        return self.routes(src, dst).table()

    def node(self, number: int) -> str:
        """The name of a node."""
        if self.names:
            return self.names[number]
        if number < self.nranks:
            return f"rank {number}"
        return f"switch {number - self.nranks}"

    def link(self, number: int) -> str:
        """The name of a link."""
        tail, head = int(self.links.tail[number]), int(self.links.head[number])
        return f"{self.node(tail)} → {self.node(head)}"
