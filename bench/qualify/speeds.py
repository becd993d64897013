"""Finds hosts, links and uplinks that are slow, and those that may be. No input or output.

A flow is as fast as the slowest of its sender, its receiver and the network between them. So a fast
flow clears both hosts, but a slow flow counts against a host only if its partner is fast with
others. Every flow is compared with a cut, and is then fast or slow. How often flows of healthy
hosts are slow is counted among hosts that look healthy. So no distribution of the noise is assumed,
and one outlier counts no more than any slow flow. Each host, and each of its directions, has a
sequential likelihood-ratio test (Wald 1945) of "slow as often as healthy hosts" against "slow
nearly always". The likelihood ratio of a healthy host is a martingale: the probability that it ever
exceeds x is at most 1 / x (Ville 1939). The bound is therefore the number of tests over the
probability of a false alarm in the whole campaign, however often the test is evaluated.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from math import log

import numpy as np

from bench.qualify.evidence import DUPLEX, IN, OUT, Bools, Evidence, Floats, Flows, Ints
from bench.qualify.model import BACKWARD, BOTH, FORWARD
from bench.qualify.pairing import Pair
from busbar.statistics import interval, robust_scatter

#: A slow subject is missed at most this often, if its ratio is the square of the limit or below.
MISSED = 0.05
#: Fewest launches, and fewest partners of a host plus one, on which a subject is called slow.
LEAST = 3
#: Number of other suspects that a suspect is paired with, if racks are not given.
MATES = 4
#: An uplink that is not shown to be slow in this many batches is not called slow.
MOST_BATCHES = 12
# Lower limits for the probabilities that a healthy host has a slow flow, and a slow host a fast
# one: rarer events may not have been observed yet.
_LEAST_SLOW, _LEAST_FAST = 1e-3, 0.02
_MOST_FAST = 0.3
# If healthy flows are slow more often than this, a slow flow has no meaning.
_MOST_SLOW = 0.4
# A second level of rates: a share of at least the second, faster by at least the first.
_LEVEL, _SHARE = log(1.15), 0.15
# Pairs across racks are said to be slower than pairs inside from this ratio on.
_ALIKE = 0.8
# A group looks cut off if more than this fraction of its flows to others are slow.
_CUT_OFF = 0.7


@dataclass(frozen=True)
class Slow:
    """A subject's rate over that of comparable ones, the launches that show it, and its partners.

    `low` and `high` contain the median ratio in 95 % of cases if there are six flows or more; with
    fewer they are the smallest and the largest ratio. `channels` has the slow channels of a host.
    For subjects below a threshold, `rate` is the best rate in bytes per second, and `ratio` is the
    share of the threshold that it reaches.
    """

    ratio: float
    low: float
    high: float
    launches: tuple[int, ...]
    partners: int
    channels: tuple[int, ...] = ()
    rate: float = 0.0
    threshold: float = 0.0


@dataclass
class Speeds:
    """Results from the rates of pairs.

    `hosts`, `links` and `uplinks` are slow. `unsure` hosts are neither cleared nor slow, and
    neither are the pairs in `suspects`. `groups` are sets of hosts that are fast among themselves
    and slow with nearly all others, and whose uplink is not known to be slow yet. `behind` maps a
    host to all hosts behind the same uplink, if that looks slow. `apart` has pairs of sets of
    hosts; one host of each is to be paired before they are called slow, because hosts behind one
    slow uplink are slow with all hosts but each other. `cleared` marks hosts that are fast, and
    `fast` has pairs of them, one in each row. `best` is each host's ratio in the best pair of its
    worst channel. `incomparable` hosts have no pair that a pair of other hosts can be compared
    with, and no threshold tells whether they are slow.
    """

    hosts: dict[int, Slow] = field(default_factory=dict)
    unsure: dict[int, Slow | None] = field(default_factory=dict)
    links: dict[Pair, Slow] = field(default_factory=dict)
    suspects: dict[Pair, Slow] = field(default_factory=dict)
    groups: list[frozenset[int]] = field(default_factory=list)
    uplinks: dict[frozenset[int], Slow] = field(default_factory=dict)
    behind: dict[int, frozenset[int]] = field(default_factory=dict)
    apart: list[tuple[frozenset[int], frozenset[int]]] = field(default_factory=list)
    cleared: Bools = field(default_factory=lambda: np.zeros(0, dtype=bool))
    fast: Ints = field(default_factory=lambda: np.zeros((0, 2), dtype=np.int64))
    best: Floats = field(default_factory=lambda: np.zeros(0))
    incomparable: set[int] = field(default_factory=set)


@dataclass(frozen=True)
class Test:
    """Sequential test for a kind of channel: the cut, and the scores of a slow and a fast flow."""

    cut: float
    slow: float
    fast: float

    @property
    def needed(self) -> int:
        """The number of fast flows, without a slow one, that clear a subject."""
        return int(np.ceil(log(MISSED) / self.fast - 1e-9))


def usual(values: Floats) -> float:
    """The median rate; of rates around two values, such as in and across racks, that of the faster.

    Pairs across racks may all be slower than pairs inside a rack, and more numerous.
    """
    middle = float(np.median(values))
    for _ in range(4):
        above = values[values > middle + _LEVEL]
        if len(above) < _SHARE * len(values):
            break
        middle = float(np.median(above))
    return middle


def sequential_test(healthy: Floats, slow: float) -> Test:
    """The test computed from flows of healthy hosts; `slow` is the limit of the ratio.

    The cut is the limit, or lower if otherwise more than one in twenty healthy flows would be slow.
    With fewer than twenty flows, it is lower only if more of them are slow.
    """
    cut = log(slow)
    if len(healthy) >= 20 or np.sum(healthy < cut) > _MOST_SLOW * len(healthy):
        cut = min(cut, float(np.quantile(healthy, 0.05)))
    below = (float(np.sum(healthy < cut)) + 1) / (len(healthy) + 2)
    above = (float(np.sum(healthy > -cut)) + 1) / (len(healthy) + 2)
    chance_slow = float(np.clip(below, _LEAST_SLOW, _MOST_SLOW))
    chance_fast = float(np.clip(above, _LEAST_FAST, _MOST_FAST))
    return Test(
        cut,
        log((1 - chance_fast) / chance_slow),
        log(chance_fast / (1 - chance_slow)),
    )


class _Ends:
    """The two ends of every flow, with a row for each: a host on a channel, and its partner."""

    def __init__(self, flows: Flows, informs: tuple[Bools, Bools]):
        receiving = np.where(flows.channel == DUPLEX, DUPLEX, IN)
        self.host = np.concatenate([flows.source, flows.target])
        self.partner = np.concatenate([flows.target, flows.source])
        self.channel = np.concatenate([flows.channel, receiving])
        self.partner_channel = np.concatenate([receiving, flows.channel])
        self.flow = np.tile(np.arange(len(flows.source)), 2)
        self.informs = np.concatenate(informs)


def _counted(shape: tuple[int, int], host: Ints, channel: Ints) -> Ints:
    """The number of rows of each host on each channel."""
    flat = np.bincount(host * shape[1] + channel, minlength=shape[0] * shape[1])
    return flat.reshape(shape).astype(np.int64)


class Judge:
    """Values computed from the flows of a campaign on the way to verdicts.

    `kinds` has the number of each host's kind. `left_out` has hosts that fail or return wrong
    elements, which are not judged here.
    """

    def __init__(self, evidence: Evidence, kinds: Ints, left_out: frozenset[int]):
        self.evidence, self.kinds, self.left_out = evidence, kinds, left_out
        self.flows = evidence.flows
        self.nhosts = len(evidence.hosts)
        self.out = np.zeros(self.nhosts, dtype=bool)
        self.out[list(left_out)] = True
        minimum = evidence.limits.minimum
        one_way = max(minimum.get(FORWARD, 0.0), minimum.get(BACKWARD, 0.0))
        #: The minimum rate of each channel in bytes per second; 0 without.
        self.thresholds = np.array([one_way, one_way, minimum.get(BOTH, 0.0)])
        self.crosses = self._crosses(evidence.racks)
        self.ratio, informs = self._ratios()
        self.ends = _Ends(self.flows, informs)
        self.tests: tuple[Test, ...] = ()
        self.is_slow: Bools = np.less(self.ratio, log(evidence.limits.slow))
        self.explained = np.zeros(len(self.ratio), dtype=bool)
        low, high = np.sort([self.flows.source, self.flows.target], axis=0)
        #: A number of each flow's pair of hosts.
        self.pair = low * self.nhosts + high

    def _crosses(self, racks: Ints | None) -> Bools:
        if racks is None:
            return np.zeros(len(self.flows.source), dtype=bool)
        crosses: Bools = racks[self.flows.source] != racks[self.flows.target]
        return crosses

    def _ratios(self) -> tuple[Floats, tuple[Bools, Bools]]:
        """Log of each flow's rate over similar flows; whether it counts for its source and target.

        Similar flows are between hosts of the same two kinds, both inside a rack or both across
        racks. A flow to a host of a slower kind does not count for its partner, and neither does a
        flow that is only similar to flows of the same host.
        """
        flows, kinds = self.flows, self.kinds
        a, b = kinds[flows.source], kinds[flows.target]
        most = int(kinds.max(initial=0)) + 1
        likes = np.minimum(a, b) * most + np.maximum(a, b)
        key = (likes * 2 + self.crosses) * 3 + flows.channel
        classes, member = np.unique(key, return_inverse=True)
        level = np.zeros(len(classes))
        for n in range(len(classes)):
            like = member == n
            # Only rounds count: after them, mostly suspects are measured.
            rounds = like & flows.in_round
            level[n] = usual(flows.rate[rounds if rounds.any() else like])
        own = dict(zip(classes.tolist(), level.tolist(), strict=True))
        informs = self._others_are_similar(member)
        if most > 1:
            tolerance = -log(self.evidence.limits.slow)
            for side, kind in zip(informs, (a, b), strict=True):
                same = (kind * most + kind) * 6 + self.crosses * 3 + flows.channel
                rate = np.array([own.get(k, -np.inf) for k in same.tolist()])
                side &= rate <= level[member] + tolerance
        return flows.rate - level[member], (informs[0], informs[1])

    def _others_are_similar(self, member: Ints) -> tuple[Bools, Bools]:
        """Whether a flow's class has flows without its source, and without its target.

        `member`: the number of each flow's class. Hosts that fail do not count.
        """
        flows, counted = self.flows, ~self.out[self.flows.source] & ~self.out[self.flows.target]
        own = np.concatenate(
            [member * self.nhosts + flows.source, member * self.nhosts + flows.target]
        )
        _, number = np.unique(own, return_inverse=True)
        mine = np.bincount(number, weights=np.tile(counted, 2))[number]
        others: Bools = np.tile(np.bincount(member, weights=counted)[member], 2) > mine
        return others[: len(member)], others[len(member) :]

    def incomparable(self) -> Bools:
        """True for hosts that have flows, of which none can be compared with flows of others."""
        ends = self.ends
        usable = ~self.out[ends.host] & ~self.out[ends.partner]
        flows = np.bincount(ends.host[usable], minlength=self.nhosts)
        compared = np.bincount(ends.host[usable & ends.informs], minlength=self.nhosts)
        result: Bools = (flows > 0) & (compared == 0)
        return result

    # ------------------------------------------------------------------ tests

    def calibrate(self, healthy: Bools) -> None:
        """Compute the tests from flows between healthy hosts, and mark the flows that are slow."""
        flows = self.flows
        good = healthy[flows.source] & healthy[flows.target] & ~self.explained & ~self._repeated()
        self.tests = tuple(
            sequential_test(
                self.ratio[good & ((flows.channel == DUPLEX) == duplex)],
                self.evidence.limits.slow,
            )
            for duplex in (False, False, True)
        )
        cuts = np.array([test.cut for test in self.tests])
        self.is_slow = self.ratio < cuts[flows.channel]

    def _repeated(self) -> Bools:
        """Flows of pairs that are slow in several launches and in most, so not by chance."""
        _, member, times = np.unique(self.pair, return_inverse=True, return_counts=True)
        slow = np.bincount(member, weights=self.is_slow)
        # A launch has up to three flows, of which a fault in one direction slows two.
        repeated: Bools = (slow > 3) & (2 * slow >= times)
        return repeated[member]

    def remove_batch_levels(self, healthy: Bools) -> None:
        """Subtract each batch's median from its ratios, if it exceeds the error of a median.

        If a machine is slower for a while, all launches of a batch are slow.
        """
        flows = self.flows
        good = healthy[flows.source] & healthy[flows.target] & ~self.explained
        key = flows.batch * 6 + self.crosses * 3 + flows.channel
        ratio = self.ratio.copy()
        for one in np.unique(key[good]).tolist():
            inside = key == one
            values = self.ratio[inside & good]
            if len(values) < 3:
                continue
            middle = float(np.median(values))
            scatter = robust_scatter(values - middle)
            if abs(middle) > 3 * scatter / np.sqrt(len(values)) + 0.005:
                ratio[inside] -= middle
        self.ratio = ratio
        self.is_slow = ratio < log(self.evidence.limits.slow)

    def looks_healthy(self) -> Bools:
        """True for hosts with at least as many fast flows as slow ones, on every channel.

        Rates of messages both ways at once may have two levels, because of how an MPI alternates.
        If most hosts are fast in each direction alone but not in both at once, only the single
        directions count.
        """
        fast, slow = self._tallies()
        known = (fast + slow > 0).any(axis=1) & ~self.out
        often = fast >= slow
        every: Bools = often.all(axis=1) & known
        one_way: Bools = often[:, [OUT, IN]].all(axis=1) & known
        return every if 2 * every.sum() >= one_way.sum() else one_way

    def usable(self) -> Bools:
        """True for ends of flows that count for their host: no uplink explains their rate."""
        ends = self.ends
        usable: Bools = ~self.explained[ends.flow] & ends.informs & ~self.out[ends.partner]
        return usable

    def best(self, values: Floats) -> Floats:
        """The largest of the flows' values for each host and channel; -inf without flows."""
        best = np.full((self.nhosts, 3), -np.inf)
        np.maximum.at(best, (self.ends.host, self.ends.channel), values[self.ends.flow])
        return best

    def _tallies(self) -> tuple[Ints, Ints]:
        """Fast and slow flows of each host and channel, without those that an uplink explains.

        A pair's slow flows count once, however often it was measured: suspects are measured again
        and again, and in a small cluster with the same few partners.
        """
        ends, shape, usable = self.ends, (self.nhosts, 3), self.usable()
        slow = usable & self.is_slow[ends.flow]
        fast = usable & ~self.is_slow[ends.flow]
        pair = (ends.host * self.nhosts + ends.partner) * 3 + ends.channel
        rows = np.flatnonzero(slow)
        slow = np.isin(np.arange(len(slow)), rows[np.unique(pair[rows], return_index=True)[1]])
        return (
            _counted(shape, ends.host[fast], ends.channel[fast]),
            _counted(shape, ends.host[slow], ends.channel[slow]),
        )

    def score_hosts(self) -> tuple[Floats, Bools]:
        """Log likelihood ratio of slow over healthy by host and channel; the slow rows that count.

        A slow flow counts if its partner is fast with others, more often than it is slow.
        """
        ends = self.ends
        fast, slow = self._tallies()
        needed = np.array([test.needed for test in self.tests])
        partner = ends.partner, ends.partner_channel
        trusted = (fast[partner] >= needed[ends.partner_channel]) & (
            fast[partner] >= slow[partner] - 1
        )
        counts = self.is_slow[ends.flow] & trusted & self.usable()
        shown = _counted((self.nhosts, 3), ends.host[counts], ends.channel[counts])
        gains = np.array([test.slow for test in self.tests])
        losses = np.array([test.fast for test in self.tests])
        return shown * gains + fast * losses, counts

    # ----------------------------------------------------------------- groups

    def explain(self) -> list[frozenset[int]]:
        """Find groups of hosts that look cut off, and mark the flows that this explains.

        The groups are racks if racks are given. Returns them, the most suspicious first.
        """
        self.explained = np.zeros(len(self.ratio), dtype=bool)
        groups, result = self._candidates(), []
        while groups:
            shares = [self._share_cut_off(group) for group in groups]
            worst = max(range(len(groups)), key=lambda n: (shares[n], -len(groups[n]), -n))
            if shares[worst] <= _CUT_OFF:
                break
            result.append(groups.pop(worst))
            for crossing in self.crossing(result[-1]):
                self.explained |= crossing
        return result

    def _candidates(self) -> list[frozenset[int]]:
        """Sets of hosts that may share an uplink."""
        racks = self.evidence.racks
        if racks is not None:
            numbers = range(int(racks.max(initial=-1)) + 1)
            return [frozenset(np.flatnonzero(racks == n).tolist()) for n in numbers]
        ends, flows, shape = self.ends, self.flows, (self.nhosts, 3)
        usable = ~self.out[ends.partner] & ~self.out[ends.host] & flows.in_round[ends.flow]
        slow = usable & self.is_slow[ends.flow]
        every = _counted(shape, ends.host[usable], ends.channel[usable])
        bad = _counted(shape, ends.host[slow], ends.channel[slow])
        # Hosts that are slow with at least half of their partners, and pairs of them that are fast.
        lonely = np.any((bad >= 1) & (2 * bad >= every), axis=1)
        among = np.flatnonzero(lonely[flows.source] & lonely[flows.target])
        tally: dict[Pair, list[int]] = defaultdict(lambda: [0, 0])
        for row in among.tolist():
            a, b = int(flows.source[row]), int(flows.target[row])
            tally[min(a, b), max(a, b)][int(self.is_slow[row])] += 1
        fast = [pair for pair, (well, ill) in tally.items() if well >= 2 and well > 2 * ill]
        groups = [self._extended(group) for group in components(fast)]
        # A group of more than half of the hosts is not bad: the few others are.
        return [group for group in groups if 2 * len(group) <= self.nhosts - int(self.out.sum())]

    def _extended(self, group: frozenset[int]) -> frozenset[int]:
        """The group, plus hosts that are fast with some of it in rounds and with no other host."""
        inside = np.zeros(self.nhosts, dtype=bool)
        inside[list(group)] = True
        ends = self.ends
        usable = ~self.out[ends.host] & ~self.out[ends.partner] & self.flows.in_round[ends.flow]
        fast = usable & ~self.is_slow[ends.flow]
        with_it = np.bincount(ends.host[fast & inside[ends.partner]], minlength=self.nhosts)
        others = np.bincount(ends.host[fast & ~inside[ends.partner]], minlength=self.nhosts)
        near = np.flatnonzero((with_it > 0) & (others == 0))
        return group | frozenset(near.tolist())

    def _share_cut_off(self, group: frozenset[int]) -> float:
        """The fraction of slow flows between a group and others, on the channel with most.

        Only rounds count, because an uplink may be slow only while many hosts use it.
        """
        shares = [
            float(self.is_slow[rows].mean())
            for rows in (
                crossing & ~self.explained & self.flows.in_round
                for crossing in self.crossing(group)
            )
            if rows.sum() >= 2
        ]
        return max(shares, default=0.0)

    def crossing(self, group: frozenset[int]) -> tuple[Bools, Bools, Bools]:
        """The flows out of a group of hosts, into it, and in both directions at once."""
        inside = np.zeros(self.nhosts, dtype=bool)
        inside[list(group)] = True
        flows = self.flows
        usable = ~self.out[flows.source] & ~self.out[flows.target]
        out = usable & inside[flows.source] & ~inside[flows.target]
        into = usable & ~inside[flows.source] & inside[flows.target]
        duplex = flows.channel == DUPLEX
        return out & ~duplex, into & ~duplex, (out | into) & duplex

    def score_uplink(
        self, group: frozenset[int], apart: Bools
    ) -> tuple[float, int, list[tuple[float, int]], Ints]:
        """The highest score of a group's channels, with its channel, batch ratios and launches.

        Flows of a batch share the uplink. So a batch counts once, with its median flow, and only
        with half as many flows as hosts or more. `apart` marks flows that another uplink explains.
        """
        best: tuple[float, int, list[tuple[float, int]], Ints] = (
            -np.inf,
            OUT,
            [],
            np.zeros(0, dtype=np.int64),
        )
        for channel, crossing in enumerate(self.crossing(group)):
            rows = np.flatnonzero(crossing & ~apart)
            test = self.tests[channel]
            batches: list[tuple[float, int]] = []
            for batch in np.unique(self.flows.batch[rows]).tolist():
                values = self.ratio[rows[self.flows.batch[rows] == batch]]
                if 2 * len(values) < len(group):
                    continue
                batches.append((float(np.median(values)), batch))
            slow = sum(value < test.cut for value, _ in batches)
            score = slow * test.slow + (len(batches) - slow) * test.fast
            if batches and score > best[0]:
                best = score, channel, batches, np.unique(self.flows.launch[rows])
        return best


