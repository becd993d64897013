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
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from collectives.predict.caches import Caches
from collectives.predict.machine import NONE, Amounts, Ids, Network, Numbers, RankRoutes, Weights
from collectives.schedule.moves import Moves
from collectives.schedule.schedule import Schedule, Step, runs_of


@dataclass(frozen=True)
class Exchange:
    """Pairs of ranks that exchange messages at once, ``times`` equal ones from src to dst."""

    src: Ids
    dst: Ids
    times: Ids

    def __len__(self) -> int:
        return len(self.src)

    def digest(self) -> bytes:
        """A digest that is the same for equal exchanges."""
        return _digest(self.src, self.dst, self.times)


class Volumes(NamedTuple):
    """The data of an exchange in one pattern, one value per row of the exchange.

    A message carries ``carried`` chunks. It takes the time of ``chunks`` chunks, and adding it the
    time of ``added`` chunks: fewer if caches help (`Weights`). A column of equal values takes no
    memory.
    """

    exchange: int
    chunks: Amounts
    added: Amounts
    carried: Amounts


@dataclass(frozen=True)
class Pattern:
    """The messages of a step in exchanges (sets of senders with receivers), with their volumes.

    No pair of sender and receiver is in two exchanges. ``local``: chunks that each of
    ``local_ranks`` adds from its own memory, without a message.
    """

    parts: tuple[Volumes, ...]
    local_ranks: Numbers
    local: Amounts

    def digest(self) -> bytes:
        """A digest that is the same for equal patterns over one list of exchanges."""
        numbers = np.array([part.exchange for part in self.parts])
        columns = (_value(column) for part in self.parts for column in part[1:])
        return _digest(numbers, self.local_ranks, self.local, *columns)


@dataclass(frozen=True)
class Traffic:
    """The different patterns of a schedule's steps, and the pattern's number of every step."""

    nranks: int
    exchanges: tuple[Exchange, ...]
    patterns: tuple[Pattern, ...]
    steps: Numbers

    @property
    def messages(self) -> int:
        """Messages of all exchanges, each counted once."""
        return sum(map(len, self.exchanges))

    @property
    def volumes(self) -> int:
        """Messages of all patterns, each pattern counted once."""
        return sum(len(self.exchanges[v.exchange]) for p in self.patterns for v in p.parts)


def _digest(*columns: NDArray[np.generic]) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    for column in columns:
        digest.update(len(column).to_bytes(8, "little"))
        digest.update(np.ascontiguousarray(column).data)
    return digest.digest()


def _compact(column: Amounts) -> Amounts:
    """Replace a column of equal values by a view of its first value."""
    if len(column) > 1 and (column == column[0]).all():
        return np.broadcast_to(column[:1].copy(), len(column))
    return column


def _value(column: Amounts) -> Amounts:
    """The one value of a column of equal values, as an array; any other column unchanged."""
    return column[:1] if column.strides == (0,) else column


def _joint(columns: Sequence[Amounts]) -> Amounts:
    """Concatenate columns, without copying a single column or equal values."""
    if len(columns) == 1:
        return columns[0]
    first = [_value(column) for column in columns]
    if columns and all(len(one) == 1 and one[0] == first[0][0] for one in first):
        return np.broadcast_to(first[0], sum(map(len, columns)))
    return np.concatenate([*columns, np.empty(0)])


def _grouped(key: Numbers, *weights: Amounts) -> tuple[Numbers, list[Amounts]]:
    """The different keys, ascending, and the sum of each weight for each key."""
    keys, which = np.unique(key, return_inverse=True)
    return keys, [np.asarray(np.bincount(which, w, len(keys)), float) for w in weights]


def _is_several(parts: Sequence[Moves], nranks: int) -> bool:
    """True if any pair of ranks exchanges more than one message."""
    if sum(map(len, parts)) < 2:
        return False
    if len(parts) == 1 and np.bincount(parts[0].src).max() == 1:
        return False
    pair = np.concatenate([m.pairs(nranks) for m in parts])
    pair.sort()
    return bool((pair[1:] == pair[:-1]).any())


