"""Reads the verdicts that ``busbar qualify`` keeps in a run directory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from busbar.errors import ReportError
from busbar.files import read

#: The file of verdicts in a run directory, and what it calls its format.
FILE, FORMAT, VERSION = "verdicts.json", "busbar-qualify-verdicts", 1
_MOST_BYTES = 1 << 28


class HostVerdict(Struct, frozen=True):
    """A verdict on a host, link, uplink or group; see `bench.qualify.model.Verdict`."""

    kind: str
    subject: tuple[str, ...]
    state: str
    reason: str = ""
    ratio: float | None = None


class Qualified(Struct, frozen=True):
    """The verdicts of a campaign, and when it was started, in UTC."""

    format: str
    version: int
    started: str
    hosts: tuple[str, ...]
    sentence: str
    verdicts: tuple[HostVerdict, ...]


def is_qualified(path: Path) -> bool:
    """Whether a folder is the run directory of a campaign that is over."""
    return (path / FILE).is_file()


def read_verdicts(path: Path) -> Qualified:
    """The verdicts in a run directory. Raises ReportError for a file of another form."""
    data = read(path / FILE, _MOST_BYTES, ReportError)
    try:
        campaign = msgspec.json.decode(data, type=Qualified)
    except msgspec.MsgspecError as error:
        raise ReportError(f"{path / FILE}: {error}") from None
    if (campaign.format, campaign.version) != (FORMAT, VERSION):
        raise ReportError(f"{path / FILE}: no {FORMAT} of version {VERSION}")
    return campaign


def in_order(campaigns: Sequence[Qualified]) -> list[Qualified]:
    """Campaigns in the order in which they were started."""
    return sorted(campaigns, key=lambda one: one.started)
