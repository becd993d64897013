"""Read the verdicts that ``busbar qualify`` writes to a run directory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from shlex import quote

import msgspec
from msgspec import Struct

from busbar.errors import ReportError
from busbar.files import read

#: The file of verdicts in a run directory, and the name and version of its format.
FILE, FORMAT, VERSION = "verdicts.json", "busbar-qualify-verdicts", 1
#: The file of a run directory that has every launch, from the beginning of the run on.
LAUNCHES = "campaign.ndjson"
_MOST_BYTES = 1 << 28


class HostVerdict(Struct, frozen=True):
    """A verdict of ``busbar qualify`` on a host, link, uplink or group of hosts.

    The fields are those of `bench.qualify.model.Verdict`.
    """

    kind: str
    subject: tuple[str, ...]
    state: str
    reason: str = ""
    ratio: float | None = None


class Qualified(Struct, frozen=True):
    """The verdicts of a campaign, and its start time in UTC."""

    format: str
    version: int
    started: str
    hosts: tuple[str, ...]
    sentence: str
    verdicts: tuple[HostVerdict, ...]


def is_campaign(path: Path) -> bool:
    """True if a folder is the run directory of a campaign, which may have been interrupted."""
    return (path / LAUNCHES).is_file() or is_qualified(path)


def is_qualified(path: Path) -> bool:
    """True if a folder is the run directory of a finished campaign."""
    return (path / FILE).is_file()


def its_verdicts(path: Path) -> str:
    """What the run directory of a campaign is, and the command that prints its verdicts."""
    command = f"busbar qualify --resume {quote(str(path))}"
    if is_qualified(path):
        return f"launches of busbar qualify; its verdicts: {command}"
    return f"a run of busbar qualify that did not end and has no verdicts; {command} goes on"


def read_verdicts(path: Path) -> Qualified:
    """The verdicts in a run directory. Raises ReportError if the file has another format."""
    data = read(path / FILE, _MOST_BYTES, ReportError)
    try:
        campaign = msgspec.json.decode(data, type=Qualified)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ReportError(f"{path / FILE}: {error}") from None
    if (campaign.format, campaign.version) != (FORMAT, VERSION):
        raise ReportError(f"{path / FILE}: no {FORMAT} of version {VERSION}")
    return campaign


def in_order(campaigns: Sequence[Qualified]) -> list[Qualified]:
    """Campaigns in order of their start times."""
    return sorted(campaigns, key=lambda one: one.started)