class _Reader:
    """Reads steps, and collects the exchanges and patterns so far."""

    def __init__(self, schedule: Schedule, weights: Weights) -> None:
        self._nranks, self._packed, self._weights = schedule.nranks, schedule.packed, weights
        self.caches = Caches(schedule) if weights != NONE else None
        self.exchanges: list[Exchange] = []
        self.patterns: list[Pattern] = []
        self._known: dict[bytes, int] = {}
        self._known_exchanges: dict[bytes, int] = {}

    def read(self, step: Step) -> tuple[int | None, bool]:
        """The number of a step's pattern, and whether any pair exchanges several messages in it.

        The number is None if the step has no messages.
        """
        whole = self.caches is not None or not step.parts
        made = [step.moves()] if whole else [leaf.moves() for leaf in _leaves(step)]
        away, inside = zip(*map(_divided, made), strict=True)
        local = Moves.concat(inside)
        ranks, (adds,) = _grouped(local.dst.astype(np.int64), local.count.astype(float))
        several = _is_several(away, self._nranks)
        if several:
            away = (Moves.concat(away),)
        parts = [self._volumes(m, several) for m in away if len(m)]
        if self.caches is not None:
            self.caches.note(away[0])
        if not (parts or len(adds)):
            return None, several
        pattern = Pattern(tuple(parts), ranks, adds)
        number = self._known.setdefault(pattern.digest(), len(self.patterns))
        if number == len(self.patterns):
            self.patterns.append(pattern)
        return number, several

    def _volumes(self, away: Moves, several: bool) -> Volumes:
        """The data of these messages; their exchange is stored if it is new."""
        packed = several and self._packed
        if several and not packed:
            away = away.joined()
        fresh, shared = np.ones((2, len(away)), bool)
        if self.caches is not None:
            fresh, shared = self.caches.fresh(away), self.caches.shared(away)
        columns = [away.src, away.dst, away.count, away.reduce, fresh, shared]
        times: Ids = np.broadcast_to(np.int32(1), len(away))
        if several and not packed:
            # Equal messages of a pair get equal rates on their whole route, so they become one row.
            table, counts = np.unique(np.stack(columns), axis=1, return_counts=True)
            columns, times = list(table), counts.astype(np.int32)
        src, dst = (column.astype(np.int32) for column in columns[:2])
        carried = columns[2].astype(float)
        chunks = carried * np.where(columns[4], 1.0, self._weights.still)
        added = carried * columns[3] * np.where(columns[5], 1.0, self._weights.calm)
        if packed:
            pair = src.astype(np.int64) * self._nranks + dst
            pair, (chunks, added, carried) = _grouped(pair, chunks, added, carried)
            src, dst = (end.astype(np.int32) for end in np.divmod(pair, self._nranks))
            times = np.broadcast_to(np.int32(1), len(src))
        # Sorted, so that an exchange in the reverse direction is equal if ranks are swapped.
        order = np.lexsort((dst, src)) if (src[1:] < src[:-1]).any() else slice(None)
        exchange = Exchange(src[order], dst[order], times[order])
        chunks, added, carried = (column[order] for column in (chunks, added, carried))
        number = self._known_exchanges.setdefault(exchange.digest(), len(self.exchanges))
        if number == len(self.exchanges):
            self.exchanges.append(exchange)
        return Volumes(number, *map(_compact, (chunks, added, carried)))


def _leaves(step: Step) -> Iterator[Step]:
    """The parts of a step that have no parts themselves."""
    if not step.parts:
        yield step
    for part in step.parts:
        yield from _leaves(part)


def _divided(m: Moves) -> tuple[Moves, Moves]:
    """The moves between ranks, and the additions inside a rank."""
    away = m.src != m.dst
    if away.all():
        return m, m.where(~away)
    return m.where(away), m.where(~away & m.reduce)


