"""Computes the next launches, or the verdicts, from observations. No input or output."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from bench.qualify.alone import Alone, find_alone
from bench.qualify.evidence import DUPLEX, Evidence
from bench.qualify.failures import Failures, find_failures
from bench.qualify.model import Cluster, Decision, Launch, Limits, Observation, Stage
from bench.qualify.pairing import Pair, matching, round_of_pairs, rounds
from bench.qualify.speeds import Speeds, find_speeds, usual
from bench.qualify.together import Together, find_together, has_failed
from bench.qualify.verdicts import Findings, good_hosts, verdicts

#: Rounds of pairs, if not every pair is measured.
ROUNDS = 2
#: More rounds follow while more than _UNCLEARED of the hosts are not cleared, up to _MOST_ROUNDS.
_UNCLEARED, _MOST_ROUNDS = 0.125, 8
#: Most rounds that follow after failures of all hosts together.
_LATE_ROUNDS = 6
#: Most launches of stage `confirm` for a host, and for a pair.
_MOST_CONFIRM, _MOST_LINK = 16, 12
#: Most pairs known to be fast that run at the same time as suspects. They show the usual rate in
#: the batch, and give the network a load as in the rounds.
_MOST_CONTROLS = 64
# Most launches that a purpose names.
_NAMED = 3

Spec = tuple[Stage, tuple[int, ...]]


def decide(cluster: Cluster, limits: Limits, observations: Sequence[Observation]) -> Decision:
    """The next batch of launches, and the verdicts so far.

    Call this after each batch. If some launches of the last batch have no observation yet, those
    launches are returned. If there are no launches, the campaign is over. The result depends on the
    arguments only, and not on the order of hosts or observations. Raises ValueError for
    observations of launches that do not belong to this campaign.
    """
    by_number = {one.launch.number: one for one in observations}
    ordered = [by_number[number] for number in sorted(by_number)]
    if ordered:
        last = ordered[-1].launch.batch
        batch = {one.launch for one in ordered if one.launch.batch == last}
        planned = plan(cluster, limits, [o for o in ordered if o.launch.batch < last])
        if not batch <= set(planned.launches):
            raise ValueError("the observations are of a campaign with other hosts or limits")
        if missing := tuple(launch for launch in planned.launches if launch not in batch):
            return Decision(missing, planned.verdicts, planned.purpose)
    return plan(cluster, limits, ordered)


def plan(cluster: Cluster, limits: Limits, observations: Sequence[Observation]) -> Decision:
    """The batch that follows complete batches, whose observations are sorted by launch number.

    As `decide`, at half the cost, for callers that only have complete batches.
    """
    evidence = Evidence(cluster, limits, observations)
    failures, alone = find_failures(evidence), find_alone(evidence)
    speeds = find_speeds(evidence, alone.kinds, frozenset(failures.hosts))
    findings = Findings(evidence, failures, alone, speeds, Together())
    specs, purpose = _Batch(findings).specs()
    if observations and not specs:
        findings.together = find_together(evidence, _in_order(findings), _pair_rate(findings))
        specs = [(Stage.TOGETHER, group) for group in findings.together.launches]
        purpose = "all good hosts together"
        if findings.together.share is not None:
            purpose = "halves of the hosts, to find which set falls short"
    names = evidence.hosts
    launches = tuple(
        Launch(evidence.used + n, evidence.batches, stage, tuple(names[h] for h in hosts))
        for n, (stage, hosts) in enumerate(specs[: max(0, limits.launches - evidence.used)])
    )
    return Decision(launches, verdicts(findings), purpose if launches else "")


def _in_order(findings: Findings) -> list[int]:
    """The good hosts, sorted so that hosts of one rack are next to each other."""
    racks = findings.evidence.racks
    return sorted(good_hosts(findings), key=lambda h: (0 if racks is None else int(racks[h]), h))


def _pair_rate(findings: Findings) -> float | None:
    """Bytes per second between two good hosts, both directions at once; None if not measured."""
    flows = findings.evidence.flows
    rates = flows.rate[flows.channel == DUPLEX]
    return float(np.exp(usual(rates))) if len(rates) else None


class _Batch:
    """Chooses the launches of one batch. No host is in two of them."""

    def __init__(self, findings: Findings):
        self.findings = findings
        self.evidence: Evidence = findings.evidence
        self.failures: Failures = findings.failures
        self.alone: Alone = findings.alone
        self.speeds: Speeds = findings.speeds
        self.used: set[int] = set()
        self.chosen: list[Spec] = []
        self.beside = 0  # launches at the end of `chosen` that are not of suspects
        self.random = np.random.default_rng([self.evidence.limits.seed, 2, self.evidence.batches])
        self.out = set(self.failures.hosts) | set(self.failures.unsure)
        self.met = {(min(o.hosts), max(o.hosts)) for o in self.evidence.pairs}

    def specs(self) -> tuple[list[Spec], str]:
        """The stage and hosts of each launch, and their purpose; no launches if all is known."""
        if not self.evidence.observations:
            every: list[Spec] = [(Stage.ALONE, (host,)) for host in range(len(self.evidence.hosts))]
            return every, "each host alone"
        self._failed()
        failed = len(self.chosen)
        coming = self._next_rounds()
        for number in coming:
            self._round(number)
            if len(self.chosen) > failed:
                return self.chosen, f"pairs of hosts, round {number + 1} of {coming.stop}"
        self._confirm()
        if not self.chosen:
            self._among_suspects()
        return self.chosen, f"suspects once more ({self._suspects()})"

    # ------------------------------------------------------------------- rounds

    def _rounds_so_far(self) -> int:
        batches = {
            o.observation.launch.batch
            for o in self.evidence.pairs
            if o.observation.launch.stage == Stage.PAIRS
        }
        return len(batches)

    def _has_all_pairs(self) -> bool:
        return len(self.evidence.hosts) <= self.evidence.limits.all_pairs

    def _next_rounds(self) -> range:
        """The rounds still to run. The caller runs the first one that has any pairs."""
        nhosts, done = len(self.evidence.hosts), self._rounds_so_far()
        # If a launch on all hosts failed, some host has begun to fail after its pairs.
        failures = sum(has_failed(o) for o in self.evidence.together)
        least = rounds(nhosts) if self._has_all_pairs() else min(ROUNDS, rounds(nhosts))
        least += min(failures, _LATE_ROUNDS)
        if done >= least and not self._has_all_pairs():
            uncleared = len(self.speeds.unsure) + len(self.speeds.hosts)
            if done < min(_MOST_ROUNDS, rounds(nhosts)) and uncleared > _UNCLEARED * nhosts:
                least = done + 1
        return range(done, least)

    def _round(self, number: int) -> None:
        """Add a round's pairs, and pair hosts whose partner in the round is not available."""
        nhosts = len(self.evidence.hosts)
        again = number >= rounds(nhosts)
        for pair in round_of_pairs(nhosts, number, self.evidence.limits.seed):
            if again or (min(pair), max(pair)) not in self.met:
                self._add(Stage.PAIRS, pair)
        free = [h for h in self._shuffled(range(nhosts)) if self._is_free(h)]
        self._match(Stage.PAIRS, self._unmet(free))

    def _unmet(self, hosts: Sequence[int]) -> Iterator[Pair]:
        """Pairs of these hosts that have not run yet, at most one for each first host."""
        for n, a in enumerate(hosts):
            if a in self.used:
                continue
            for b in hosts[n + 1 :]:
                if b not in self.used and (min(a, b), max(a, b)) not in self.met:
                    yield a, b
                    break

    # ------------------------------------------------------------------ confirm

    def _failed(self) -> None:
        """Launch hosts and pairs that failed once more."""
        for host in self.failures.alone:
            self._add(Stage.ALONE, (host,), suspects=True)
        for host, had in sorted(self.failures.pairs.items()):
            self._with_partner(host, had)
        for pair in self.failures.repeated:
            self._add(Stage.CONFIRM, pair, suspects=True)

    def _among_suspects(self) -> None:
        """Pair hosts that failed with each other, new pairs first: no host is left that works."""
        waiting = self._shuffled(h for h in self.failures.pairs if h not in self.out)
        pairs = [(a, b) for n, a in enumerate(waiting) for b in waiting[n + 1 :]]
        pairs.sort(key=lambda pair: (min(pair), max(pair)) in self.met)
        for pair in pairs:
            self._add(Stage.CONFIRM, pair, suspects=True)

    def _confirm(self) -> None:
        """Launch hosts, groups and pairs again if it is not known whether they are slow."""
        times = Counter(
            host
            for one in self.evidence.pairs
            if one.observation.launch.stage == Stage.CONFIRM
            for host in one.hosts
        )
        before = len(self.chosen)
        for host in self.alone.suspects:
            self._add(Stage.ALONE, (host,))
        apart = self.speeds.apart
        for n in self.random.permutation(len(apart)).tolist():
            first, second = (
                [h for h in self._shuffled(side) if self._is_free(h) and times[h] < _MOST_CONFIRM]
                for side in apart[n]
            )
            if first and second:
                self._add(Stage.CONFIRM, (first[0], second[0]))
        for group in self.speeds.groups:
            for host in self._shuffled(group):
                self._with_partner(host, frozenset(group))
        for host in self._shuffled(self.speeds.unsure):
            if times[host] < _MOST_CONFIRM:
                self._with_partner(host, self._partners(host), self.speeds.behind.get(host))
        slowest_first = sorted(self.speeds.suspects.items(), key=lambda one: (one[1].ratio, one[0]))
        for pair, slow in slowest_first:
            if slow.partners < _MOST_LINK:
                self._add(Stage.CONFIRM, pair)
        added = len(self.chosen) - before
        # Pairs that no round had, because one of their hosts was a suspect at that time.
        if self._has_all_pairs():
            free = [h for h in range(len(self.evidence.hosts)) if self._is_free(h)]
            self._match(Stage.PAIRS, self._unmet(free))
        if added:
            self._controls()
        self.beside = len(self.chosen) - before - added

    def _suspects(self) -> str:
        """The hosts of the first few launches of suspects, in words."""
        names = self.evidence.hosts
        chosen = self.chosen[: len(self.chosen) - self.beside] or self.chosen
        first = ", ".join(" with ".join(names[h] for h in hosts) for _, hosts in chosen[:_NAMED])
        return first + (f" and {len(chosen) - _NAMED} more" if len(chosen) > _NAMED else "")

    def _partners(self, host: int) -> frozenset[int]:
        """The hosts that a host has been paired with."""
        flows = self.evidence.flows
        sent = flows.target[flows.source == host]
        received = flows.source[flows.target == host]
        return frozenset(sent.tolist()) | frozenset(received.tolist())

    def _with_partner(
        self, host: int, had: frozenset[int], among: frozenset[int] | None = None
    ) -> None:
        """Pair a host with a good one, of the same kind and rack if possible.

        The partner is one that the host has not `had` yet, if possible. If `among` is given, the
        partner is one of these hosts behind the same uplink, even if it is not cleared: any other
        partner would only show that the uplink is slow.
        """
        if host in self.used or host in self.out:
            return
        best: tuple[tuple[bool, ...], int] | None = None
        kinds, racks = self.alone.kinds, self.evidence.racks
        for other in self._candidates() if among is None else self._shuffled(among):
            if other == host or not self._is_free(other):
                continue
            rank = (
                among is not None and not self.speeds.cleared[other],
                other in had,
                bool(kinds[other] != kinds[host]),
                racks is not None and bool(racks[other] != racks[host]),
            )
            if best is None or rank < best[0]:
                best = rank, other
            if not any(rank):
                break
        if best is not None:
            self._add(Stage.CONFIRM, (host, best[1]), suspects=True)

    def _candidates(self) -> list[int]:
        """Good partners in random order: cleared hosts, or else those that are not called slow."""
        cleared = np.flatnonzero(self.speeds.cleared).tolist()
        every = [h for h in range(len(self.evidence.hosts)) if h not in self.out]
        slow = self.speeds.hosts.keys() | self.speeds.unsure.keys()
        return self._shuffled(cleared or [h for h in every if h not in slow] or every)

    def _controls(self) -> None:
        """Add fast pairs that run at the same time as the suspects.

        Hosts whose launches take notably longer than others' are left out.
        """
        fast, late = self.speeds.fast, self.evidence.late()
        order = self.random.permutation(len(fast))[: 9 * _MOST_CONTROLS]
        pairs = [(int(a), int(b)) for a, b in fast[order].tolist() if not late & {a, b}]
        self._match(Stage.CONFIRM, pairs, _MOST_CONTROLS)

    # ------------------------------------------------------------------- common

    def _shuffled(self, hosts: Iterable[int]) -> list[int]:
        ordered = sorted(hosts)
        return [ordered[n] for n in self.random.permutation(len(ordered)).tolist()]

    def _is_free(self, host: int) -> bool:
        return (
            host not in self.used
            and host not in self.out
            and host not in self.failures.pairs
            and host not in self.failures.alone
        )

    def _add(self, stage: Stage, hosts: tuple[int, ...], suspects: bool = False) -> bool:
        """Add a launch if all its hosts are free; for `suspects`, failed hosts count as free."""
        free = (
            all(h not in self.used and h not in self.out for h in hosts)
            if suspects
            else all(self._is_free(h) for h in hosts)
        )
        if free:
            self.used.update(hosts)
            self.chosen.append((stage, hosts))
        return free

    def _match(self, stage: Stage, pairs: Iterable[Pair], most: int | None = None) -> None:
        for n, pair in enumerate(matching(pairs, self.used)):
            if n == most:
                break
            self._add(stage, pair)
