"""Finds hosts and links that make launches fail or return wrong elements. No input or output.

A failed launch of a pair implicates both hosts: the process that ends with an error is often not on
the host whose link is down. Further launches with other partners show which of the two fails. If
both work with other partners, the link fails.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from signal import Signals

from bench.qualify.evidence import Evidence, Outcome
from bench.qualify.model import Ending, HostReport, Stage, State
from bench.qualify.pairing import Pair

#: Failed launches after which a host or link is called failing, unless as many succeeded since.
LEAST = 2
#: Launches since the first failure after which the verdict is unsure, if there is no majority.
MOST = 7


@dataclass(frozen=True)
class Finding:
    """The state of a bad host or link, the reason, and the numbers of the launches that show it."""

    state: State
    reason: str
    launches: tuple[int, ...]


@dataclass
class Failures:
    """Hosts and links that fail, and those that may fail.

    `alone`: hosts to launch alone once more. `pairs`: hosts to pair with a host that works, each
    with the partners that it has already had. `repeated`: pairs to launch once more. `unsure` and
    `unsure_links`: hosts and pairs that failed too seldom to be called bad and too often to be
    called good.
    """

    hosts: dict[int, Finding] = field(default_factory=dict)
    links: dict[Pair, Finding] = field(default_factory=dict)
    alone: list[int] = field(default_factory=list)
    pairs: dict[int, frozenset[int]] = field(default_factory=dict)
    repeated: list[Pair] = field(default_factory=list)
    unsure: dict[int, Finding] = field(default_factory=dict)
    unsure_links: dict[Pair, Finding] = field(default_factory=dict)

    def explain(self, hosts: Sequence[int]) -> bool:
        """Whether a failure of a launch on these hosts is that of one of them, or of their link."""
        pair = (min(hosts), max(hosts))
        return bool(self.hosts.keys() & set(hosts)) or pair in {**self.links, **self.unsure_links}

    def suspects(self) -> frozenset[int]:
        """Hosts that may fail, but need more launches."""
        return frozenset(self.alone) | frozenset(self.pairs)


def find_failures(evidence: Evidence) -> Failures:
    """The failures in all launches of one or two hosts."""
    result = Failures()
    _alone(evidence, result)
    failed = [o for o in evidence.pairs if o.failure is not None]
    if failed:
        _pairs(evidence, failed, result)
    return result


def _alone(evidence: Evidence, result: Failures) -> None:
    """Judge hosts by their launches alone.

    If no launch has worked on any host, the launcher or the installation may fail, so no host is
    called bad.
    """
    nothing_works = all(one.failure is not None for one in evidence.outcomes)
    alone: dict[int, list[Outcome]] = defaultdict(list)
    for one in evidence.alone:
        (host,) = one.hosts
        if one.failure is not None or host in alone:
            alone[host].append(one)
    for host, outcomes in alone.items():
        bad = [o for o in outcomes if o.failure is not None]
        good = len(outcomes) - len(bad)
        if len(bad) >= LEAST and len(bad) > good:
            found = finding(evidence, host, bad, len(outcomes))
            if nothing_works:
                reason = f"{found.reason}; no launch on any host worked"
                result.unsure[host] = replace(found, reason=reason)
            else:
                result.hosts[host] = found
        elif len(bad) >= good:
            if len(outcomes) < MOST:
                result.alone.append(host)
            else:
                result.unsure[host] = finding(evidence, host, bad, len(outcomes))


def _pairs(evidence: Evidence, failed: Sequence[Outcome], result: Failures) -> None:
    """Judge hosts by launches in pairs, those with most failed partners first; then links."""
    remaining = list(failed)
    implicated = frozenset(h for one in failed for h in one.hosts)
    worked = _successes(evidence.pairs, implicated)
    partners = _partners(remaining)
    while True:
        guilty = [h for h in partners if _is_guilty(h, remaining, partners, worked)]
        if not guilty:
            break
        # Take the one with most partners first: its failures no longer count against them.
        host = max(guilty, key=lambda h: (len(partners[h]), -h))
        own = [o for o in remaining if host in o.hosts]
        if host not in result.hosts:
            tried = len(own) + len(_since(host, own, worked))
            result.hosts[host] = finding(evidence, host, own, tried)
        remaining = [o for o in remaining if host not in o.hosts]
        partners = _partners(remaining)
    remaining = [o for o in remaining if not result.hosts.keys() & set(o.hosts)]
    _undecided(evidence, remaining, worked, result)


def _undecided(
    evidence: Evidence,
    failed: Sequence[Outcome],
    worked: Mapping[int, Sequence[tuple[int, int]]],
    result: Failures,
) -> None:
    """Judge failures that no bad host explains, or choose the hosts and pairs to launch again."""
    partners = _partners(failed)
    working: dict[int, list[Outcome]] = {}  # hosts that also work, and their failures
    for host in sorted(partners):
        own = [o for o in failed if host in o.hosts]
        since = [p for _, p in _since(host, own, worked)]
        others = [p for p in since if p not in partners[host]]
        if (len(partners[host]) == 1 and (others or len(since) > len(own))) or len(others) > len(
            partners[host]
        ):
            working[host] = own
        elif len(own) + len(since) < MOST:
            result.pairs[host] = partners[host] | frozenset(others)
        else:
            result.unsure[host] = finding(evidence, host, own, len(own) + len(since))
    _links(evidence, [o for o in failed if working.keys() >= {*o.hosts}], worked, result)
    links = {*result.links, *result.unsure_links, *result.repeated}
    for host, own in working.items():
        alone = [o for o in own if (min(o.hosts), max(o.hosts)) not in links]
        if len(_partners(alone).get(host, ())) >= LEAST:
            tried = len(own) + len(_since(host, own, worked))
            result.unsure[host] = finding(evidence, host, own, tried)


def _links(
    evidence: Evidence,
    failed: Sequence[Outcome],
    worked: Mapping[int, Sequence[tuple[int, int]]],
    result: Failures,
) -> None:
    """Judge the pairs of failures whose hosts both work with other hosts."""
    by_pair: dict[Pair, list[Outcome]] = defaultdict(list)
    for one in failed:
        by_pair[min(one.hosts), max(one.hosts)].append(one)
    for pair, bad in sorted(by_pair.items()):
        first = min(o.observation.launch.number for o in bad)
        good = sum(p == pair[1] and n > first for n, p in worked.get(pair[0], ()))
        if len(bad) >= LEAST and len(bad) > good:
            result.links[pair] = finding(evidence, pair[0], bad, len(bad) + good)
        elif len(bad) >= good and len(bad) + good < MOST:
            result.repeated.append(pair)
        elif len(bad) >= LEAST:
            result.unsure_links[pair] = finding(evidence, pair[0], bad, len(bad) + good)


def _successes(
    pairs: Iterable[Outcome], hosts: frozenset[int]
) -> Mapping[int, list[tuple[int, int]]]:
    """The launches without failure of each of the hosts: launch number and partner."""
    worked: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for one in pairs:
        a, b = one.hosts
        if one.failure is None:
            number = one.observation.launch.number
            if a in hosts:
                worked[a].append((number, b))
            if b in hosts:
                worked[b].append((number, a))
    return worked


def _partners(failed: Iterable[Outcome]) -> dict[int, frozenset[int]]:
    """For each host, the partners with which it failed."""
    partners: dict[int, set[int]] = defaultdict(set)
    for one in failed:
        a, b = one.hosts
        partners[a].add(b)
        partners[b].add(a)
    return {host: frozenset(others) for host, others in partners.items()}


def _since(
    host: int, failed: Iterable[Outcome], worked: Mapping[int, Sequence[tuple[int, int]]]
) -> list[tuple[int, int]]:
    """The host's launches without failure after its first failure: launch number and partner."""
    first = min((o.observation.launch.number for o in failed), default=0)
    return [(n, p) for n, p in worked.get(host, ()) if n > first]


