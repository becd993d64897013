"""Turns all findings into verdicts with reasons. No input or output."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median

import numpy as np

from bench.qualify.alone import Alone
from bench.qualify.evidence import CHANNELS, DUPLEX, IN, OUT, Evidence, Outcome
from bench.qualify.failures import Failures, Finding, finding
from bench.qualify.model import BOTH, WAYS, State, Verdict
from bench.qualify.speeds import Slow, Speeds
from bench.qualify.together import Together
from busbar.units import format_count, format_rate


@dataclass
class Findings:
    """All that is known at one point of a campaign."""

    evidence: Evidence
    failures: Failures
    alone: Alone
    speeds: Speeds
    together: Together


def verdicts(findings: Findings) -> tuple[Verdict, ...]:
    """A verdict for each host, and for links, uplinks and groups that are not good."""
    shown = _launches(findings.evidence)
    hosts = [_host(findings, host, shown[host]) for host in range(len(shown))]
    return (*hosts, *_links(findings), *_uplinks(findings), *_groups(findings))


def _launches(evidence: Evidence) -> list[tuple[int, ...]]:
    """For each host the launches in which it did not fail."""
    shown: list[list[int]] = [[] for _ in evidence.hosts]
    for one in evidence.outcomes:
        if one.failure is None:
            for host in one.hosts:
                shown[host].append(one.observation.launch.number)
    return [tuple(numbers) for numbers in shown]


def good_hosts(findings: Findings) -> list[int]:
    """The hosts whose verdict is good."""
    return [
        host
        for host in range(len(findings.evidence.hosts))
        if _host(findings, host).state is State.GOOD
    ]


def _host(findings: Findings, host: int, shown: tuple[int, ...] = ()) -> Verdict:
    """The verdict of a host; `shown` has the launches in which it did not fail."""
    failures, alone, speeds = findings.failures, findings.alone, findings.speeds
    subject = (findings.evidence.hosts[host],)
    if host in failures.hosts:
        return _failed("host", subject, failures.hosts[host])
    if host in speeds.hosts:
        slow = speeds.hosts[host]
        return _ratio("host", subject, State.SLOW, slow, _seen(slow))
    if host in alone.slow:
        measure, slow = min(alone.slow[host].items(), key=lambda item: item[1].ratio)
        often = f"{_alone(measure, slow)}{_threshold(slow)}"
        return _ratio("host", subject, State.SLOW, slow, often)
    if host in alone.different:
        launches, reason = alone.launches.get(host, ()), alone.different[host]
        return Verdict("host", subject, State.DIFFERENT, reason, launches=launches)
    return _unsure(findings, host, shown)


def _unsure(findings: Findings, host: int, shown: tuple[int, ...]) -> Verdict:
    """The verdict of a host that is neither bad nor different: good, or cannot tell."""
    failures, alone, speeds = findings.failures, findings.alone, findings.speeds
    subject = (findings.evidence.hosts[host],)
    launches, reason = shown, ""
    if host in failures.unsure:
        one = failures.unsure[host]
        launches, reason = one.launches, f"{one.state.value} {one.reason}"
    elif host in failures.suspects() or host in alone.suspects:
        reason = "too few launches since one failed or was slow"
    elif len(findings.evidence.hosts) == 1:
        return _only_host(findings, shown)
    elif host in alone.unsure:
        measure, slow = min(alone.unsure[host].items(), key=lambda item: item[1].ratio)
        reason = f"{_alone(measure, slow)}, too few hosts or too much noise to tell"
        return _ratio("host", subject, State.CANNOT_TELL, slow, reason)
    elif host in speeds.incomparable:
        reason = _incomparable(findings, host)
    elif host in speeds.unsure:
        unsure = speeds.unsure[host]
        if unsure is not None:
            reason = f"{_seen(unsure)}, {'too few launches' if unsure.threshold else 'not in all'}"
            return _ratio("host", subject, State.CANNOT_TELL, unsure, reason)
        reason = "too few pairs measured" if shown else "not measured"
    elif host in alone.divided:
        reason = alone.divided[host]
    if reason:
        return Verdict("host", subject, State.CANNOT_TELL, reason, launches=launches)
    best = float(speeds.best[host]) if len(speeds.best) else np.inf
    ratio = best if np.isfinite(best) else None
    failed = _failed_though_good(findings, host)
    if not failed:
        return Verdict("host", subject, State.GOOD, ratio=ratio, launches=shown)
    one = finding(findings.evidence, host, failed, len(shown) + len(failed))
    reason, numbers = f"{one.state.value} {one.reason}", one.launches
    return Verdict("host", subject, State.GOOD, reason, ratio, launches=shown, failed=numbers)


def _failed_though_good(findings: Findings, host: int) -> list[Outcome]:
    """The launches in which a good host failed itself, and that no other verdict explains."""
    return [
        one
        for one in findings.evidence.outcomes
        if one.failure is not None
        and host in one.hosts
        and (host in one.own or not one.own)
        and not findings.failures.explain(one.hosts)
    ]


def _incomparable(findings: Findings, host: int) -> str:
    """The reason of "cannot tell" for a host whose pairs cannot be compared with other pairs."""
    evidence, best = findings.evidence, dict[str, float]()
    for one in evidence.pairs:
        if host in one.hosts:
            for measure, rates in one.observation.rates.items():
                best[measure] = max(median(rates), best.get(measure, 0.0))
    if any(host in link and slow.threshold for link, slow in findings.speeds.links.items()):
        return (
            "its only pair is below the minimum: only a third host can tell which of both is slow"
        )
    figures = ", ".join(f"{name} {format_rate(WAYS[name] * best[name])}" for name in sorted(best))
    return (
        f"{figures} GB/s; nothing to compare with: only more hosts or --minimum"
        f" {BOTH}=RATE can tell whether it is slow"
    )


def _only_host(findings: Findings, shown: tuple[int, ...]) -> Verdict:
    """The verdict of a cluster's only host, which has nothing to be compared with.

    It is good if no rate is below its minimum; without minimum rates nobody can tell.
    """
    evidence, best = findings.evidence, dict[str, float]()
    for one in evidence.alone:
        for report in one.observation.reports:
            for measure, rate in report.rates.items():
                best[measure] = max(rate, best.get(measure, 0.0))
    figures = [f"{measure} {format_rate(rate)} GB/s" for measure, rate in sorted(best.items())]
    reason = ", ".join(["reachable", "results right", *figures])
    state, unknown = State.GOOD, sorted(evidence.limits.minimum.keys() - best.keys())
    if unknown:
        state, reason = State.CANNOT_TELL, f"{reason}; {unknown[0]} needs a second host"
    elif not evidence.limits.minimum:
        state = State.CANNOT_TELL
        reason = f"{reason}; whether it is slow only other hosts or --minimum can tell"
    return Verdict("host", evidence.hosts, state, reason, launches=shown)


def _alone(measure: str, slow: Slow) -> str:
    return f"{measure} alone, in {format_count(len(slow.launches), 'launch')}"


def _seen(slow: Slow) -> str:
    reason = f"seen in {format_count(slow.partners, 'pair')}{_threshold(slow)}"
    if slow.threshold:
        return reason
    if slow.channels == (DUPLEX,):
        return f"{reason}, {CHANNELS[DUPLEX]} only"
    if OUT in slow.channels and IN not in slow.channels:
        return f"{reason}, sending only"
    if IN in slow.channels and OUT not in slow.channels:
        return f"{reason}, receiving only"
    return reason


def _threshold(slow: Slow) -> str:
    if not slow.threshold:
        return ""
    # Of both directions at once the sum, as `reports` shows it.
    ways = WAYS[BOTH] if slow.channels == (DUPLEX,) else 1
    what = f" {_BELOW[slow.channels[0]]}" if slow.channels else ""
    rate, threshold = (format_rate(ways * one) for one in (slow.rate, slow.threshold))
    return f",{what} {rate} GB/s at best, below {threshold} GB/s"


# The rate of each channel that is below a threshold.
_BELOW = {OUT: "sending", IN: "receiving", DUPLEX: "both directions together"}


def _failed(kind: str, subject: tuple[str, ...], one: Finding) -> Verdict:
    return Verdict(kind, subject, one.state, one.reason, launches=one.launches)


def _ratio(kind: str, subject: tuple[str, ...], state: State, slow: Slow, reason: str) -> Verdict:
    if slow.threshold:
        return Verdict(
            kind, subject, state, reason, slow.ratio, launches=slow.launches, of_minimum=True
        )
    return Verdict(kind, subject, state, reason, slow.ratio, slow.low, slow.high, slow.launches)


def _links(findings: Findings) -> Iterator[Verdict]:
    """Links that fail or are slow, and those of which more launches would have to tell."""
    names, failures = findings.evidence.hosts, findings.failures
    for (a, b), one in sorted(failures.unsure_links.items()):
        reason, subject = f"{one.state.value} {one.reason}", (names[a], names[b])
        yield Verdict("link", subject, State.CANNOT_TELL, reason, launches=one.launches)
    for a, b in failures.repeated:
        reason = "too few launches since one failed"
        yield Verdict("link", (names[a], names[b]), State.CANNOT_TELL, reason)
    for (a, b), slow in sorted(findings.speeds.suspects.items()):
        reason = f"{_seen(slow)}, not in all"
        yield _ratio("link", (names[a], names[b]), State.CANNOT_TELL, slow, reason)
    for (a, b), one in sorted(findings.failures.links.items()):
        yield _failed("link", (names[a], names[b]), one)
    for (a, b), slow in sorted(findings.speeds.links.items()):
        often = f"seen in {format_count(len(slow.launches), 'launch')}"
        often += _threshold(slow) or ", both hosts are fast with others"
        yield _ratio("link", (names[a], names[b]), State.SLOW, slow, often)


def _uplinks(findings: Findings) -> Iterator[Verdict]:
    evidence, speeds = findings.evidence, findings.speeds
    for group, slow in sorted(speeds.uplinks.items(), key=lambda item: sorted(item[0])):
        subject = tuple(evidence.hosts[host] for host in sorted(group))
        reason = f"seen in {slow.partners} batches; fast among themselves"
        state = State.SLOW
        if 2 * len(group) >= len(evidence.hosts):
            reason = f"{reason}; no third rack to tell which of two uplinks it is"
            state = State.CANNOT_TELL
        yield _ratio("uplink", subject, state, slow, reason)


def _groups(findings: Findings) -> Iterator[Verdict]:
    names = findings.evidence.hosts
    for one in findings.together.short:
        subject = tuple(names[host] for host in one.hosts)
        reason = "only together, pairs are fast"
        ratios = one.ratio, one.low, one.high
        yield Verdict("group", subject, one.state, reason, *ratios, one.launches)
