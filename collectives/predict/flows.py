"""A schedule's messages on the links of a network, one of each symmetry class.

`traffic_of` reads the messages of a schedule's steps, in chunks. `flows_of` routes them and leaves
out links that never limit a message. `classes_of` finds symmetry classes of ranks, links and
messages. `stages_of` gives the engines one rank, link and message of each class.

Classes are found by colour refinement. Everything begins with a colour for its kind. A message then
takes the colours of its ranks and links, and a rank or link those of its messages, as multisets,
until no colour splits any more. Things of one colour have the same view of the machine and the
schedule, so the same happens to them at the same time. Colours are 64-bit hashes, multisets are
sums of them. If refinement does not end in few colours, everything gets its own, which is always
correct.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from collectives.predict.caches import Caches
from collectives.predict.machine import NONE, Ids, Network, RankRoutes, Weights
from collectives.schedule.moves import Moves
from collectives.schedule.schedule import Schedule

Numbers = NDArray[np.int64]
Amounts = NDArray[np.float64]


@dataclass(frozen=True)
class Pattern:
    """The messages of a step as columns.

    ``times`` equal messages of ``carried`` chunks go from ``src`` to ``dst``; they take the time of
    ``chunks`` chunks, and adding them that of ``added``: fewer where caches help (`Weights`).
    ``local``: chunks that each of ``local_ranks`` adds to its own.
    """

    src: Numbers
    dst: Numbers
    chunks: Amounts
    added: Amounts
    carried: Amounts
    times: Numbers
    local_ranks: Numbers
    local: Amounts

    def digest(self) -> bytes:
        """The same for equal patterns."""
        digest = hashlib.blake2b(digest_size=16)
        for column in vars(self).values():
            digest.update(len(column).to_bytes(8, "little"))
            digest.update(np.ascontiguousarray(column).tobytes())
        return digest.digest()


@dataclass(frozen=True)
class Traffic:
    """The different patterns of a schedule's steps, and which one every step has."""

    nranks: int
    patterns: tuple[Pattern, ...]
    steps: Numbers


def _grouped(key: Numbers, *weights: Amounts) -> tuple[Numbers, list[Amounts]]:
    """The different keys, ascending, and the sum of every weight over the equal ones."""
    keys, which = np.unique(key, return_inverse=True)
    return keys, [np.asarray(np.bincount(which, w, len(keys)), float) for w in weights]


def _pattern(
    m: Moves, nranks: int, packed: bool, weights: Weights, caches: Caches | None
) -> tuple[Pattern, bool]:
    """A step's messages; and whether some pair of ranks exchanges more than one."""
    away = m.remote()
    inside = m.where((m.src == m.dst) & m.reduce)
    local, (adds,) = _grouped(inside.dst.astype(np.int64), inside.count.astype(float))
    pair = away.src.astype(np.int64) * nranks + away.dst
    ordered = np.sort(pair)
    several = bool((ordered[1:] == ordered[:-1]).any())
    if several and not packed:
        away = away.joined()
    fresh, shared = np.ones((2, len(away)), bool)
    if caches is not None:
        fresh, shared = caches.fresh(away), caches.shared(away)
    columns = [away.src, away.dst, away.count, away.reduce, fresh, shared]
    times = np.ones(len(away), np.int64)
    if several and not packed:
        # Equal messages of a pair get equal shares on their whole route, so one row stands for
        # them.
        table, times = np.unique(np.stack(columns), axis=1, return_counts=True)
        columns = list(table)
    src, dst = (column.astype(np.int64) for column in columns[:2])
    carried = columns[2].astype(float)
    chunks = carried * np.where(columns[4], 1.0, weights.still)
    added = carried * columns[3] * np.where(columns[5], 1.0, weights.calm)
    if several and packed:
        pair, (chunks, added, carried) = _grouped(pair, chunks, added, carried)
        src, dst = np.divmod(pair, nranks)
        times = np.ones_like(src)
    return Pattern(src, dst, chunks, added, carried, times, local, adds), several


def traffic_of(schedule: Schedule, weights: Weights = NONE) -> Traffic:
    """The messages of a schedule, in vector form or placed.

    Slots that lie side by side at both ends travel as one message, as do all of a pair in a packed
    schedule. Steps in which nothing is sent or added are left out.
    """
    known: dict[bytes, int] = {}
    tags: dict[Hashable, int] = {}
    patterns: list[Pattern] = []
    steps: list[int] = []
    caches = Caches(schedule) if weights != NONE else None
    for step in schedule.steps:
        # Steps with the same moves may find different data in caches.
        signature = step.signature if caches is None else None
        if signature is not None and signature in tags:
            steps.append(tags[signature])
            continue
        m = step.moves()
        pattern, several = _pattern(m, schedule.nranks, schedule.packed, weights, caches)
        if caches is not None:
            caches.note(m.remote())
        if not (len(pattern.src) or len(pattern.local)):
            continue
        number = known.setdefault(pattern.digest(), len(patterns))
        if number == len(patterns):
            patterns.append(pattern)
        # Where a pair exchanges several, which of them join depends on the chunks' numbers.
        if signature is not None and not several:
            tags[signature] = number
        steps.append(number)
    return Traffic(schedule.nranks, tuple(patterns), np.array(steps, np.int64))


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


