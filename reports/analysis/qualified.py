"""What has changed between campaigns of ``busbar qualify``. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from reports.readers.qualified import HostVerdict, Qualified

GOOD = "good"
_Subject = tuple[str, tuple[str, ...]]


class Change(NamedTuple):
    """A subject's verdict in each campaign, as text: empty where it was not among the hosts."""

    subject: str
    verdicts: tuple[str, ...]


def verdict_changes(campaigns: Sequence[Qualified]) -> list[Change]:
    """The subjects whose verdict is not the same in all campaigns, which are in their order."""
    by_subject = [{_subject(one): one for one in each.verdicts} for each in campaigns]
    found = []
    for subject in sorted({key for verdicts in by_subject for key in verdicts}):
        states = [
            _state(subject, verdicts, each)
            for verdicts, each in zip(by_subject, campaigns, strict=True)
        ]
        if len({state.partition(" ")[0] for state in states}) > 1:
            found.append(Change(_name(subject), tuple(states)))
    return found


def _subject(verdict: HostVerdict) -> _Subject:
    return verdict.kind, tuple(sorted(verdict.subject))


def _name(subject: _Subject) -> str:
    kind, names = subject
    return " ".join(names) if kind == "host" else f"{kind} {' '.join(names)}"


def _state(subject: _Subject, verdicts: dict[_Subject, HostVerdict], each: Qualified) -> str:
    """The state of a subject; links and uplinks without a verdict are good."""
    verdict = verdicts.get(subject)
    if verdict is None:
        return GOOD if set(subject[1]) <= set(each.hosts) and subject[0] != "host" else ""
    ratio = f" (x{verdict.ratio:.2f})" if verdict.ratio and verdict.state == "slow" else ""
    return verdict.state + ratio
