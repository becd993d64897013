"""Turns the output of a launch into an observation. No input or output."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from bench.qualify.model import Ending, HostReport, Launch, Observation, Stage
from bench.qualify.task import MARK, MOST_TEXT
from busbar.launchers import is_internal
from busbar.terminal import make_printable

#: Most characters of a worker's line, and most lines of a rank. Anything beyond is ignored.
MOST_LINE, LINES_A_RANK = 1 << 16, 8
# What MPICH's launcher, Open MPI's and srun say of a rank that ended badly.
_RANK_ENDED = re.compile(
    r"BAD TERMINATION|process rank \d+ .* exited|non-zero (?:exit code|status)|: task \d+: "
)
# Words of remote shells, kernels and launchers for why a rank did not start, or ended.
_REASON = re.compile(
    r"(?i)refused|denied|timed out|no route|unreachable|not found|no such|could not resolve"
    r"|KILLED BY SIGNAL|on signal|EXIT CODE|: error:"
)
_SIGNAL = re.compile(r"(?:EXIT STRING: .*\(|KILLED BY |exited on\s+)(?i:signal):? (\d{1,2})\b")
_Text = Annotated[str, Meta(max_length=4 * MOST_TEXT)]
_Rate = Annotated[float, Meta(gt=0, le=1e18)]


class Line(Struct, frozen=True):
    """A line that a rank of a launch prints, and that ``busbar qualify`` reads.

    ``event`` is begun, joined, finished, ended, stopped or late (killed at the deadline).
    """

    event: _Text
    rank: Annotated[int, Meta(ge=0, lt=1 << 24)]
    host: _Text
    boot: _Text = ""
    wrong: Annotated[int, Meta(ge=0)] = 0
    status: int | None = None
    detail: _Text = ""
    facts: dict[_Text, _Text] = {}
    rates: dict[_Text, tuple[_Rate, ...]] = {}


class Outcome(Struct, frozen=True):
    """How a launch ended: the launcher's exit status, and the duration in seconds.

    ``status`` is None if the deadline passed. ``errors``: the end of the launcher's error output.
    """

    status: int | None
    errors: str
    seconds: float

    @property
    def last(self) -> str:
        """The last line of the errors that gives a reason, or else the last that is text.

        Empty if there are only lines of where in its source the launcher failed: Hydra may end
        before it has printed what the remote shell said.
        """
        lines = [line for line in self.errors.splitlines() if line.strip(" =-\t")]
        own = [line for line in lines if not is_internal(line)]
        reasons = [line for line in own if _REASON.search(line) and "Warning:" not in line]
        return make_printable((reasons or own or [""])[-1].strip(" ="))

    @property
    def signal(self) -> int | None:
        """The number of the signal that killed a rank, as the launcher says; None if it does not.

        Hydra's own status, and its EXIT CODE, may be another number.
        """
        match = _SIGNAL.search(self.errors)
        return int(match[1]) if match else None

    def names(self, host: str) -> bool:
        """True if the launcher's errors name a host, as they do if its rank was killed."""
        words = re.split(r"[^\w.-]+", self.errors)
        return host in (word.rstrip(".") for word in words)


_DECODER = msgspec.json.Decoder(Line)


def parse(text: str) -> Line | None:
    """The worker's line in a line of output, which may have a launcher's prefix; None if none."""
    at = text.find(MARK)
    if at < 0 or len(text) > MOST_LINE:
        return None
    try:
        return _DECODER.decode(text[at + len(MARK) :])
    except (msgspec.MsgspecError, UnicodeEncodeError):
        return None


class Identity(Struct, frozen=True):
    """A machine's identity: the name that it reports, and its boot identifier."""

    hostname: str
    boot: str


def identity(lines: Sequence[Line]) -> Identity | None:
    """The host's identity, from a launch on it alone; None if no rank began."""
    return next((Identity(one.host, one.boot) for one in lines if one.event == "begun"), None)