def components(edges: Iterable[Pair]) -> list[frozenset[int]]:
    """The connected components of a graph, with at least two hosts each."""
    near: dict[int, set[int]] = defaultdict(set)
    for a, b in edges:
        near[a].add(b)
        near[b].add(a)
    result, seen = [], set[int]()
    for start in sorted(near):
        if start in seen:
            continue
        todo, members = [start], {start}
        while todo:
            new = near[todo.pop()] - members
            members |= new
            todo.extend(new)
        seen |= members
        result.append(frozenset(members))
    return result


def find_speeds(evidence: Evidence, kinds: Ints, left_out: frozenset[int]) -> Speeds:
    """Judge the speed of hosts, links and uplinks by the rates of all pairs (see `Judge`)."""
    result = Speeds()
    if not len(evidence.flows.source):
        result.unsure = {h: None for h in range(len(evidence.hosts)) if h not in left_out}
        return result
    judge = Judge(evidence, kinds, left_out)
    judge.explain()
    judge.remove_batch_levels(judge.looks_healthy())
    for _ in range(2):
        judge.explain()
        judge.calibrate(judge.looks_healthy())
    groups = judge.explain()
    limit = bound(judge)
    _uplinks(judge, groups, limit, result)
    _hosts(judge, groups, limit, result)
    _links(judge, limit, result)
    return result


