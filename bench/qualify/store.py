"""The run directory of a campaign: its settings, and every observation."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from bench.qualify.lines import Identity
from bench.qualify.model import Cluster, Limits, Observation, Verdict
from busbar.errors import StoreError, Unsupported
from busbar.files import Claim, GrowingFile, check, read, write

FORMAT, VERSION = "busbar-qualify", 1
# The ending is not `.jsonl`, because `reports` reads such files as records.
FILE, RESULT, RECORDS = "campaign.ndjson", "verdicts.json", "records.jsonl"
_MOST_BYTES = 1 << 31


class Settings(Struct, frozen=True, kw_only=True):
    """How launches are run, the same for a whole campaign.

    ``launcher``: its kind; ``launcher_options``: words for it; ``ssh``: the remote shell.
    ``ranks``: on each host; 0: two on a host alone, else one. ``nbytes``: of a vector. ``repeats``:
    rates of each measure. ``deadline``: seconds of a launch on two hosts.
    """

    launcher: str
    launcher_options: tuple[str, ...] = ()
    ssh: str = "ssh"
    transport: str = "auto"
    ranks: int = 0
    nbytes: int = 1 << 20
    repeats: int = 5
    deadline: float = 30.0


class Header(Struct, frozen=True, kw_only=True):
    """The first line of the file. ``started`` is in UTC."""

    format: str
    version: int
    started: str
    cluster: Cluster
    limits: Limits
    settings: Settings


class Entry(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Every other line: an observation, and for a launch on one host that host's identity."""

    observation: Observation
    identity: Identity | None = None


class Campaign(Struct, frozen=True):
    """The content of a run directory."""

    header: Header
    entries: tuple[Entry, ...] = ()

    @property
    def observations(self) -> list[Observation]:
        """All observations, in the order in which they were made."""
        return [entry.observation for entry in self.entries]

    @property
    def identities(self) -> Mapping[str, Identity]:
        """The identity that each host reported."""
        return {
            entry.observation.launch.hosts[0]: entry.identity
            for entry in self.entries
            if entry.identity is not None
        }


def load(folder: Path) -> Campaign:
    """The campaign of a run directory. Raises Unsupported if it is not a valid one.

    A last line that was cut off is left out, and its launch is run again.
    """
    path = folder / FILE
    if not path.is_file():
        raise Unsupported(f"{folder}: no folder of a run of busbar qualify, which has {FILE}")
    data = read(path, _MOST_BYTES)
    lines = data[: data.rfind(b"\n") + 1].splitlines()
    number = 1
    try:
        if not lines:
            raise Unsupported(f"{path}: is empty")
        header = msgspec.json.decode(lines[0], type=Header)
        if (header.format, header.version) != (FORMAT, VERSION):
            raise Unsupported(f"{path}: no {FORMAT} of version {VERSION}")
        decoder, entries = msgspec.json.Decoder(Entry), []
        for line in lines[1:]:
            number += 1
            entries.append(decoder.decode(line))
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Unsupported(f"{path}, line {number}: {error}") from None
    return Campaign(header, tuple(entries))


class Result(Struct, frozen=True, kw_only=True):
    """The verdicts of a campaign, for other programs: the file `RESULT` of the run directory.

    ``sentence`` is the last line of the table.
    """

    format: str
    version: int
    started: str
    hosts: tuple[str, ...]
    sentence: str
    verdicts: tuple[Verdict, ...]


def write_result(folder: Path, header: Header, sentence: str, verdicts: Sequence[Verdict]) -> None:
    """Write the verdicts of a finished campaign. Raises StoreError."""
    result = Result(
        format=f"{FORMAT}-verdicts",
        version=VERSION,
        started=header.started,
        hosts=header.cluster.hosts,
        sentence=sentence,
        verdicts=tuple(verdicts),
    )
    text = json.dumps(msgspec.to_builtins(result), indent=2)
    write(folder / RESULT, f"{text}\n".encode())


class Store:
    """Writes a campaign to disk, and keeps other processes from writing it. Raises StoreError."""

    def __init__(self, folder: Path, campaign: Campaign) -> None:
        self._path = folder / FILE
        self._kept = [_encoded(one) for one in (campaign.header, *campaign.entries)]
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(f"{folder}: cannot be made: {error.strerror}") from None
        check(self._path)
        self._claim = Claim(self._path)
        self._file = GrowingFile(self._path, lambda: b"".join(self._kept))
        if not campaign.entries:
            self._grow(b"")

    def add(self, observation: Observation, identity: Identity | None) -> None:
        """Write an observation to disk."""
        line = _encoded(Entry(observation=observation, identity=identity))
        self._kept.append(line)
        self._grow(line)

    def _grow(self, data: bytes) -> None:
        try:
            self._file.grow(lambda: data)
        except OSError as error:
            raise StoreError(f"{self._path}: cannot be written: {error.strerror}") from None

    def close(self) -> None:
        """Close the file, so that another process may write it."""
        self._file.close()
        self._claim.release()


def _encoded(value: Struct) -> bytes:
    # All but ASCII is escaped, so that a file can be shown as it is.
    return f"{json.dumps(msgspec.to_builtins(value), separators=(',', ':'))}\n".encode()
