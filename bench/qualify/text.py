"""Verdicts as text for people and for schedulers. No input or output.

Host names come from files, and reasons from other machines' output, so each format quotes them.
"""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from bench.qualify.model import Cluster, State, Verdict
from busbar.tables import Column
from busbar.terminal import make_printable

HOST, LINK, UPLINK, GROUP = "host", "link", "uplink", "group"
#: States in which a subject does not count as bad.
NOT_BAD = (State.GOOD, State.CANNOT_TELL)
# The sentence's words for each state; below, the most subjects or hosts that a text names, those
# named of more, and launches in a table.
_CLAUSES: Mapping[State, str] = {
    State.SLOW: "is slow",
    State.UNREACHABLE: "cannot be reached",
    State.HANGS: "hangs",
    State.CRASHES: "crashes",
    State.WRONG: "returns wrong results",
    State.DIFFERENT: "is different",
    State.CANNOT_TELL: "cannot be judged",
}
_NAMED, _FIRST, _LAUNCHES = 8, 3, 3


def bad(verdicts: Iterable[Verdict], kind: str = HOST) -> list[Verdict]:
    """The verdicts against subjects of a kind, in natural order of names."""
    chosen = [one for one in verdicts if one.kind == kind and one.state not in NOT_BAD]
    return sorted(chosen, key=lambda one: list(map(natural, one.subject)))


def once_failed(verdicts: Iterable[Verdict]) -> list[Verdict]:
    """The verdicts on good hosts that failed in some launch, in natural order of names."""
    return sorted((one for one in verdicts if one.failed), key=lambda v: natural(v.subject[0]))


def natural(name: str) -> tuple[tuple[int, str], ...]:
    """A key that sorts ``host9`` before ``host10``."""
    parts = re.findall(r"\d+|\D+", name)
    return tuple((int(part), "") if part.isdecimal() else (-1, part) for part in parts)


def good_hosts(cluster: Cluster, verdicts: Iterable[Verdict]) -> list[str]:
    """The good hosts in ring order: rack by rack, so that a ring enters each rack once."""
    names = [one.subject[0] for one in verdicts if one.kind == HOST and one.state is State.GOOD]
    racks = cluster.racks
    return sorted(names, key=lambda name: (natural(racks.get(name, "")), natural(name)))


def subject(verdict: Verdict, cluster: Cluster) -> str:
    """The name of a verdict's subject."""
    if verdict.kind == HOST:
        return verdict.subject[0]
    if verdict.kind == LINK:
        return f"the link {verdict.subject[0]} to {verdict.subject[-1]}"
    if verdict.kind == GROUP:
        return f"the group {_members(verdict)}"
    racks = {cluster.racks.get(host, "") for host in verdict.subject} - {""}
    if len(racks) == 1:
        return f"the uplink of rack {racks.pop()}"
    hosts = sorted(verdict.subject, key=natural)
    return f"the uplink of {hosts[0]} to {hosts[-1]}" if len(hosts) > 1 else f"{hosts[0]}'s uplink"


def _members(verdict: Verdict) -> str:
    """The names of a group's hosts; of many hosts their number and the first few names."""
    hosts = sorted(verdict.subject, key=natural)
    if len(hosts) <= _NAMED:
        return " ".join(hosts)
    return f"of {len(hosts)} hosts ({' '.join(hosts[:_FIRST])} …)"


def clause(verdict: Verdict, cluster: Cluster) -> str:
    """A verdict as a clause: ``host5 is slow (x0.60)``."""
    ratio = _ratio(verdict) if verdict.state is State.SLOW else ""
    return f"{subject(verdict, cluster)} {_CLAUSES[verdict.state]}{ratio}"


def _ratio(verdict: Verdict) -> str:
    """A verdict's ratio in parentheses, and of what it is if not of comparable rates."""
    if verdict.ratio is None:
        return ""
    return f" (x{verdict.ratio:.2f}{' of the minimum' if verdict.of_minimum else ''})"


def sentence(cluster: Cluster, verdicts: Sequence[Verdict], across: float | None = None) -> str:
    """The result in a sentence: ``14 of 16 hosts are good; host5 is slow (x0.60), ...``.

    ``across``: see `bench.qualify.speeds.across_racks`.
    """
    count, total = len(good_hosts(cluster, verdicts)), len(cluster.hosts)
    head = f"all {total} hosts are good" if count == total else f"{count} of {total} hosts are good"
    if total == 1:
        head = f"{cluster.hosts[0]} is good" * count
    against = [one for kind in (HOST, LINK, UPLINK, GROUP) for one in bad(verdicts, kind)]
    unsure = [one for one in verdicts if one.state is State.CANNOT_TELL]
    if total > 1 and sum(one.kind == HOST for one in unsure) == total:
        head = f"none of {total} hosts can be judged"
        unsure = [one for one in unsure if one.kind != HOST]
    clauses = [clause(one, cluster) for one in [*against, *unsure]]
    clauses += [f"{one.subject[0]}, though good, {one.reason}" for one in once_failed(verdicts)]
    more = f" and {len(clauses) - _NAMED} more" if len(clauses) > _NAMED else ""
    racks = ""
    if across is not None and not any(one.kind == UPLINK for one in verdicts):
        racks = f"a pair across racks has x{across:.2f} of the rate inside a rack"
    return "; ".join(filter(None, (head, ", ".join(clauses[:_NAMED]) + more, racks)))