def across_racks(evidence: Evidence) -> float | None:
    """The rate of pairs across racks over that of pairs inside one; None if unknown, or alike.

    Rates are medians of one direction. Pairs across racks are only compared with each other, since
    uplinks may be shared by design. A slow uplink between two racks slows all of them, and shows in
    nothing else.
    """
    flows, racks = evidence.flows, evidence.racks
    if racks is None:
        return None
    one_way = flows.in_round & (flows.channel != DUPLEX)
    crosses = racks[flows.source] != racks[flows.target]
    sides = [flows.rate[one_way & side] for side in (crosses, ~crosses)]
    if not all(len(side) for side in sides):
        return None
    ratio = float(np.exp(np.median(sides[0]) - np.median(sides[1])))
    return ratio if ratio < _ALIKE else None


def bound(judge: Judge) -> float:
    """The score at which a subject is called slow: log(number of tests / false-alarm probability).

    Each host and each launch of a pair has three channels, and so has each rack, of which there are
    fewer than hosts.
    """
    launches = len(np.unique(judge.flows.launch))
    return log(3 * (2 * judge.nhosts + launches) / judge.evidence.limits.false_alarm)


def _uplinks(judge: Judge, groups: Sequence[frozenset[int]], limit: float, result: Speeds) -> None:
    """Sort groups that look cut off into those with a slow uplink and those to be tested."""
    apart = np.zeros(len(judge.ratio), dtype=bool)
    for group in groups:
        result.behind.update(dict.fromkeys(group, group))
        score, channel, batches, launches = judge.score_uplink(group, apart)
        slow = summarize([value for value, _ in batches], launches, len(batches), (channel,))
        if score >= limit and len(batches) >= LEAST:
            result.uplinks[group] = slow
        elif len(batches) < MOST_BATCHES:
            result.groups.append(group)
        for crossing in judge.crossing(group):
            apart |= crossing


