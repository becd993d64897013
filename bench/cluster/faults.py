"""Faults of hosts, except of links: remote shells, environments, files, ranks. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

#: The answer of a remote shell that refuses every connection.
REFUSE = "refuse"
_REFUSED = "ssh: connect to host {} port 22: Connection refused"
# If the remote shell is killed while it waits, no process is left behind.
_WAIT = "sleep {} & trap 'kill $!; wait; exit 255' TERM INT HUP; wait $!; trap - TERM INT HUP"


class Shell(NamedTuple):
    """A host's remote shell, and the seconds until it answers: infinite, or `REFUSE`."""

    host: int
    answer: float | str

    @property
    def script(self) -> str:
        """A line of sh that makes the remote shell of the host fail or wait.

        The cluster's ssh runs it before it enters the host's network namespace.
        """
        if isinstance(self.answer, str):
            return f"echo {shlex.quote(_REFUSED.format(f'host{self.host}'))} >&2; exit 255"
        return _WAIT.format(f"{self.answer:g}")


class Variable(NamedTuple):
    """An environment variable that a host's remote shell sets."""

    host: int
    name: str
    value: str

    @property
    def script(self) -> str:
        """A line of sh that sets the variable; see `Shell.script`."""
        return f"export {self.name}={shlex.quote(self.value)}"


class OtherFile(NamedTuple):
    """A file that replaces another one for processes that a host's remote shell starts."""

    host: int
    path: Path
    instead: Path

    @property
    def script(self) -> str:
        """A line of sh that runs before the remote shell enters the host."""
        words = shlex.join(["mount", "--bind", str(self.instead.resolve()), str(self.path)])
        return f"inside=$inside{shlex.quote(f'{words} && ')}"


class RankSignal(NamedTuple):
    """A signal for every rank of a host, ``after`` seconds after the rank's start."""

    host: int
    after: float
    number: int


@dataclass(frozen=True)
class Faults:
    """The faults of hosts. ``at_shell``: faults that their remote shells apply before a command."""

    at_shell: Sequence[Shell | Variable | OtherFile] = ()
    signals: Sequence[RankSignal] = ()

    def scripts(self) -> dict[int, str]:
        """The sh commands that each host's remote shell runs first, by host number."""
        lines: dict[int, str] = {}
        for fault in self.at_shell:
            lines[fault.host] = f"{lines.get(fault.host, '')}{fault.script}\n"
        return lines


NO_FAULTS = Faults()
