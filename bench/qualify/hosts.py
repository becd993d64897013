"""The hosts to qualify: from options, a host file, a Slurm allocation, or another job's file."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.launch.hostfile import MOST_HOSTS, expand, from_file, lines
from bench.qualify.launchers import HOST_FILES
from busbar.errors import Unavailable, Unsupported
from busbar.terminal import print_note
from busbar.units import format_count

_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,251}[A-Za-z0-9])?")
_SLURM_S = 30.0


def checked(hosts: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    """The names of hosts, which are given with their place, such as ``hosts, line 3``.

    A name that is repeated counts once, with a note. Raises Unsupported for an invalid host name,
    no hosts, and too many.
    """
    if len(hosts) > MOST_HOSTS:
        raise Unsupported(f"{len(hosts):,} hosts; a run has at most {MOST_HOSTS:,}")
    names: dict[str, None] = {}
    for name, where in hosts:
        if not _NAME.fullmatch(name):
            raise Unsupported(f"{where}: {name[:60]!r} is no host name")
        if name in names:
            print_note(f"{where}: {name} is named more than once; it counts once")
        names[name] = None
    if not names:
        raise Unsupported("no hosts; a qualification needs one or more")
    return tuple(names)


def from_environment(env: Mapping[str, str]) -> list[tuple[str, str]]:
    """The hosts of the batch job that this process belongs to.

    Raises Unsupported if there is no job, and Unavailable if Slurm does not list its hosts.
    """
    nodes = env.get("SLURM_JOB_NODELIST")
    if nodes:
        return [(name, "the Slurm job") for name in _nodes(nodes)]
    for name in HOST_FILES:
        if env.get(name):
            return from_file(Path(env[name]))
    raise Unsupported("no hosts; give --hostfile FILE or --hosts a,b,c, or start it in a Slurm job")


def check_in_job(hosts: Sequence[str], env: Mapping[str, str]) -> None:
    """Raise Unsupported for a host that the Slurm job of this process does not have.

    Slurm refuses all steps on such a host, which would look as if the host failed.
    """
    nodes = env.get("SLURM_JOB_NODELIST")
    try:
        mine = {*_nodes(nodes)} if nodes else {*hosts}
    except Unavailable:
        return
    if others := [host for host in hosts if host not in mine]:
        rest = format_count(len(others) - 1, "more host")
        which = f"{others[0]} and {rest} are" if len(others) > 1 else f"{others[0]} is"
        raise Unsupported(
            f"{which} not in this Slurm job, so srun cannot start ranks there; start a"
            " job with --nodelist, or leave them out"
        )


def _nodes(nodes: str) -> list[str]:
    """The host names in a Slurm job's host list, by Slurm itself. Raises Unavailable."""
    try:
        done = subprocess.run(
            ["scontrol", "show", "hostnames", nodes],  # noqa: S607
            capture_output=True,
            text=True,
            timeout=_SLURM_S,
            check=True,
        )
    except FileNotFoundError:
        raise Unavailable("this Slurm job has no scontrol on its PATH; give --hosts") from None
    except (OSError, subprocess.SubprocessError) as error:
        raise Unavailable(
            f"scontrol show hostnames: {type(error).__name__}; give --hosts"
        ) from None
    return done.stdout.split()


def racks(path: Path, hosts: Sequence[str]) -> dict[str, str]:
    """The rack of each host, from a file with lines ``HOST RACK`` or ``host[1-4] RACK``.

    Raises Unsupported for a malformed line, for a host that is not to be qualified, and for a host
    without a rack.
    """
    rack_of, known = dict[str, str](), set(hosts)
    for words, where in lines(path):
        if len(words) != 2:
            raise Unsupported(f"{where}: write HOST RACK")
        for host in expand(words[0], where):
            if host not in known:
                raise Unsupported(f"{where}: {host[:60]!r} is none of the hosts")
            rack_of[host] = words[1]
    if missing := [host for host in hosts if host not in rack_of]:
        raise Unsupported(f"{path}: no rack for {missing[0]}")
    return rack_of