def _hosts(judge: Judge, groups: Sequence[frozenset[int]], limit: float, result: Speeds) -> None:
    """Sort the hosts that are not cleared into slow and unsure ones."""
    ends = judge.ends
    score, counts = judge.score_hosts()
    present = np.bincount(judge.flows.channel, minlength=3)[[OUT, OUT, DUPLEX]] > 0
    incomparable = judge.incomparable()
    cleared = ((score <= log(MISSED)) | ~present).all(axis=1) | judge.out
    result.best = np.exp(np.where(present, judge.best(judge.ratio), np.inf).min(axis=1))
    result.best[incomparable] = np.inf
    if judge.thresholds.any():
        cleared |= incomparable
    else:
        result.incomparable.update(np.flatnonzero(incomparable).tolist())
    _thresholds(judge, result)
    cleared[[*result.hosts, *result.unsure, *result.incomparable]] = False
    order = np.argsort(ends.host, kind="stable")
    starts = np.searchsorted(ends.host[order], np.arange(judge.nhosts + 1))
    usable = judge.usable()
    for host in np.flatnonzero(~cleared).tolist():
        if host in result.hosts or host in result.unsure or host in result.incomparable:
            continue
        rows = order[starts[host] : starts[host + 1]]
        rows = rows[usable[rows] & (counts[rows] | ~judge.is_slow[ends.flow[rows]])]
        slow = _slow_host(judge, rows, counts, score[host], limit)
        if slow is not None and slow.channels:
            result.hosts[host] = slow
        else:
            result.unsure[host] = slow
    if judge.evidence.racks is None:
        _apart(judge, groups, result)
    fast = np.ones(int(judge.flows.launch.max()) + 1, dtype=bool)
    fast[judge.flows.launch[judge.is_slow | judge.explained]] = False
    both = cleared[judge.flows.source] & cleared[judge.flows.target] & fast[judge.flows.launch]
    rows = np.flatnonzero(both & ~judge.out[judge.flows.source] & ~judge.out[judge.flows.target])
    pairs = np.stack([judge.flows.source[rows], judge.flows.target[rows]], axis=1)
    result.fast = np.unique(np.sort(pairs, axis=1), axis=0)
    result.cleared = cleared & ~judge.out