def _is_guilty(
    host: int,
    failed: Sequence[Outcome],
    partners: Mapping[int, frozenset[int]],
    worked: Mapping[int, Sequence[tuple[int, int]]],
) -> bool:
    """True if the host fails with several partners, each of which works with all other hosts."""
    if len(partners[host]) < LEAST:
        return False
    trusted = [
        p
        for p in partners[host]
        if partners[p] == {host} and any(other != host for _, other in worked.get(p, ()))
    ]
    well = {p for _, p in _since(host, [o for o in failed if host in o.hosts], worked)}
    return len(trusted) >= LEAST and len(trusted) > len(well - partners[host])


def finding(evidence: Evidence, host: int, failed: Sequence[Outcome], tried: int) -> Finding:
    """The state and reason of a host or link that failed in these of `tried` launches."""
    states = Counter(o.failure for o in failed if host in o.own) or Counter(
        o.failure for o in failed
    )
    state = max(sorted(s for s in states if s is not None), key=lambda s: states[s])
    launches = tuple(o.observation.launch.number for o in failed)
    name = evidence.hosts[host]
    reports = [r for o in failed for r in o.observation.reports]
    mine = [r for r in reports if r.host == name]
    stage = _stage(failed)
    often = f"{len(failed)} of {tried} launches"
    if state is State.WRONG:
        wrong = sum(r.wrong for r in reports)
        return Finding(state, f"{wrong} wrong elements in {often}", launches)
    if state is State.HANGS:
        return Finding(state, f"in stage {stage}, in {often}", launches)
    if all(len(o.hosts) == 1 for o in failed):
        often = f"{often} alone"
    if state is State.CRASHES:
        return Finding(state, _crash(mine, reports, often), launches)
    detail = _last_detail(mine) or _last_detail(reports) or _silent(mine)
    return Finding(state, f"in {often}" + (f": {detail}" if detail else ""), launches)


def _crash(mine: Sequence[HostReport], reports: Sequence[HostReport], often: str) -> str:
    crashed = [r for r in mine if r.ending == Ending.CRASHED] or [
        r for r in reports if r.ending == Ending.CRASHED
    ]
    status = next((f"{_ended(r.status)} " for r in crashed if r.status is not None), "")
    detail = _last_detail(crashed)
    return f"{status}in {often}" + (f": {detail}" if detail else "")


def _ended(status: int) -> str:
    """``status 3``, or ``signal 11 (SIGSEGV)`` for a status of a shell that stands for a signal."""
    names = {128 + one: one.name for one in Signals}
    return f"signal {status - 128} ({names[status]})" if status in names else f"status {status}"


def _silent(reports: Iterable[HostReport]) -> str:
    """What is known where the launcher gave no reason: its exit status."""
    status = next((r.status for r in reports if r.status is not None), None)
    return "" if status is None else f"the launcher ended with {_ended(status)}, without a reason"


def _stage(failed: Sequence[Outcome]) -> str:
    """The stage of the first of these launches, with `confirm` counted as `pairs`."""
    first = failed[0].observation.launch.stage
    return str((Stage.PAIRS if first == Stage.CONFIRM else first).value)


def _last_detail(reports: Iterable[HostReport]) -> str:
    return next((r.detail for r in reversed(list(reports)) if r.detail), "")
