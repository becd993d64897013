"""A schedule's messages on a machine's links, as columns; links that never hold anything up go.

The messages of all patterns stand one after the other. What a message can at best have is its
``cap``, the slowest link of its way.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from collectives.simulate.machines.machine import Machine
from collectives.simulate.messages import Traffic

__all__ = ["Flows", "flows_of"]

Numbers = NDArray[np.int64]
Ids = NDArray[np.int32]
Amounts = NDArray[np.float64]

# Sums of rates that differ by less are equal: what a few additions of floats may be off.
_EXACT = 1e-12
_BLOCK = 1 << 18
_MOST_SORTED = 4_000_000
_MOST_MERGED = 4_000_000


@dataclass(frozen=True)
class Flows:
    """Messages of all patterns; pattern q has rows ``first[q]`` to ``first[q + 1]``.

    ``links``: shape (messages, most links), numbers of links in ``rate``, padded with len(rate);
    only links that can hold something up are in it. ``latency`` and ``cap``: of the whole way.
    ``carried``: chunks that every link of the machine carries in all steps.
    """

    first: Numbers
    src: Numbers
    dst: Numbers
    chunks: Amounts
    added: Amounts
    times: Numbers
    latency: Amounts
    cap: Amounts
    links: Ids
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
        for name in ("src", "dst", "chunks", "added", "times")
    }
    src, dst = columns["src"].astype(np.int64), columns["dst"].astype(np.int64)
    first = np.concatenate([[0], np.cumsum([len(p.src) for p in traffic.patterns])]).astype(
        np.int64
    )
    routes = machine.routes(src, dst)
    none = len(machine.links)
    latency, cap = np.empty(len(src)), np.empty(len(src))
    rates = np.append(machine.links.rate, np.finfo(float).max)
    delays = np.append(machine.links.latency, 0.0)
    for block in _blocks(len(src)):
        # NO_LINK is the last entry of both.
        way = routes[block]
        latency[block] = delays[way].sum(axis=1)
        cap[block] = rates[way].min(axis=1, initial=rates[-1])
    repeats = np.bincount(traffic.steps, minlength=len(first) - 1)
    flows = Flows(
        first,
        src,
        dst,
        columns["chunks"],
        columns["added"],
        columns["times"].astype(np.int64),
        latency,
        cap,
        routes,
        machine.links.rate,
        np.zeros(none),
    )
    weights = columns["chunks"] * columns["times"] * repeats[flows.pattern()]
    carried = _per_link(routes, weights, none)
    return _pruned(flows, carried)


def _blocks(size: int) -> list[slice]:
    return [slice(at, at + _BLOCK) for at in range(0, size, _BLOCK)]


def _per_link(routes: Ids, weights: Amounts, nlinks: int) -> Amounts:
    """The sum of the weights of the messages over every link."""
    found = np.zeros(nlinks + 1)
    for block in _blocks(len(routes)):
        part = routes[block]
        index = part.ravel().astype(np.int64) + 1
        found += np.bincount(index, np.repeat(weights[block], part.shape[1]), nlinks + 1)
    return found[1:]


def _pruned(flows: Flows, carried: Amounts) -> Flows:
    """Without links that hold nobody up, and with one link for those that hold up the same."""
    keep = _binding(flows, carried > 0)
    number = np.full(len(keep) + 1, -1, np.int32)
    number[:-1][keep] = np.arange(int(keep.sum()))
    links, rate = _kept(number, flows.links), flows.rate[keep]
    if links.size <= _MOST_MERGED:
        number, rate = _merged(links, rate)
        links = _kept(number, links)
    links[links < 0] = len(rate)
    return replace(flows, links=links, rate=rate, carried=carried)


def _kept(number: Ids, links: Ids) -> Ids:
    """Links by their new numbers, those that have none (−1) left out and the others moved together."""
    parts = [number[links[block]] for block in _blocks(len(links))]
    width = max((int((part >= 0).sum(axis=1).max(initial=0)) for part in parts), default=0)
    found = np.empty((len(links), width), np.int32)
    for block, part in zip(_blocks(len(links)), parts, strict=True):
        if width < part.shape[1]:
            order = np.argsort(part < 0, axis=1, kind="stable")[:, :width]
            part = np.take_along_axis(part, order, axis=1)
        found[block] = part
    return found


def _merged(links: Ids, rate: Amounts) -> tuple[Ids, Amounts]:
    """Of links that the same messages cross only the slowest counts: its number, −1 for the others."""
    users = np.zeros(len(rate) + 1, np.uint64)
    tags = np.random.default_rng(0).integers(1, 1 << 63, len(links), np.uint64)
    np.add.at(users, links.ravel(), np.repeat(tags, links.shape[1]))
    order = np.lexsort((rate, users[:-1]))
    first = np.ones(len(rate), bool)
    first[1:] = users[order][1:] != users[order][:-1]
    number = np.full(len(rate) + 1, -1, np.int32)
    chosen = np.sort(order[first])
    number[chosen] = np.arange(len(chosen))
    return number, rate[chosen]


def _binding(flows: Flows, used: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Links that may carry more than they can if everyone got their ``cap``.

    A message flows only while both of its ranks are in its step, and a rank is in one step at a
    time. So what a link carries is at most the sum, over the senders, of the most that each gives it
    in one step; and as much over the receivers.
    """
    nlinks = len(flows.rate)
    weight = flows.cap * flows.times
    most, total = np.zeros(nlinks), np.zeros(nlinks)
    for a, b in pairwise(flows.first):
        load = _per_link(flows.links[a:b], weight[a:b], nlinks)
        np.maximum(most, load, out=most)
        total += load
    limit = flows.rate * (1 + _EXACT)
    binding = used & (total > limit)
    asked = binding & (most <= limit)
    if asked.any():
        asked &= ~_of_one(flows, nlinks)
        binding &= (most > limit) | asked
    return binding & ~_bounded(flows, weight, asked, limit)