def _thresholds(judge: Judge, result: Speeds) -> None:
    """Find hosts that are below a threshold even in their best pair.

    If only two hosts work, their pair is below it, and nothing tells which of them is slow.
    """
    least, ends = judge.thresholds, judge.ends
    rate = np.exp(judge.best(judge.flows.rate))
    below = (rate < least) & (rate > 0) & ~judge.out[:, None]
    working = np.flatnonzero(~judge.out).tolist()
    for host in np.flatnonzero(below.any(axis=1)).tolist():
        share = np.full(len(least), np.inf)
        np.divide(rate[host], least, out=share, where=below[host])
        channel = int(share.argmin())
        mine = (ends.host == host) & (ends.channel == channel)
        launches = np.unique(judge.flows.launch[ends.flow[mine]])
        slow = below_threshold(
            float(rate[host, channel]),
            float(least[channel]),
            launches,
            len(np.unique(ends.partner[mine])),
            (channel,),
        )
        if len(working) == 2 and len(launches) >= LEAST:
            result.links[working[0], working[1]] = slow
            result.incomparable.add(host)
        elif len(launches) >= LEAST and slow.partners >= LEAST - 1:
            result.hosts[host] = slow
        else:
            result.unsure[host] = slow


def _slow_host(judge: Judge, rows: Ints, counts: Bools, score: Floats, limit: float) -> Slow | None:
    """The slowest channel of a host, and its slow channels if one is slow for certain.

    None if no slow flow counts.
    """
    ends, worst, certain = judge.ends, None, False
    slow_channels = []
    for channel in (OUT, IN, DUPLEX):
        mine = rows[ends.channel[rows] == channel]
        shown = mine[counts[mine]]
        if not len(shown):
            continue
        flows = ends.flow[mine]
        partners = len(np.unique(ends.partner[shown]))
        launches = np.unique(judge.flows.launch[ends.flow[shown]])
        slow = summarize(judge.ratio[flows], launches, partners, ())
        if score[channel] > 0 and log(slow.ratio) < judge.tests[channel].cut:
            slow_channels.append(channel)
        enough = len(launches) >= LEAST and partners >= LEAST - 1
        certain = certain or (channel in slow_channels and enough and score[channel] >= limit)
        if worst is None or slow.ratio < worst.ratio:
            worst = slow
    if worst is None:
        return None
    return replace(worst, channels=tuple(slow_channels) if certain else ())