def traffic_of(schedule: Schedule, weights: Weights = NONE) -> Traffic:
    """The messages of a schedule, in vector form or placed.

    Slots that are adjacent at both ends travel as one message, as do all slots of a pair in a
    packed schedule. Steps without messages or additions are left out.
    """
    reader = _Reader(schedule, weights)
    tags: dict[Hashable, int] = {}
    numbers: list[int] = []
    repeats: list[int] = []
    for first, count, steps in runs_of(schedule.steps):
        # Steps with the same moves may find different data in caches.
        signature = first.signature if reader.caches is None else None
        if signature is not None and signature in tags:
            numbers.append(tags[signature])
            repeats.append(count)
            continue
        for i, step in enumerate(steps):
            number, several = reader.read(step)
            # If a pair exchanges several messages, the chunks' numbers decide which of them join.
            alike = signature is not None and not several
            if number is not None:
                numbers.append(number)
                repeats.append(count - i if alike else 1)
                if alike:
                    tags[signature] = number
            if alike:
                break
    steps_of = np.repeat(np.array(numbers, np.int64), np.array(repeats, np.int64))
    return Traffic(schedule.nranks, tuple(reader.exchanges), tuple(reader.patterns), steps_of)


# Sums of rates that differ by less are equal, up to rounding errors of a few additions.
_EXACT = 1e-12
# Routes with more entries than these are not searched for redundant links.
_MOST_SORTED = 4_000_000
_MOST_MERGED = 4_000_000
_MOST_NESTED = 2_000_000


@dataclass(frozen=True)
class Flows:
    """Messages of all exchanges; exchange e has rows ``first[e]`` to ``first[e + 1]``.

    ``patterns``: the exchanges of every pattern. ``routes``: over links that are numbered as in
    ``rate``, without links that never limit a flow. ``latency`` and ``cap``: of the whole route.
    ``carried``: chunks that every link of the machine carries in all steps.
    """

    first: Numbers
    patterns: tuple[tuple[int, ...], ...]
    src: Ids
    dst: Ids
    times: Ids
    latency: Amounts
    cap: Amounts
    routes: RankRoutes
    rate: Amounts
    carried: Amounts

    def __len__(self) -> int:
        return len(self.src)

    def rows(self, exchange: int) -> slice:
        """The rows of an exchange."""
        return slice(int(self.first[exchange]), int(self.first[exchange + 1]))


def flows_of(traffic: Traffic, machine: Network) -> Flows:
    """Route all messages. Raises Unsupported if the network has fewer places than ranks."""
    exchanges = traffic.exchanges
    src, dst, times = (
        np.concatenate([*map(attrgetter(name), exchanges), np.empty(0, np.int32)])
        for name in ("src", "dst", "times")
    )
    routes = machine.routes(src, dst)
    links = machine.links
    flows = Flows(
        np.cumsum([0, *map(len, exchanges)]),
        tuple(tuple(part.exchange for part in p.parts) for p in traffic.patterns),
        src,
        dst,
        times,
        routes.total(links.latency),
        routes.least(links.rate),
        routes,
        links.rate,
        np.zeros(len(links)),
    )
    weights = np.zeros(len(flows))
    repeats = np.bincount(traffic.steps, minlength=len(traffic.patterns))
    for pattern, often in zip(traffic.patterns, repeats.tolist(), strict=True):
        for part in pattern.parts:
            weights[flows.rows(part.exchange)] += part.carried * often
    weights *= times
    return _pruned(flows, routes.loads(weights), machine.buffer > 0)


def _pruned(flows: Flows, carried: Amounts, buffered: bool) -> Flows:
    """Drop links that never limit a flow, and merge links that always limit the same flows."""
    flows = _only(replace(flows, carried=carried), _binding(flows, carried > 0, buffered))
    if flows.routes.work <= _MOST_MERGED:
        flows = _only(flows, _slowest(flows))
        while flows.routes.cells() <= _MOST_NESTED and (inner := _nested(flows)).any():
            flows = _only(flows, ~inner)
    return flows


