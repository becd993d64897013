"""The page of a campaign: verdicts, the matrix of pairs with suspects marked, failed launches.

Every text passes `reports.page.markup.text`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

import numpy as np

from bench.qualify import text as words
from bench.qualify.model import (
    BACKWARD,
    FORWARD,
    Cluster,
    Ending,
    Observation,
    State,
    Verdict,
)
from bench.qualify.speeds import usual
from busbar.units import format_rate
from reports.page import still_page
from reports.page.markup import grid, section, table, text
from reports.records.measurement import grouped

# A matrix of more hosts is not readable; suspects are shown first.
_MOST_HOSTS, _MOST_LAUNCHES = 64, 500
_MARK = "outline:2px solid #d55e00;outline-offset:-2px"


def page(
    cluster: Cluster,
    verdicts: Sequence[Verdict],
    observations: Sequence[Observation],
    sentence: str,
) -> bytes:
    """The HTML page as UTF-8, without scripts. ``sentence``: the result, as `text.sentence`."""
    columns = words.table(cluster, verdicts)
    rows = zip(*(cells for _, _, cells in columns), strict=True)
    parts = (
        section("verdicts", "Verdicts", table("Verdicts", [name for name, _, _ in columns], rows)),
        section("pairs", "Pairs", _matrix(cluster, verdicts, observations)),
        section("failed", "Launches that did not finish", _failed(observations)),
    )
    return still_page("Qualification", sentence, parts)


def pair_rates(observations: Sequence[Observation]) -> dict[tuple[str, str], float]:
    """The best median rate of each pair, from the first host to the second."""
    best: dict[tuple[str, str], float] = {}
    for one in observations:
        if len(one.launch.hosts) != 2:
            continue
        a, b = one.launch.hosts
        for pair, measure in (((a, b), FORWARD), ((b, a), BACKWARD)):
            if values := one.rates.get(measure):
                best[pair] = max(best.get(pair, 0.0), median(values))
    return best


def _matrix(
    cluster: Cluster, verdicts: Sequence[Verdict], observations: Sequence[Observation]
) -> str:
    """A table of rates from row host to column host, over comparable pairs; darker is slower."""
    rates = pair_rates(observations)
    if not rates:
        return ""
    levels = _levels(cluster, rates)
    suspects = {v.subject[0] for v in verdicts if v.kind == words.HOST and v.state != State.GOOD}
    links = {frozenset(v.subject) for v in words.bad(verdicts, words.LINK)}
    hosts = sorted(cluster.hosts, key=lambda host: (host not in suspects, words.natural(host)))
    shown = sorted(hosts[:_MOST_HOSTS], key=words.natural)
    lines = []
    for a in shown:
        cells = [
            _cell(rates.get((a, b)), levels.get(_where(cluster, a, b), 0.0), a, b, suspects, links)
            for b in shown
        ]
        lines.append([_name(a, suspects), *cells])
    left = (
        f"; {len(hosts) - len(shown)} more hosts are not shown" if len(hosts) > len(shown) else ""
    )
    of = " and ".join(f"{format_rate(level)} GB/s{where}" for where, level in levels.items())
    caption = (
        f"Rate from the host of a row to that of a column, in % of the usual {of}{left}; framed:"
        " suspects, and links that are slow"
    )
    return grid(caption, ["from", *shown], lines)


def _where(cluster: Cluster, a: str, b: str) -> str:
    """Where a pair of hosts is, if the racks are known: inside a rack, or across racks."""
    if any(host not in cluster.racks for host in cluster.hosts):
        return ""
    return " inside a rack" if cluster.racks[a] == cluster.racks[b] else " across racks"


def _levels(cluster: Cluster, rates: Mapping[tuple[str, str], float]) -> dict[str, float]:
    """The usual rate of the pairs of each `_where`, in bytes per second (`speeds.usual`)."""
    groups = grouped(rates, lambda pair: _where(cluster, *pair))
    logs = {
        where: np.log([max(rates[pair], 1e-300) for pair in pairs])
        for where, pairs in sorted(groups.items(), reverse=True)
    }
    return {where: float(np.exp(usual(values))) for where, values in logs.items()}


def _name(host: str, suspects: set[str]) -> str:
    return f"<mark>{text(host)}</mark>" if host in suspects else text(host)


def _cell(
    rate: float | None,
    level: float,
    a: str,
    b: str,
    suspects: set[str],
    links: set[frozenset[str]],
) -> str:
    """A pair's rate over the ``level`` of comparable pairs, both in bytes per second."""
    if rate is None:
        return ""
    marked = frozenset((a, b)) in links or ({a, b} & suspects and rate < 0.95 * level)
    missing = min(0.6, max(0.0, 1 - rate / level))
    style = f"background:rgba(213,94,0,{missing:.2f});{_MARK if marked else ''}"
    return f'<span style="{style}">{100 * rate / level:.0f}</span>'


def _failed(observations: Sequence[Observation]) -> str:
    """A table of launches in which a host did not finish, or returned wrong elements."""
    rows = [
        (
            str(one.launch.number),
            one.launch.stage.value,
            report.host,
            report.ending.value,
            f"{report.wrong} wrong elements" if report.wrong else report.detail,
        )
        for one in sorted(observations, key=lambda one: one.launch.number)
        for report in one.reports
        if report.wrong or report.ending not in (Ending.FINISHED, Ending.STOPPED)
    ]
    if not rows:
        return ""
    more = f", the first {_MOST_LAUNCHES} of {len(rows)}" if len(rows) > _MOST_LAUNCHES else ""
    caption = f"Hosts that did not finish a launch{more}"
    return table(caption, ["launch", "stage", "host", "ending", "detail"], rows[:_MOST_LAUNCHES])