def _of_one(flows: Flows, nlinks: int) -> NDArray[np.bool_]:
    """Links that only one sender's messages cross, or only one receiver's."""
    found = np.zeros(nlinks, bool)
    for end in (flows.src, flows.dst):
        low, high = np.full(nlinks + 1, np.iinfo(np.int64).max), np.full(nlinks + 1, -1)
        for block in _blocks(len(flows)):
            part = flows.links[block]
            ends = np.repeat(end[block], part.shape[1])
            np.minimum.at(low, part.ravel(), ends)
            np.maximum.at(high, part.ravel(), ends)
        found |= low[:-1] == high[:-1]
    return found


def _bounded(
    flows: Flows, weight: Amounts, asked: NDArray[np.bool_], limit: Amounts
) -> NDArray[np.bool_]:
    """Of the links asked for, those that the bound over senders or receivers clears."""
    cleared = np.zeros(len(asked), bool)
    if not asked.any():
        return cleared
    hit = np.append(asked, False)[flows.links]
    if int(hit.sum()) > _MOST_SORTED:
        return cleared
    row, column = np.nonzero(hit)
    link = flows.links[row, column].astype(np.int64)
    pattern, weights = flows.pattern()[row], weight[row]
    for end in (flows.src, flows.dst):
        order = np.lexsort((pattern, end[row], link))
        way, who, q = link[order], end[row][order], pattern[order]
        new = np.ones(len(way), bool)
        new[1:] = (way[1:] != way[:-1]) | (who[1:] != who[:-1])
        turn = new.copy()
        turn[1:] |= q[1:] != q[:-1]
        each = np.add.reduceat(weights[order], np.flatnonzero(turn))
        groups = np.flatnonzero(new[turn])
        most = np.maximum.reduceat(each, groups)
        bound = np.bincount(way[new], most, len(asked))
        cleared |= asked & (bound <= limit)
    return cleared