def _only(flows: Flows, keep: NDArray[np.bool_]) -> Flows:
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
    """Mark links whose neighbour on all their routes is one other link that is no faster.

    Such a link is never full before the other. No two links have the same messages at this point,
    so one of two such links has all the messages of the other and more.
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
    time. So a link carries at most the sum, over the senders, of the most that each sends over it
    in one step; the same holds for the receivers. With buffers, messages of all steps may meet, and
    all that a link carries decides what it lets pass, so all used links are marked.
    """
    if buffered:
        return used
    weight = flows.cap * flows.times
    limit = flows.rate * (1 + _EXACT)
    binding = used & (flows.routes.loads(weight) > limit)
    # Only links that all messages together would fill are examined further.
    few = _only(flows, binding)
    most, limit = np.zeros(len(few.rate)), limit[binding]
    for exchanges in flows.patterns if len(most) else ():
        parts = [flows.rows(exchange) for exchange in exchanges]
        np.maximum(most, sum(few.routes.loads(weight[rows], rows) for rows in parts), out=most)
    within = most <= limit
    if within.any():
        within &= ~_of_one(few)
        binding[binding] = (most > limit) | (within & ~_bounded(few, weight, within, limit))
    return binding


def _of_one(flows: Flows) -> NDArray[np.bool_]:
    """Mark links that carry messages of only one sender, or to only one receiver."""
    nranks = int(max(flows.src.max(initial=0), flows.dst.max(initial=0))) + 1
    tags = np.random.default_rng(0).integers(1, 1 << 63, nranks, np.uint64)
    count = flows.routes.gather(np.ones(len(flows), np.uint64))
    of_one = np.zeros(len(count), bool)
    for end in (flows.src, flows.dst):
        # n numbers are all equal, with near certainty, if n times the sum of their squares is the
        # square of their sum.
        tag = tags[end]
        once, square = flows.routes.gather(tag), flows.routes.gather(tag * tag)
        of_one |= count * square == once * once
    return of_one


def _bounded(
    flows: Flows, weight: Amounts, within: NDArray[np.bool_], limit: Amounts
) -> NDArray[np.bool_]:
    """Mark links among ``within`` that are never full by the bound over senders or receivers."""
    cleared = np.zeros(len(within), bool)
    if not within.any():
        return cleared
    hits = flows.routes.hashes(within.astype(np.uint64))
    uses = [(q, flows.rows(e)) for q, exchanges in enumerate(flows.patterns) for e in exchanges]
    if sum(int(hits[of].sum()) for _, of in uses) > _MOST_SORTED:
        return cleared
    of_use = [of.start + np.flatnonzero(hits[of]) for _, of in uses]
    rows = np.concatenate(of_use)
    patterns = np.repeat([q for q, _ in uses], list(map(len, of_use)))
    links = flows.routes.table(rows)
    use, column = np.nonzero(np.append(within, False)[links])
    link, row, pattern = links[use, column].astype(np.int64), rows[use], patterns[use]
    weights = weight[row]
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
    """The symmetry class, from 0, of every rank, every link of `Flows.rate` and every message."""

    rank: Numbers
    link: Numbers
    message: Numbers