def _apart(judge: Judge, groups: Sequence[frozenset[int]], result: Speeds) -> None:
    """Find slow hosts and groups that have not been paired with one another yet.

    A slow host is to be paired with a few other slow hosts, and with each group.
    """
    slow = sorted(result.hosts)
    had: dict[int, set[int]] = {host: set() for host in slow}
    for group in groups:
        had |= {host: set() for host in group}
    for a, b in zip(judge.flows.source.tolist(), judge.flows.target.tolist(), strict=True):
        if a in had:
            had[a].add(b)
        if b in had:
            had[b].add(a)
    for n, group in enumerate(groups):
        met = set().union(*(had[host] for host in group))
        result.apart += [(group, other) for other in groups[:n] if not other & met]
        result.apart += [(group, frozenset([host])) for host in slow if host not in met]
    for host in slow:
        others = [other for other in slow if other != host]
        if sum(other in had[host] for other in others) < MATES:
            new = [frozenset([o]) for o in others if o not in had[host]]
            result.apart += [(frozenset([host]), other) for other in new]


def _links(judge: Judge, limit: float, result: Speeds) -> None:
    """Find pairs that are slow although both hosts are fast with others.

    Only rounds count, and if every pair is measured also each pair's first launch, which may be for
    a suspect. Judging other pairs launched with suspects would lead to ever more launches.
    """
    flows, nflows = judge.flows, len(judge.flows.source)
    _, counts = judge.score_hosts()
    looked_at = flows.in_round
    if judge.nhosts <= judge.evidence.limits.all_pairs:
        _, first, member = np.unique(judge.pair, return_index=True, return_inverse=True)
        looked_at = looked_at | (flows.launch == flows.launch[first[member]])
    odd = counts[:nflows] & counts[nflows:] & looked_at
    slow = np.zeros(judge.nhosts, dtype=bool)
    slow[list(result.hosts)] = True
    odd &= ~slow[flows.source] & ~slow[flows.target]
    by_pair: dict[int, list[int]] = defaultdict(list)
    for row in np.flatnonzero(np.isin(judge.pair, judge.pair[odd]) & ~judge.explained).tolist():
        by_pair[int(judge.pair[row])].append(row)
    for code, mine in sorted(by_pair.items()):
        _link(judge, np.array(mine), divmod(code, judge.nhosts), limit, result)