def flows_of(traffic: Traffic, machine: Network) -> Flows:
    """Route all messages. Raises Unsupported where the network has too few places."""
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
    """Drop links that never limit a flow, and merge links that always limit the same flows."""
    flows = _only(replace(flows, carried=carried), _binding(flows, carried > 0, buffered))
    if flows.routes.work <= _MOST_MERGED:
        flows = _only(flows, _slowest(flows))
        while flows.routes.cells <= _MOST_NESTED and (inner := _nested(flows)).any():
            flows = _only(flows, ~inner)
    return flows


def _only(flows: Flows, keep: NDArray[np.bool_]) -> Flows:
    """Keep only some of the links."""
    number: Ids = np.where(keep, np.cumsum(keep) - 1, -1).astype(np.int32)
    return replace(
        flows, routes=flows.routes.renumbered(number, int(keep.sum())), rate=flows.rate[keep]
    )


def _slowest(flows: Flows) -> NDArray[np.bool_]:
    """Mark the slowest of the links that the same messages cross."""
    tags = np.random.default_rng(0).integers(1, 1 << 63, len(flows), np.uint64)
    users = flows.routes.gather(tags)
    order = np.lexsort((flows.rate, users))
    first = np.ones(len(order), bool)
    first[1:] = users[order][1:] != users[order][:-1]
    keep = np.zeros(len(order), bool)
    keep[order[first]] = True
    return keep


def _nested(flows: Flows) -> NDArray[np.bool_]:
    """Mark links whose messages all come from, or all go to, one other link that is no faster.

    They are never full before that one is. No two links have the same messages any more, so of two
    such links one has the other's and more.
    """
    links = flows.routes.table()
    none = len(flows.rate)
    rate = np.append(flows.rate, np.inf)
    nested = np.zeros(none, bool)
    for here, there in ((slice(None, -1), slice(1, None)), (slice(1, None), slice(None, -1))):
        low, high = np.full(none + 1, none), np.full(none + 1, -1)
        end = np.full((len(links), 1), -1, np.int32)
        padded = np.concatenate([end, links, end], axis=1)
        at, next_ = padded[:, here].ravel(), padded[:, there].ravel()
        next_ = np.where(next_ < 0, none, next_)
        np.minimum.at(low, at, next_)
        np.maximum.at(high, at, next_)
        nested |= (low == high)[:-1] & (rate[np.minimum(low, none)][:-1] <= flows.rate)
    return nested


def _binding(flows: Flows, used: NDArray[np.bool_], buffered: bool) -> NDArray[np.bool_]:
    """Mark links whose load could exceed their rate if every message had its ``cap``.

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
    within = most <= limit
    if within.any():
        within &= ~_of_one(few)
        binding[binding] = (most > limit) | (within & ~_bounded(few, weight, within, limit))
    return binding


def _of_one(flows: Flows) -> NDArray[np.bool_]:
    """Mark links that only one sender's, or only one receiver's, messages cross."""
    nranks = int(max(flows.src.max(initial=0), flows.dst.max(initial=0))) + 1
    tags = np.random.default_rng(0).integers(1, 1 << 63, nranks, np.uint64)
    count = flows.routes.gather(np.ones(len(flows), np.uint64))
    of_one = np.zeros(len(count), bool)
    for end in (flows.src, flows.dst):
        # n equal numbers, and hardly any others, have n times the sum of their squares as the
        # square of their sum.
        tag = tags[end]
        once, square = flows.routes.gather(tag), flows.routes.gather(tag * tag)
        of_one |= count * square == once * once
    return of_one


def _bounded(
    flows: Flows, weight: Amounts, within: NDArray[np.bool_], limit: Amounts
) -> NDArray[np.bool_]:
    """Mark those of the given links that are never full by the bound over senders or receivers."""
    cleared = np.zeros(len(within), bool)
    if not within.any():
        return cleared
    hits = flows.routes.hashes(within.astype(np.uint64))
    if int(hits.sum()) > _MOST_SORTED:
        return cleared
    rows = np.flatnonzero(hits)
    links = flows.routes.table(rows)
    row, column = np.nonzero(np.append(within, False)[links])
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
        bound = np.bincount(route[new], most, len(within))
        cleared |= within & (bound <= limit)
    return cleared


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
        """Recolour messages by their ranks and links, then ranks and links by their messages."""
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
    return separate_classes(flows, traffic)


def separate_classes(flows: Flows, traffic: Traffic) -> SymmetryClasses:
    """Every rank, link and message a class of its own."""
    return SymmetryClasses(
        np.arange(traffic.nranks), np.arange(len(flows.rate)), np.arange(len(flows))
    )


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
    stages = []
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
        stages.append(
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
    return tuple(stages), rate