def _mix(x: Colours) -> Colours:
    """Hash numbers (the finaliser of SplitMix64, Steele, Lea, Flood 2014)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: Colours = x ^ (x >> np.uint64(31))
    return mixed


def _with(x: Colours, y: Colours) -> Colours:
    return _mix(x * np.uint64(0x9E3779B97F4A7C15) + y)


def _bits(values: NDArray[np.float64]) -> Colours:
    return _mix(values.view(np.uint64))


def _own(flows: Flows, traffic: Traffic) -> Colours:
    """The initial colour of messages: their routes, and what they carry in every pattern."""
    colour = _with(_bits(flows.latency), _bits(flows.cap))
    colour = _with(colour, flows.times.astype(np.uint64))
    for number, pattern in enumerate(traffic.patterns):
        for part in pattern.parts:
            volumes = _with(_bits(_value(part.chunks)), _bits(_value(part.added)))
            of = flows.rows(part.exchange)
            colour[of] = _with(colour[of], _with(volumes, np.uint64(number)))
    return colour


def _start(traffic: Traffic) -> Colours:
    """The initial colour of ranks: their local additions, pattern by pattern."""
    colour = np.zeros(traffic.nranks, np.uint64)
    for number, pattern in enumerate(traffic.patterns):
        if len(pattern.local_ranks):
            tag = np.full(len(pattern.local), number, np.uint64)
            colour[pattern.local_ranks] += _with(_mix(tag + np.uint64(1)), _bits(pattern.local))
    return colour


def _numbered(colours: Colours) -> Numbers:
    return np.unique(colours, return_inverse=True)[1].astype(np.int64)


class _Partition:
    """Classes of elements. A class is split if its elements have different neighbours.

    ``split``: classes by which the neighbours' classes must still be split. If such a class is
    split after that, its largest part is left out: its members are those that are in no other part
    (Hopcroft 1971).
    """

    def __init__(self, colours: Colours) -> None:
        self.number = _numbered(colours)
        self.size = np.bincount(self.number)
        self.split = np.ones(len(self.size), bool)

    def shown(self) -> Numbers:
        """The members of the classes in ``split``, which is then empty."""
        members = np.flatnonzero(self.split[self.number]) if self.split.any() else _NOBODY
        self.split[:] = False
        return members

    def colours(self, members: Numbers) -> Colours:
        """A hash of each member's class."""
        return _mix(self.number[members].astype(np.uint64) + np.uint64(1))

    def refine(self, members: Numbers, seen: Colours) -> None:
        """Split classes by ``seen``, hashes of these members' neighbours; members occur once."""
        if not len(members):
            return
        classes = len(self.size)
        of = self.number[members]
        order = np.lexsort((seen, of))
        members, of, seen = members[order], of[order], seen[order]
        new = np.ones(len(of), bool)
        new[1:] = (of[1:] != of[:-1]) | (seen[1:] != seen[:-1])
        first = np.flatnonzero(new)
        size, parent = np.diff(first, append=len(of)), of[first]
        # A fragment that is a whole class is not new; members that are not listed stay.
        news = size < self.size[parent]
        left = self.size - np.bincount(parent, size, classes).astype(np.int64)
        # If no member stays, the first fragment keeps the number of its class.
        lead = np.ones(len(parent), bool)
        lead[1:] = parent[1:] != parent[:-1]
        named = news & ~(lead & (left[parent] == 0))
        number = parent.copy()
        number[named] = classes + np.arange(int(named.sum()))
        self.number[members] = np.repeat(number, np.diff(first, append=len(of)))
        self.size = np.concatenate([left, np.zeros(int(named.sum()), np.int64)])
        np.add.at(self.size, number, size)
        unseen = self.split
        self.split = np.concatenate([unseen, np.ones(int(named.sum()), bool)])
        self.split[parent[news]] = True
        # The largest fragment of each class that was split.
        family = np.concatenate([np.unique(parent[news]), parent[named]])
        fragment = np.concatenate([np.unique(parent[news]), number[named]])
        order = np.lexsort((self.size[fragment], family))
        family, fragment = family[order], fragment[order]
        last = np.append(family[1:] != family[:-1], len(family) > 0)[: len(family)]
        self.split[fragment[last]] = unseen[family[last]]


_NOBODY: Numbers = np.empty(0, np.int64)
# Tags of the relations of a message with its ranks and links.
_SENDS, _RECEIVES, _CROSSES = (np.uint64(tag) for tag in (11, 13, 17))


