"""A schedule's messages on a machine's links, as columns, without links that never limit anything.

The messages of all patterns follow one another. The ``cap`` of a message is the rate of the slowest
link of its route.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from collectives.simulate.machines.machine import Machine
from collectives.simulate.machines.routes import Ids, RankRoutes
from collectives.simulate.messages import Traffic

Numbers = NDArray[np.int64]
Amounts = NDArray[np.float64]

# Sums of rates that differ by less are equal: what a few additions of floats may be off.
_EXACT = 1e-12
# More entries of routes than these are not looked through for links that others stand for.
_MOST_SORTED = 4_000_000
_MOST_MERGED = 4_000_000
_MOST_NESTED = 2_000_000


@dataclass(frozen=True)
class Flows:
    """Messages of all patterns; pattern q has rows ``first[q]`` to ``first[q + 1]``.

    ``routes``: over links that are numbered as in ``rate``; only those that can hold something up
    are in it. ``latency`` and ``cap``: of the whole route. ``carried``: chunks that every link of
    the machine carries in all steps.
    """

    first: Numbers
    src: Numbers
    dst: Numbers
    chunks: Amounts
    added: Amounts
    times: Numbers
    latency: Amounts
    cap: Amounts
    routes: RankRoutes
    rate: Amounts
    carried: Amounts

    def __len__(self) -> int:
        return len(self.src)

    def pattern(self) -> Numbers:
        """The pattern of every message."""
        return np.repeat(np.arange(len(self.first) - 1), np.diff(self.first))


def flows_of(traffic: Traffic, machine: Machine) -> Flows:
    """Route everything. Raises Unsupported where the machine has too few places."""
    columns = {
        name: np.concatenate([getattr(p, name) for p in traffic.patterns] or [np.empty(0)])
        for name in ("src", "dst", "chunks", "added", "carried", "times")
    }
    src, dst = columns["src"].astype(np.int64), columns["dst"].astype(np.int64)
    first = np.concatenate([[0], np.cumsum([len(p.src) for p in traffic.patterns])]).astype(
        np.int64
    )
    routes = machine.routes(src, dst)
    links = machine.links
    repeats = np.bincount(traffic.steps, minlength=len(first) - 1)
    flows = Flows(
        first,
        src,
        dst,
        columns["chunks"],
        columns["added"],
        columns["times"].astype(np.int64),
        routes.total(links.latency),
        routes.least(links.rate),
        routes,
        links.rate,
        np.zeros(len(links)),
    )
    weights = columns["carried"] * columns["times"] * repeats[flows.pattern()]
    return _pruned(flows, routes.loads(weights), machine.buffer > 0)


def _pruned(flows: Flows, carried: Amounts, buffered: bool) -> Flows:
    """Without links that hold nobody up, and with one link for those that hold up the same."""
    flows = _only(replace(flows, carried=carried), _binding(flows, carried > 0, buffered))
    if flows.routes.work <= _MOST_MERGED:
        flows = _only(flows, _slowest(flows))
        while flows.routes.cells <= _MOST_NESTED and (inner := _nested(flows)).any():
            flows = _only(flows, ~inner)
    return flows


def _only(flows: Flows, keep: NDArray[np.bool_]) -> Flows:
    """With some of the links alone."""
    number: Ids = np.where(keep, np.cumsum(keep) - 1, -1).astype(np.int32)
    return replace(flows, routes=flows.routes.kept(number, int(keep.sum())), rate=flows.rate[keep])


def _slowest(flows: Flows) -> NDArray[np.bool_]:
    """Marks the slowest of the links that the same messages cross."""
    tags = np.random.default_rng(0).integers(1, 1 << 63, len(flows), np.uint64)
    users = flows.routes.gather(tags)
    order = np.lexsort((flows.rate, users))
    first = np.ones(len(order), bool)
    first[1:] = users[order][1:] != users[order][:-1]
    keep = np.zeros(len(order), bool)
    keep[order[first]] = True
    return keep


def _nested(flows: Flows) -> NDArray[np.bool_]:
    """Links all of whose messages come from one other, or go on to one other, that is no faster.

    They are never full before that one is. No two links have the same messages any more, so of two
    such links one has the other's and more.
    """
    links = flows.routes.table()
    none = len(flows.rate)
    rate = np.append(flows.rate, np.inf)
    found = np.zeros(none, bool)
    for here, there in ((slice(None, -1), slice(1, None)), (slice(1, None), slice(None, -1))):
        low, high = np.full(none + 1, none), np.full(none + 1, -1)
        end = np.full((len(links), 1), -1, np.int32)
        padded = np.concatenate([end, links, end], axis=1)
        at, next_ = padded[:, here].ravel(), padded[:, there].ravel()
        next_ = np.where(next_ < 0, none, next_)
        np.minimum.at(low, at, next_)
        np.maximum.at(high, at, next_)
        found |= (low == high)[:-1] & (rate[np.minimum(low, none)][:-1] <= flows.rate)
    return found


def _binding(flows: Flows, used: NDArray[np.bool_], buffered: bool) -> NDArray[np.bool_]:
    """Links that may carry more than they can if everyone got their ``cap``.

    A message flows only while both of its ranks are in its step, and a rank is in one step at a
    time. So what a link carries is at most the sum, over the senders, of the most that each gives
    it in one step; and as much over the receivers. With buffers messages of all steps may meet, and
    what a link lets pass at once depends on all that it carries.
    """
    if buffered:
        return used
    weight = flows.cap * flows.times
    limit = flows.rate * (1 + _EXACT)
    binding = used & (flows.routes.loads(weight) > limit)
    # Only links that all messages together would fill are examined further.
    few = _only(flows, binding)
    most, limit = np.zeros(len(few.rate)), limit[binding]
    for a, b in pairwise(flows.first) if len(most) else ():
        np.maximum(most, few.routes.loads(weight[a:b], slice(int(a), int(b))), out=most)
    asked = most <= limit
    if asked.any():
        asked &= ~_of_one(few)
        binding[binding] = (most > limit) | (asked & ~_bounded(few, weight, asked, limit))
    return binding


def _of_one(flows: Flows) -> NDArray[np.bool_]:
    """Links that only one sender's messages cross, or only one receiver's."""
    nranks = int(max(flows.src.max(initial=0), flows.dst.max(initial=0))) + 1
    tags = np.random.default_rng(0).integers(1, 1 << 63, nranks, np.uint64)
    count = flows.routes.gather(np.ones(len(flows), np.uint64))
    found = np.zeros(len(count), bool)
    for end in (flows.src, flows.dst):
        # n equal numbers, and hardly any others, have n times the sum of their squares as the
        # square of their sum.
        tag = tags[end]
        once, square = flows.routes.gather(tag), flows.routes.gather(tag * tag)
        found |= count * square == once * once
    return found


def _bounded(
    flows: Flows, weight: Amounts, asked: NDArray[np.bool_], limit: Amounts
) -> NDArray[np.bool_]:
    """The given links that the bound over senders or receivers shows never to be full."""
    cleared = np.zeros(len(asked), bool)
    if not asked.any():
        return cleared
    hits = flows.routes.hashes(asked.astype(np.uint64))
    if int(hits.sum()) > _MOST_SORTED:
        return cleared
    rows = np.flatnonzero(hits)
    links = flows.routes.table(rows)
    row, column = np.nonzero(np.append(asked, False)[links])
    link, row = links[row, column].astype(np.int64), rows[row]
    pattern, weights = flows.pattern()[row], weight[row]
    for end in (flows.src, flows.dst):
        order = np.lexsort((pattern, end[row], link))
        route, who, q = link[order], end[row][order], pattern[order]
        new = np.ones(len(route), bool)
        new[1:] = (route[1:] != route[:-1]) | (who[1:] != who[:-1])
        turn = new.copy()
        turn[1:] |= q[1:] != q[:-1]
        each = np.add.reduceat(weights[order], np.flatnonzero(turn))
        groups = np.flatnonzero(new[turn])
        most = np.maximum.reduceat(each, groups)
        bound = np.bincount(route[new], most, len(asked))
        cleared |= asked & (bound <= limit)
    return cleared
