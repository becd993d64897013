"""Judge hosts by launches on one host: differing facts, and low rates. No input or output."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import exp, log

import numpy as np

from bench.qualify.evidence import Evidence, Floats, Ints
from bench.qualify.model import HARDWARE, HostReport
from bench.qualify.speeds import (
    MISSED,
    Slow,
    below_threshold,
    sequential_test,
    summarize,
    usual,
)

#: Hardware of at least this share of the hosts counts as a kind of host, not as a fault.
KIND = 0.2
#: A host is launched alone at most this often.
MOST = 8
_LEAST = 2


@dataclass
class Alone:
    """Facts and rates from launches on single hosts.

    `kinds` has the number of each host's kind; hosts with unusual facts count as the commonest
    kind. `different` maps such hosts to a text on the difference. `divided` maps hosts to facts
    without a majority value. `slow` maps slow hosts to the measures on which they are slow.
    `suspects` are hosts to launch alone once more. `unsure` maps hosts that were launched as often
    as allowed, and are neither slow nor cleared, to those measures.
    """

    kinds: Ints
    different: dict[int, str] = field(default_factory=dict)
    divided: dict[int, str] = field(default_factory=dict)
    slow: dict[int, dict[str, Slow]] = field(default_factory=dict)
    suspects: list[int] = field(default_factory=list)
    unsure: dict[int, dict[str, Slow]] = field(default_factory=dict)
    launches: dict[int, tuple[int, ...]] = field(default_factory=dict)


def find_alone(evidence: Evidence) -> Alone:
    """Compare all hosts that finished a launch alone."""
    reports: dict[int, list[tuple[int, HostReport]]] = defaultdict(list)
    for one in evidence.alone:
        if one.failure is None:
            launch = one.observation.launch.number
            reports[one.hosts[0]].append((launch, one.observation.reports[0]))
    result = Alone(np.zeros(len(evidence.hosts), dtype=np.int64))
    result.launches = {host: tuple(n for n, _ in mine) for host, mine in reports.items()}
    facts = {host: mine[0][1].facts for host, mine in reports.items()}
    kinds = _facts(facts, result)
    for host, kind in kinds.items():
        result.kinds[host] = kind
    _rates(evidence, reports, result)
    return result


def _facts(facts: Mapping[int, Mapping[str, str]], result: Alone) -> dict[int, int]:
    """Find hosts with unusual facts. Returns the number of each host's kind."""
    names = sorted({name for known in facts.values() for name in known})
    odd: dict[int, list[str]] = defaultdict(list)
    divided: dict[int, list[str]] = defaultdict(list)
    accepted: dict[int, list[str]] = {host: [] for host in facts}
    for name in names:
        values = {host: known.get(name, "") for host, known in facts.items()}
        counts = Counter(values.values())
        common, most = max(counts.items(), key=lambda item: (item[1], item[0]))
        legal, usual_hosts = {common}, most
        if name in HARDWARE:
            kinds = {v: n for v, n in counts.items() if n >= max(2, KIND * len(facts))}
            legal, usual_hosts = {common, *kinds}, sum(kinds.values())
        majority = 2 * usual_hosts > len(facts)
        for host, value in values.items():
            accepted[host].append(value if name in HARDWARE and value in legal else common)
            if value in legal or (value and not common):
                continue
            text = f"{name} {value or 'unknown'}, not {common}"
            (odd if majority else divided)[host].append(text)
        if not majority and len(counts) > 1:
            for host, value in values.items():
                if value == common:
                    divided[host].append(f"{name} {value}, others differ")
    result.different = {host: "; ".join(texts) for host, texts in odd.items()}
    result.divided = {host: "; ".join(texts) for host, texts in divided.items()}
    numbers = {kind: n for n, kind in enumerate(sorted({tuple(a) for a in accepted.values()}))}
    return {host: numbers[tuple(a)] for host, a in accepted.items()}


def _rates(
    evidence: Evidence,
    reports: Mapping[int, Sequence[tuple[int, HostReport]]],
    result: Alone,
) -> None:
    """Find hosts with low rates, and hosts to measure again."""
    measures = sorted({m for mine in reports.values() for _, r in mine for m in r.rates})
    limit = log(max(1, len(measures)) * len(evidence.hosts) / evidence.limits.false_alarm)
    suspects = set[int]()
    for measure in measures:
        rates: dict[int, list[float]] = {}
        for host, mine in reports.items():
            values = [log(r.rates[measure]) for _, r in mine if r.rates.get(measure, 0) > 0]
            if values:
                rates[host] = values
        level = _levels(rates, result.kinds)
        hosts = np.array(list(rates))
        first = np.array([values[0] for values in rates.values()]) - level[result.kinds[hosts]]
        test = sequential_test(first, evidence.limits.slow)
        least = evidence.limits.minimum.get(measure, 0.0)
        least = log(least) if least > 0 else -np.inf
        low = (first < test.cut) | (first + level[result.kinds[hosts]] < least)
        for host in hosts[low].tolist():
            ratios = np.array(rates[host]) - level[result.kinds[host]]
            slow = int(np.sum(ratios < test.cut))
            score = slow * test.slow + (len(ratios) - slow) * test.fast
            below = max(rates[host]) < least
            launches = np.array(result.launches[host], dtype=np.int64)
            if below and len(ratios) >= _LEAST:
                summary = below_threshold(exp(max(rates[host])), exp(least), launches, 0, ())
                result.slow.setdefault(host, {})[measure] = summary
            elif score >= limit and len(ratios) >= _LEAST:
                result.slow.setdefault(host, {})[measure] = summarize(ratios, launches, 0, ())
            elif (below or score > log(MISSED)) and len(ratios) < MOST:
                suspects.add(host)
            elif score > log(MISSED):
                result.unsure.setdefault(host, {})[measure] = summarize(ratios, launches, 0, ())
    result.suspects = sorted(suspects - result.slow.keys())


def _levels(rates: Mapping[int, Sequence[float]], kinds: Ints) -> Floats:
    """The usual log rate of each kind, from the first launches of its hosts."""
    level = np.zeros(int(kinds.max(initial=0)) + 1)
    hosts = np.array(list(rates))
    first = np.array([values[0] for values in rates.values()])
    for kind in np.unique(kinds[hosts]).tolist():
        level[kind] = usual(first[kinds[hosts] == kind])
    return level