class _Refinement:
    def __init__(self, flows: Flows, traffic: Traffic) -> None:
        self.flows = flows
        self.ranks = _Partition(_start(traffic))
        self.links = _Partition(_bits(flows.rate))
        self.messages = _Partition(_own(flows, traffic))

    def round(self) -> bool:
        """Split messages by their ranks and links, then those by messages. False: no change.

        Only classes that were split in the last round are examined.
        """
        self._messages()
        shown = self.messages.shown()
        colours = self.messages.colours(shown)
        self.ranks.refine(*self._of_ranks(shown, colours))
        if len(self.flows.rate):
            every = np.zeros(len(self.flows), np.uint64)
            every[shown] = colours
            self.links.refine(*_seen(self.flows.routes.gather(every)))
        return bool(self.ranks.split.any() or self.links.split.any())

    def _messages(self) -> None:
        flows = self.flows
        seen = np.zeros(len(flows), np.uint64)
        ranks, links = self.ranks.shown(), self.links.shown()
        if len(ranks):
            colours = np.zeros(len(self.ranks.number), np.uint64)
            colours[ranks] = self.ranks.colours(ranks)
            has = colours > 0
            for end, role in ((flows.src, _SENDS), (flows.dst, _RECEIVES)):
                of = np.flatnonzero(has[end])
                seen[of] += _with(colours[end[of]], role)
        if len(links):
            colours = np.zeros(len(flows.rate), np.uint64)
            colours[links] = _with(self.links.colours(links), _CROSSES)
            seen += flows.routes.hashes(colours)
        self.messages.refine(*_seen(seen))

    def _of_ranks(self, shown: Numbers, colours: Colours) -> tuple[Numbers, Colours]:
        of = np.zeros(len(self.ranks.number), np.uint64)
        for end, role in ((self.flows.src, _SENDS), (self.flows.dst, _RECEIVES)):
            np.add.at(of, end[shown], _with(colours, role))
        return _seen(of)


def _seen(colours: Colours) -> tuple[Numbers, Colours]:
    """The members that have seen something, and what they have seen."""
    members = np.flatnonzero(colours)
    return members, colours[members]


def classes_of(flows: Flows, traffic: Traffic) -> SymmetryClasses:
    """The classes of a schedule's ranks, links and messages on a machine."""
    work = _Refinement(flows, traffic)
    for _ in range(_MOST_ROUNDS):
        more = work.round()
        if 2 * len(work.ranks.size) > traffic.nranks > 8:
            break
        if not more:
            return SymmetryClasses(*(of.number for of in (work.ranks, work.links, work.messages)))
    return separate_classes(flows, traffic)


def separate_classes(flows: Flows, traffic: Traffic) -> SymmetryClasses:
    """Put every rank, link and message into a class of its own."""
    return SymmetryClasses(
        np.arange(traffic.nranks), np.arange(len(flows.rate)), np.arange(len(flows))
    )


@dataclass(frozen=True)
class Stage:
    """A pattern between classes; a row of the columns is a class of messages.

    ``into`` messages from class ``src`` reach each rank of class ``dst``. Each has ``chunks``
    chunks, of which the receiver adds ``added``. ``links``: classes of links on the route, shape
    (rows, most links), padded with the number of classes; ``load``: how many messages of the row
    share such a link. By class of ranks: ``local`` chunks are added inside, ``posts`` messages are
    sent and received. ``alone``: no link limits these messages, however they meet.
    """

    src: Numbers
    dst: Numbers
    chunks: Amounts
    added: Amounts
    into: Amounts
    latency: Amounts
    cap: Amounts
    links: Ids
    load: Amounts
    local: Amounts
    posts: Amounts
    alone: bool

    @property
    def takes_part(self) -> NDArray[np.bool_]:
        """True for classes of ranks that send, receive or add."""
        return (self.posts > 0) | (self.local > 0)


def _joined(links: Ids, load: Amounts, none: int) -> tuple[Ids, Amounts]:
    """Merge entries of links of one class in each route, with the sum of their loads."""
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


class _Rows(NamedTuple):
    """One row per class of messages of an exchange; for the columns see `Stage`."""

    heads: Numbers
    src: Numbers
    dst: Numbers
    out: Amounts
    into: Amounts
    latency: Amounts
    cap: Amounts
    links: Ids
    load: Amounts