def observe(
    launch: Launch,
    lines: Sequence[Line],
    outcome: Outcome,
    ranks: int,
    names: Mapping[str, str],
) -> Observation:
    """The observation of a launch. ``ranks``: on each host; ``names``: hosts by reported name.

    If a reported name is not known, the rank is assigned to a host by its number.
    """
    by_host: dict[str, list[Line]] = {host: [] for host in launch.hosts}
    for line in lines:
        at = line.rank // ranks
        host = launch.hosts[at] if at < len(launch.hosts) else ""
        host = names.get(line.host, host) if len(launch.hosts) > 1 else launch.hosts[0]
        if host in by_host:
            by_host[host].append(line)
    # Later failures may be consequences of the first one.
    first = next((one for one in lines if one.event in ("ended", "stopped", "late")), None)
    done = all(_finished(of, ranks) for of in by_host.values())
    reports = tuple(
        _report(launch, host, of, outcome, ranks, first) for host, of in by_host.items()
    )
    rates = {}
    if done and launch.stage is not Stage.ALONE:
        rates = next((one.rates for one in lines if one.event == "finished" and one.rates), {})
        root = next((host for host, of in by_host.items() if any(x.rank == 0 for x in of)), "")
        if len(launch.hosts) == 2 and root == launch.hosts[1]:
            # The launcher placed the pair's ranks in reverse order.
            other = {"forward": "backward", "backward": "forward"}
            rates = {other.get(name, name): values for name, values in rates.items()}
    return Observation(launch, _blamed(reports, outcome), rates, outcome.seconds)


def _finished(lines: Sequence[Line], ranks: int) -> bool:
    return sum(one.event == "finished" for one in lines) >= ranks


def _report(
    launch: Launch,
    host: str,
    lines: Sequence[Line],
    outcome: Outcome,
    ranks: int,
    first: Line | None,
) -> HostReport:
    """How a launch ended on a host, judged by that host's lines."""
    wrong = sum(one.wrong for one in lines)
    if _finished(lines, ranks):
        alone = launch.stage is Stage.ALONE
        facts = next((one.facts for one in lines if one.facts), {}) if alone else {}
        rates = next((one.rates for one in lines if one.rates), {}) if alone else {}
        measured = {name: values[0] for name, values in rates.items() if values}
        return HostReport(host, Ending.FINISHED, "", 0, wrong, facts, measured)
    events = {one.event for one in lines}
    own = next((one for one in lines if one is first), None)
    stage = "joined, no result" if "joined" in events else "began, did not join the others"
    if own is not None and own.event == "ended":
        return HostReport(host, Ending.CRASHED, make_printable(own.detail), own.status, wrong)
    if own is not None and own.event == "stopped":
        return HostReport(host, Ending.HUNG, "its process was stopped", None, wrong)
    if first is not None and first.event != "late":
        return HostReport(host, Ending.STOPPED, "", None, wrong)
    if not events and outcome.status is None:
        detail = f"nothing came from it in {outcome.seconds:.0f} s"
        return HostReport(host, Ending.UNREACHABLE, detail)
    if not events and not _RANK_ENDED.search(outcome.errors):
        return HostReport(host, Ending.UNREACHABLE, outcome.last, outcome.status)
    if outcome.status is None or "late" in events or first is not None:
        return HostReport(host, Ending.HUNG, f"{stage} in {outcome.seconds:.0f} s", None, wrong)
    # The ranks began, none reported a failure, and the launcher ended: its output has the reason.
    if outcome.signal is not None:
        return HostReport(host, Ending.CRASHED, "", 128 + outcome.signal, wrong)
    return HostReport(host, Ending.CRASHED, outcome.last, outcome.status, wrong)


def _blamed(reports: tuple[HostReport, ...], outcome: Outcome) -> tuple[HostReport, ...]:
    """Reports in which hosts that only lost their partner count as stopped.

    An unreachable partner explains failures of the other hosts. If no rank is known to have failed
    by itself, the hosts that the launcher names count as failed.
    """
    if len(reports) == 1:
        return reports
    silent = [one for one in reports if one.ending is Ending.UNREACHABLE]
    crashed = [one for one in reports if one.ending is Ending.CRASHED]
    guilty = silent or crashed
    if len(guilty) > 1 or guilty == list(reports):
        guilty = [one for one in guilty if outcome.names(one.host)] or guilty
    if not guilty:
        return reports
    return tuple(
        one
        if one in guilty or one.ending is Ending.FINISHED
        else HostReport(one.host, Ending.STOPPED, "", None, one.wrong)
        for one in reports
    )
