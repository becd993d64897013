"""A machine as a simulator sees it: directed links with rates, and one way for every pair of ranks.

Knows no schedule. Nodes are numbered: first the places of ranks, then switches. A link goes one way;
a cable is two links.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from collectives.errors import Unsupported

__all__ = ["NO_LINK", "Links", "Machine", "Router", "cables", "held"]

Numbers = NDArray[np.int64]
Ids = NDArray[np.int32]
Times = NDArray[np.float64]
# (senders, receivers) to link numbers, a row a message, in the order of the way; see `Machine.routes`.
Router = Callable[[Numbers, Numbers], Ids]

NO_LINK = -1
_MOST_HOPS = 1 << 27  # 512 MiB of link numbers


@dataclass(frozen=True)
class Links:
    """Directed links as columns: nodes ``tail`` and ``head``, bytes per second, seconds."""

    tail: Ids
    head: Ids
    rate: Times
    latency: Times

    def __len__(self) -> int:
        return len(self.tail)


def held(messages: int, hops: int) -> None:
    """Raise Unsupported for more hops than memory should hold."""
    if messages * hops > _MOST_HOPS:
        raise Unsupported(
            f"{messages} messages of up to {hops} hops are too many at once; take fewer ranks,"
            " or a machine with shorter ways"
        )


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


@dataclass(frozen=True)
class Machine:
    """Places for ``nranks`` ranks, links between ``nnodes`` nodes, and a router.

    ``overhead``: seconds that each message costs each of its two ranks; ``gamma``: seconds that a
    rank takes to add a byte. ``names``: of the nodes; without them they go by their numbers.
    ``grid``: the sides of a torus, for drawings.
    """

    name: str
    nranks: int
    nnodes: int
    links: Links
    router: Router = field(repr=False)
    overhead: float = 0.0
    gamma: float = 0.0
    names: tuple[str, ...] = ()
    grid: tuple[int, ...] = ()

    def routes(self, src: Numbers, dst: Numbers) -> Ids:
        """The links that messages take: shape (messages, most hops), NO_LINK where a way is shorter.

        Raises Unsupported for a rank that the machine has no place for, and for more hops than
        memory should hold.
        """
        top = max(int(src.max(initial=-1)), int(dst.max(initial=-1)))
        if top >= self.nranks:
            raise Unsupported(
                f"{self.name} has places for {self.nranks} ranks; rank {top} has none"
            )
        return self.router(src.astype(np.int64), dst.astype(np.int64))

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
