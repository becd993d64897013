"""Environment variables that make MPI's launchers and libraries use the cluster.

With them ``mpirun`` and ``--ranks`` start their ranks on the cluster's hosts.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.cluster.commands import ENTER, HOSTFILE, PROGRAMS
from bench.launch.hostfile import from_file, from_words
from busbar.errors import Unsupported
from busbar.launchers import RANK_STARTERS, find_mpirun
from busbar.mpi import library_version, load_mpi

#: Commands that start ranks; any other command is started on every rank.
STARTERS = ("mpirun", "mpiexec", "mpiexec.hydra", "prterun", "srun")
# Busbar's commands that are started once, also as modules (bench.qualify): recipe has no ranks.
_ONCE = (*RANK_STARTERS, "recipe")

# The shaped network for data, the other for what launchers say to each other.
_DATA, _CONTROL = "10.1.0.0/16", "10.2.0.0/16"
_SHARED = {"TMPDIR": "/run/tmp"}
_HYDRA = {
    "HYDRA_LAUNCHER": "ssh",
    "HYDRA_LAUNCHER_EXEC": ENTER,
    "HYDRA_HOST_FILE": HOSTFILE,
    "HYDRA_IFACE": "control",
    # Within a host MPICH has shared memory of its own; UCX's would join hosts of one kernel.
    "UCX_TLS": "tcp,self",
    "UCX_NET_DEVICES": "eth0",
    # A long message's clear-to-send would wait in the same stream behind what goes the other way:
    # of two ways at once only one would be used. Fabrics answer out of band.
    "UCX_RNDV_THRESH": "inf",
    "FI_PROVIDER": "tcp",
    "FI_TCP_IFACE": "eth0",
}
_OPEN_MPI = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_MCA_plm": "ssh",
    "PRTE_MCA_plm_ssh_agent": ENTER,
    "PRTE_MCA_prte_default_hostfile": f"{HOSTFILE}.slots",
    "PRTE_MCA_prte_if_include": _CONTROL,
    # Every host believes that it has all cores: bound ranks would meet on the first.
    "PRTE_MCA_hwloc_default_binding_policy": "none",
    "PMIX_MCA_ptl_tcp_if_include": _CONTROL,
    "OMPI_MCA_pml": "ob1",
    "OMPI_MCA_btl": "self,sm,tcp",
    "OMPI_MCA_btl_tcp_if_include": _DATA,
    "OMPI_MCA_mpi_yield_when_idle": "1",
}
# Variables of another launcher, which its ranks' MPI would believe.
_MARKS = ("OMPI_COMM_WORLD", "PMI_", "PMIX_", "SLURM_", "MV2_COMM_WORLD", "PALS_")


def variables(env: Mapping[str, str]) -> dict[str, str]:
    """The environment of a command in the cluster. Variables of ``env`` override ours.

    Commands that PATH does not have, such as ``busbar``, are those of this Python's environment.
    """
    kept = {name: value for name, value in env.items() if not name.startswith(_MARKS)}
    own = Path(sys.prefix, "bin")
    path = {"PATH": f"{PROGRAMS}:{env.get('PATH', os.defpath)}:{own}"}
    return {**_HYDRA, **_OPEN_MPI, **kept, **_SHARED, **path}


def launching(command: list[str], ranks: int, hosts: Sequence[str] = ()) -> list[str]:
    """The words that start a command on ``ranks`` ranks. Raises Unavailable without an MPI.

    A command that starts ranks itself (`starts_ranks`) is unchanged, as is one of Busbar's with
    ``--host``, ``--hostfile`` or another number of ``--ranks``. One with ``--launches`` starts
    every launch itself, and gets the number of ranks as an option. Raises Unsupported for a host
    that is none of ``hosts`` (see `check_hosts`).
    """
    check_hosts(command, hosts)
    if starts_ranks(command):
        return command
    words = of_busbar(command)
    named = _values(words, "--host", "-H", "--hostfile")
    own_ranks = _values(words, "--ranks")[-1:]
    if named or own_ranks not in ([], [str(ranks)]):
        return command
    if "--launches" in command:
        return [*command, "--ranks", str(ranks)]
    library_version(load_mpi())
    return [find_mpirun(), "-n", str(ranks), *command]


def check_hosts(command: Sequence[str], hosts: Sequence[str]) -> None:
    """Raise Unsupported if Busbar's ``--host`` or ``--hostfile`` has a name that is no host's.

    ``--hosts`` is that of `bench.qualify`; of ``cluster`` it is a number.
    """
    words = of_busbar(command)
    flags = ("--hosts", "--host") if words[:1] == ["qualify"] else ("--host", "-H")
    named = [
        (f"--host {text}", [name for name, _ in from_words(text)] or [""])
        for text in _values(words, *flags)
    ]
    for file in filter(os.path.isfile, _values(words, "--hostfile")):
        named.append((f"--hostfile {file}", [host for host, _ in from_file(Path(file))]))
    there = ", ".join(hosts) if len(hosts) < 3 else f"{hosts[0]} to {hosts[-1]}"
    for where, names in named:
        for name in names:
            if name not in hosts:
                lacks = f"this cluster has no {name}; it" if name else "names no host; this cluster"
                raise Unsupported(f"{where}: {lacks} has {there}")


def _values(words: Sequence[str], *flags: str) -> list[str]:
    """The values of an option, in the forms ``--flag value``, ``--flag=value`` and ``-Fvalue``."""
    values = list[str]()
    for at, word in enumerate(words):
        flag, joined, value = word.partition("=")
        if flag in flags:
            values.append(value if joined else "".join(words[at + 1 : at + 2]))
        elif word[:2] in flags:
            values.append(word[2:])
    return values


def of_busbar(command: Sequence[str]) -> list[str]:
    """The words after ``busbar``; empty for another program's command.

    ``python -m bench.qualify --bytes 1M`` is ``qualify --bytes 1M`` here.
    """
    if Path(command[0]).name == "busbar":
        return list(command[1:])
    module = "".join(command[2:3]) if tuple(command[1:2]) == ("-m",) else ""
    package, _, name = module.partition(".")
    return [*filter(None, [name]), *command[3:]] if package in ("bench", "busbar") else []


def starts_ranks(command: list[str]) -> bool:
    """True for launchers, and for ``busbar qualify`` and ``python -m bench.qualify`` and others."""
    words = of_busbar(command)
    return (words[0] if words else Path(command[0]).name) in (*STARTERS, *_ONCE)