def _link(judge: Judge, rows: Ints, pair: Pair, limit: float, result: Speeds) -> None:
    """Judge one pair by its flows: slow, suspect or good."""
    flows = judge.flows
    ways = flows.channel[rows] * judge.nhosts + flows.source[rows]
    ways[flows.channel[rows] == DUPLEX] = -1
    best: tuple[float, Slow] | None = None
    for way in np.unique(ways).tolist():
        mine = rows[ways == way]
        test = judge.tests[int(flows.channel[mine[0]])]
        slow = int(judge.is_slow[mine].sum())
        score = slow * test.slow + (len(mine) - slow) * test.fast
        evidence = summarize(judge.ratio[mine], np.unique(flows.launch[mine]), len(mine), ())
        if best is None or score > best[0]:
            best = score, evidence
    assert best is not None, "a pair without flows"
    score, evidence = best
    if score >= limit and evidence.partners >= LEAST:
        result.links[pair] = evidence
    elif score > log(MISSED):
        result.suspects[pair] = evidence


def below_threshold(
    rate: float, threshold: float, launches: Ints, partners: int, channels: tuple[int, ...]
) -> Slow:
    """A subject whose best rate, in bytes per second, is below a threshold."""
    share, shown = rate / threshold, tuple(int(n) for n in launches)
    return Slow(share, share, share, shown, partners, channels, rate, threshold)


def summarize(
    ratios: Sequence[float] | Floats, launches: Ints, partners: int, channels: tuple[int, ...]
) -> Slow:
    """The median of log ratios as a ratio, with an interval for it (see `Slow`)."""
    values = np.exp(np.asarray(ratios, dtype=float))
    if not len(values):
        return Slow(1.0, 1.0, 1.0, (), 0, channels)
    low, high = interval(values) or (float(values.min()), float(values.max()))
    shown = tuple(int(n) for n in launches)
    return Slow(float(np.median(values)), low, high, shown, partners, channels)
