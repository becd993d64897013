"""Launchers: the right flags for each, runs under them, and how a run ended."""

from __future__ import annotations

import os
import resource
import shlex
import signal
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bench.launch import child
from bench.launch.progress import last_words
from busbar.errors import BusbarError, Unavailable, Unsupported
from busbar.start import python
from busbar.status import FOUND, MEANING


class LaunchFailed(BusbarError):
    """A run that we started ended with an error; the message has its last words."""

    def __init__(self, said: str, status: int = FOUND) -> None:
        """``status``: what this command then ends with, too."""
        super().__init__(said)
        self.exit_status = status


class Interrupted(BusbarError):
    """We were told to end by a signal while a run was under way."""

    def __init__(self, number: int, kept: str = "") -> None:
        """``kept``: what remains of what was measured."""
        super().__init__(f"interrupted{kept}")
        self.exit_status = 128 + number


# Files that a rank opens, and that its launcher opens for each rank (observed with MPICH 5).
RANK_FILES, _LAUNCHER_FILES = 48, 4


def launcher(
    ranks: int, library: str, mpirun: str, env: Mapping[str, str]
) -> tuple[list[str], dict[str, str]]:
    """The start of a command line for so many ranks on this host, and what its environment needs.

    ``library`` is the MPI library's version text: Open MPI refuses root and more ranks than cores
    unless told otherwise.
    """
    extra: dict[str, str] = {}
    command = [mpirun, "-n", str(ranks)]
    if "Open MPI" in library:
        # Told only to oversubscribe, it puts all ranks on the first of several hosts.
        command[1:1] = ["--map-by", "slot:oversubscribe"]
        if os.geteuid() == 0:
            extra = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return command, {**env, **extra}


def run_of_its_own(
    module: Sequence[str],
    ranks: int,
    argv: Sequence[str],
    *,
    command: str | None = None,
    variables: Mapping[str, str] | None = None,
    heard: Callable[[str], object] | None = None,
    within: float | None = None,
    **streams: Any,
) -> child.Ended:
    """Run ``python -m`` module on so many ranks as a run of its own, and wait for its end.

    ``command``: a cluster's launcher with ``{ranks}`` in it; None lets the run start this host's
    own (``--ranks``). ``variables`` are added to the environment; ``heard``, ``within`` and
    ``streams`` are those of `bench.launch.child.run`. Raises Unsupported where nothing can be
    started.
    """
    own = python(*module, *argv)
    if command is None:
        words, told = [*own, "--ranks", str(ranks)], None  # the last of an option counts
    else:
        given = [word.replace("{ranks}", str(ranks)) for word in _words(command)]
        words, told = [*given, *own], signal.SIGTERM  # by SIGINT srun only tells its state
    try:
        env = {**os.environ, **(variables or {})}
        return child.run(words, env, told, heard=heard, within=within, **streams)
    except OSError as error:
        raise Unsupported(f"{words[0]}: cannot be started: {error.strerror}") from None


def succeeded(name: str, ended: child.Ended, kept: str = "", *, ours: bool = True) -> None:
    """Raise Interrupted or LaunchFailed where a run did not end well; ``kept``: see there.

    ``ours``: it is a run of ours, whose exit status means what this command's does.
    """
    if ended.interrupted:
        raise Interrupted(ended.interrupted, kept)
    if ended.status:
        said = last_words(ended.err) or ended.err.strip().splitlines() or ["nothing said"]
        status = ended.status if ours and ended.status in MEANING else FOUND
        raise LaunchFailed(f"{name}: exit status {ended.status}: {said[-1]}", status)


def _words(command: str) -> list[str]:
    """A command line taken apart. Raises Unsupported where a quote is never closed."""
    try:
        return shlex.split(command)
    except ValueError as error:
        raise Unsupported(f"--launcher {command!r}: {str(error).lower()}") from None


def files_for(ranks: int) -> int:
    """How many files a process may have to open in a run of so many ranks on this host."""
    return RANK_FILES + _LAUNCHER_FILES * ranks


def room_for_files(ranks: int) -> None:
    """Raise the limit of open files as far as it goes; Unavailable where that is not enough.

    Beyond it a launcher fails at an assertion of its own, and names nobody.
    """
    need = files_for(ranks)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= need:
        return
    if hard != resource.RLIM_INFINITY and hard < need:
        raise Unavailable(
            f"at most {hard} files may be open (ulimit -n); {ranks} ranks and their launcher need"
            f" about {need}. Raise it, start fewer, or use --transport inproc"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (need, hard))