def _rows_of(flows: Flows, classes: SymmetryClasses) -> tuple[list[_Rows], Amounts]:
    """The rows of every exchange, and the rate of each class of links."""
    nranks, nlinks = (int(of.max(initial=-1)) + 1 for of in (classes.rank, classes.link))
    rank_size = np.bincount(classes.rank, minlength=nranks)
    link_size = np.append(np.bincount(classes.link, minlength=nlinks), 1)
    rate = np.zeros(nlinks)
    rate[classes.link] = flows.rate
    number = int(classes.message.max(initial=-1)) + 1
    head, every = np.arange(len(flows)), flows.times
    if number < len(flows):
        head = np.full(number, len(flows))
        np.minimum.at(head, classes.message, np.arange(len(flows)))
        order = np.argsort(head)
        every = np.bincount(classes.message, minlength=number)[order] * flows.times[head[order]]
        head = head[order]
    link_class = np.append(classes.link, nlinks).astype(np.int32)
    groups = []
    for a, b in pairwise(np.searchsorted(head, flows.first)):
        rows, total = head[a:b], every[a:b]
        src, dst = classes.rank[flows.src[rows]], classes.rank[flows.dst[rows]]
        # NO_LINK becomes the last class.
        routes = link_class[flows.routes.table(rows)]
        load = np.where(routes < nlinks, total[:, None] / link_size[routes], 0.0)
        # If every link is its own class, routes stay as they are.
        links, load = (
            (routes, load) if nlinks == len(classes.link) else _joined(routes, load, nlinks)
        )
        ends = _compact(total / rank_size[src]), _compact(total / rank_size[dst])
        costs = _compact(flows.latency[rows]), _compact(flows.cap[rows])
        groups.append(_Rows(rows, src, dst, *ends, *costs, links, load))
    return groups, rate


def _padded(tables: Sequence[NDArray[Any]], fill: float) -> NDArray[Any]:
    """Concatenate tables, padded to the widest; a single table is not copied."""
    if len(tables) == 1:
        return tables[0]
    width = max((table.shape[1] for table in tables), default=0)
    return np.concatenate(
        [np.pad(t, ((0, 0), (0, width - t.shape[1])), constant_values=fill) for t in tables]
        or [np.zeros((0, 0), np.int32)]
    )


def stages_of(
    flows: Flows, classes: SymmetryClasses, traffic: Traffic
) -> tuple[tuple[Stage, ...], Amounts]:
    """The stage of every pattern, and the rate of each class of links."""
    rows, rate = _rows_of(flows, classes)
    return tuple(_stage(p, flows, classes, rows, rate) for p in traffic.patterns), rate


def _stage(
    pattern: Pattern,
    flows: Flows,
    classes: SymmetryClasses,
    rows: Sequence[_Rows],
    rate: Amounts,
) -> Stage:
    nranks = int(classes.rank.max(initial=-1)) + 1
    of = [rows[part.exchange] for part in pattern.parts]
    chunks, added = (
        [
            _compact(attrgetter(name)(part)[row.heads - flows.first[part.exchange]])
            for row, part in zip(of, pattern.parts, strict=True)
        ]
        for name in ("chunks", "added")
    )
    src, dst = (np.concatenate([*map(attrgetter(end), of), _NOBODY]) for end in ("src", "dst"))
    out, into, cap = (_joint([*map(attrgetter(name), of)]) for name in ("out", "into", "cap"))
    links = _padded([row.links for row in of], len(rate))
    load = _padded([row.load for row in of], 0.0)
    inside = np.zeros(nranks)
    inside[classes.rank[pattern.local_ranks]] = pattern.local
    posts: Amounts = np.zeros(nranks)
    posts += np.bincount(src, out, nranks)
    posts += np.bincount(dst, into, nranks)
    worst = np.bincount(links.ravel(), (load * cap[:, None]).ravel(), len(rate) + 1)[:-1]
    return Stage(
        src,
        dst,
        _joint(chunks),
        _joint(added),
        into,
        _joint([row.latency for row in of]),
        cap,
        links,
        load,
        inside,
        posts,
        bool((worst <= rate * (1 + 1e-12)).all()),
    )
