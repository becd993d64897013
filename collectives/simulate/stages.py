"""A schedule's steps reduced to one rank, link and message of each symmetry class.

The engines work on these stages. Every rank of a class does the same at the same time. So a stage
says what one of them sends and receives, and how many messages of a class share each link of a
class.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from collectives.simulate.flows import Flows
from collectives.simulate.symmetry import SymmetryClasses

Numbers = NDArray[np.int64]
Amounts = NDArray[np.float64]


@dataclass(frozen=True)
class Stage:
    """A pattern between classes; a row of the columns is a class of messages.

    ``into`` messages from class ``src`` reach each rank of class ``dst``. Each has ``chunks``
    chunks, of which the receiver adds ``added``. ``links``: classes of links on the
    route, shape (rows, most links), padded with the number of classes; ``load``: how many messages
    of the row share such a link. By class of ranks: ``local`` chunks are added inside, ``posts``
    messages are sent and received. ``alone``: however its messages meet, no link holds any up.
    """

    src: Numbers
    dst: Numbers
    chunks: Amounts
    added: Amounts
    into: Amounts
    latency: Amounts
    cap: Amounts
    links: Numbers
    load: Amounts
    local: Amounts
    posts: Amounts
    alone: bool

    @property
    def takes_part(self) -> NDArray[np.bool_]:
        """Flags of the classes of ranks that send, receive or add."""
        return (self.posts > 0) | (self.local > 0)


def _joined(links: Numbers, load: Amounts, none: int) -> tuple[Numbers, Amounts]:
    """Routes in which links of one class are one entry, with the sum of their loads."""
    if not links.shape[1]:
        return links, load
    order = np.argsort(links, axis=1, kind="stable")
    links, load = np.take_along_axis(links, order, 1), np.take_along_axis(load, order, 1)
    for i in range(1, links.shape[1]):
        same = (links[:, i] == links[:, i - 1]) & (links[:, i] < none)
        load[:, i] += np.where(same, load[:, i - 1], 0)
        links[:, i - 1][same] = none
    order = np.argsort(links, axis=1, kind="stable")
    links, load = np.take_along_axis(links, order, 1), np.take_along_axis(load, order, 1)
    width = int((links < none).sum(axis=1).max(initial=0))
    return links[:, :width], np.where(links < none, load, 0.0)[:, :width]


def stages_of(
    flows: Flows, classes: SymmetryClasses, local: tuple[Amounts, ...]
) -> tuple[tuple[Stage, ...], Amounts]:
    """The stage of every pattern, and the rate of a link of every class.

    ``local``: chunks that every rank adds inside, pattern by pattern.
    """
    nranks, nlinks = (int(of.max(initial=-1)) + 1 for of in (classes.rank, classes.link))
    rank_size = np.bincount(classes.rank, minlength=nranks)
    link_size = np.append(np.bincount(classes.link, minlength=nlinks), 1)
    rate = np.zeros(nlinks)
    rate[classes.link] = flows.rate
    _, head, count = np.unique(classes.message, return_index=True, return_counts=True)
    order = np.argsort(head)
    head, count = head[order], count[order]
    every = count * flows.times[head]
    link_class = np.append(classes.link, nlinks)
    edges = np.searchsorted(head, flows.first)
    found = []
    for number, (a, b) in enumerate(pairwise(edges)):
        rows, total = head[a:b], every[a:b]
        src, dst = classes.rank[flows.src[rows]], classes.rank[flows.dst[rows]]
        # NO_LINK is the last of the classes.
        routes = link_class[flows.routes.table(rows)]
        load = np.where(routes < nlinks, total[:, None] / link_size[routes], 0.0)
        # Where every link is its own class, routes are as they were.
        links, load = (
            (routes, load) if nlinks == len(classes.link) else _joined(routes, load, nlinks)
        )
        out, into = total / rank_size[src], total / rank_size[dst]
        inside = np.zeros(nranks)
        inside[classes.rank] = local[number]
        cap = flows.cap[rows]
        ends, messages = np.concatenate([src, dst]), np.concatenate([out, into])
        posts = np.asarray(np.bincount(ends, messages, nranks), float)
        worst = np.bincount(links.ravel(), (load * cap[:, None]).ravel(), nlinks + 1)[:-1]
        found.append(
            Stage(
                src,
                dst,
                flows.chunks[rows],
                flows.added[rows],
                into,
                flows.latency[rows],
                cap,
                links,
                load,
                inside,
                posts,
                bool((worst <= rate * (1 + 1e-12)).all()),
            )
        )
    return tuple(found), rate