def table(cluster: Cluster, verdicts: Sequence[Verdict]) -> list[Column]:
    """The columns of a table: a row for each subject that is not good, one for good hosts.

    A good host that failed in some launch has a row of its own, with these launches.
    """
    rows = [
        (
            subject(one, cluster),
            one.state.value,
            "" if one.ratio is None else f"x{one.ratio:.2f}",
            "" if one.low is None or one.high is None else f"{one.low:.2f} to {one.high:.2f}",
            launches(one),
            one.reason,
        )
        for one in sorted(verdicts, key=lambda v: (v.kind, list(map(natural, v.subject))))
        if one.state is not State.GOOD or one.failed
    ]
    failed = {one.subject[0] for one in once_failed(verdicts)}
    good = [name for name in good_hosts(cluster, verdicts) if name not in failed]
    if good:
        who = good[0] if len(good) == 1 else f"{len(good)} hosts"
        reason = verdicts[0].reason if len(cluster.hosts) == 1 else ""
        rows.append((who, State.GOOD.value, "", "", "", reason))
    heads = ("subject", "verdict", "rate", "95 %", "launches", "why")
    return [
        (head, "left" if n in (0, 1, 4, 5) else "right", [row[n] for row in rows])
        for n, head in enumerate(heads)
    ]


def launches(verdict: Verdict) -> str:
    """The numbers of the first few launches that show a verdict."""
    numbers = verdict.failed or verdict.launches
    shown = " ".join(map(str, numbers[:_LAUNCHES]))
    return f"{shown} …" if len(numbers) > _LAUNCHES else shown


def why(verdict: Verdict) -> str:
    """A verdict as a scheduler's reason: ``busbar: slow (x0.60), seen in 5 pairs``."""
    reason = f", {verdict.reason}" if verdict.reason else ""
    return make_printable(f"busbar: {verdict.state.value}{_ratio(verdict)}{reason}")


def hostfile(hosts: Sequence[str]) -> str:
    """A line for each host, as MPI's launchers and ``srun --exclude`` read them."""
    return "".join(f"{host}\n" for host in hosts)


def drain_script(verdicts: Sequence[Verdict]) -> str:
    """A shell script that drains the bad hosts in Slurm."""
    commands = (
        ["scontrol", "update", f"NodeName={one.subject[0]}", "State=DRAIN", f"Reason={why(one)}"]
        for one in bad(verdicts)
    )
    return _script(
        "Drains the hosts that `busbar qualify` found bad. Read it, then run it.", commands
    )


def cordon_script(verdicts: Sequence[Verdict]) -> str:
    """A shell script that cordons the bad hosts in Kubernetes."""
    commands = (["kubectl", "cordon", one.subject[0]] for one in bad(verdicts))
    return _script(
        "Cordons the nodes that `busbar qualify` found bad. Read it, then run it.", commands
    )


def _script(about: str, commands: Iterable[Sequence[str]]) -> str:
    lines = [shlex.join(command) for command in commands]
    return "\n".join(["#!/bin/sh", f"# {about}", *lines, ""])


def metrics(verdicts: Sequence[Verdict], seconds: float, when: float) -> str:
    """Prometheus's text format, version 0.0.4, for the textfile collector of its node exporter.

    ``seconds``: how long the campaign took; ``when``: its end, in seconds since the epoch.
    """
    return "".join(f"{line}\n" for line in _metrics(verdicts, seconds, when))


def _metrics(verdicts: Sequence[Verdict], seconds: float, when: float) -> Iterator[str]:
    hosts = sorted((v for v in verdicts if v.kind == HOST), key=lambda v: natural(v.subject[0]))
    name = "busbar_qualify_host_good"
    yield from _about(name, "1 where the host is good, 0 where it is bad; none if it is unknown.")
    for one in hosts:
        if one.state is not State.CANNOT_TELL:
            yield f"{name}{_labels(host=one.subject[0])} {int(one.state is State.GOOD)}"
    name = "busbar_qualify_host_failed_launches"
    yield from _about(name, "Launches in which a good host failed.")
    for one in hosts:
        if one.state is State.GOOD:
            yield f"{name}{_labels(host=one.subject[0])} {len(one.failed)}"
    name = "busbar_qualify_host_state"
    yield from _about(name, "1 for the verdict on the host.")
    for one in hosts:
        yield f"{name}{_labels(host=one.subject[0], state=one.state.value)} 1"
    name = "busbar_qualify_rate_ratio"
    yield from _about(name, "Rate over the median of comparable ones, or over --minimum.")
    for one in verdicts:
        if one.ratio is not None:
            named = _members(one) if one.kind == GROUP else " ".join(one.subject)
            labels = _labels(kind=one.kind, subject=named)
            yield f"{name}{labels} {one.ratio:.6g}"
    name = "busbar_qualify_subjects"
    yield from _about(name, "Hosts, links and uplinks by verdict.")
    for (kind, state), count in sorted(Counter((v.kind, v.state.value) for v in verdicts).items()):
        yield f"{name}{_labels(kind=kind, state=state)} {count}"
    for name, text, value in (
        ("busbar_qualify_duration_seconds", "Duration of the run.", seconds),
        ("busbar_qualify_end_timestamp_seconds", "End of the run.", when),
    ):
        yield from _about(name, text)
        yield f"{name} {value:.15g}"


def _about(name: str, text: str) -> Iterator[str]:
    yield f"# HELP {name} {text}"
    yield f"# TYPE {name} gauge"


def _labels(**labels: str) -> str:
    shown = ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items())
    return f"{{{shown}}}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
