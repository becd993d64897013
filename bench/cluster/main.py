"""Run a command over an emulated cluster: from the command line to the exit status."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from bench.cluster import use
from bench.cluster.arguments import ClusterOptions
from bench.cluster.commands import making, opening, raised
from bench.cluster.launchers import check_hosts, launching, of_busbar
from bench.cluster.network import Network
from bench.cluster.running import Cluster, privileges, watched
from bench.cluster.text import Down
from bench.cluster.use import picture
from bench.timing.clock import VARIABLE
from busbar.commands import Command, CommandTable
from busbar.files import check, write
from busbar.host import PORT_RATE
from busbar.process import load
from busbar.terminal import print_note
from busbar.units import format_count, format_link_rate


class ClusterCommand(ClusterOptions, Command):
    """Emulate a cluster on this machine and run a command over it.

    It has hosts with names and links with a rate. It needs no privilege, thanks to user
    namespaces, and leaves nothing behind.
    """

    USAGE = "%(prog)s [options] -- COMMAND …\n       %(prog)s law [options]"

    EPILOG = (
        "COMMAND runs on every rank, unless it starts ranks itself (mpirun, srun, qualify, --once)."
        " See docs/cluster.md."
    )

    def run(self) -> int:
        """Run the command, or print what would be done."""
        if self.svg is not None:
            check(self.svg)
        if self.dry_run:
            print("\n".join(plan(self)))
        if self.command and not self.dry_run:
            return _run(self)
        if self.svg is not None:
            write(self.svg, picture(self.network).encode())
        return 0


def plan(wanted: ClusterOptions) -> Iterator[str]:
    """The lines of ``--dry-run``: the planned network, and a script that makes it."""
    network = wanted.network
    yield from network_lines(network, wanted.ranks_per_host)
    for down in wanted.down:
        yield f"#   {network.name(down.host)} loses its link after {down.after:g} s"
    yield shlex.join(opening(privileges()[0])) + "   # and in it:"
    for command in making(network, wanted.ranks_per_host, wanted.faults):
        line = shlex.join(command.words)
        yield f"{line} <<'.'\n{command.text}." if command.text else line
    if wanted.clocks is not None:
        yield f"# {VARIABLE}={shlex.quote(_environment(wanted)[VARIABLE])}"
    if wanted.command:
        yield shlex.join(_started(wanted))


def network_lines(network: Network, ranks_per_host: int = 1) -> Iterator[str]:
    """The hosts, links and rates of a planned network, as comments."""
    each = format_count(ranks_per_host, "rank")
    yield f"# {format_count(network.hosts, 'host')}, {each} each"
    for cable in network.cables():
        ends = f"{cable.device} to spine"
        if cable.host is not None:
            ends = f"{cable.device} {network.address(cable.host)} to {network.leaf(cable.rack)}"
        yield f"#   {ends}: {cable.rates}"
    for (a, b), rate in network.pairs.items():
        between = f"{network.name(a)} and {network.name(b)}"
        yield f"#   between {between}: at most {format_link_rate(rate)} each way"


def _started(wanted: ClusterOptions) -> list[str]:
    ranks = wanted.network.hosts * wanted.ranks_per_host
    command, network = list(wanted.command), wanted.network
    names = [network.name(host) for host in range(network.hosts)]
    if wanted.once:
        check_hosts(command, names)
        return command
    return launching(command, ranks, names)


def _check_command(command: Sequence[str]) -> None:
    """Check the options of a command of this Busbar, before hosts are made. Raises Unsupported."""
    own = Path(sys.prefix, "bin")
    if Path(shutil.which(command[0]) or own / command[0]).parent == own:
        load("busbar.cli:check")(of_busbar(command))


def _run(wanted: ClusterOptions) -> int:
    _check_command(wanted.command)
    words, network = _started(wanted), wanted.network
    with Cluster(network, wanted.ranks_per_host, wanted.faults) as cluster, watched(cluster):
        before, start = _counted(cluster), time.monotonic()
        with _falling(cluster, wanted.down):
            ended = cluster.run(words, _environment(wanted))
        if ended.interrupted:
            return 128 + ended.interrupted
        seconds = time.monotonic() - start
        uses = use.used(network, before, _counted(cluster), seconds)
        print_note(use.said(uses, seconds))
        if wanted.svg is not None:
            write(wanted.svg, picture(network, uses).encode())
    return ended.status


def _environment(wanted: ClusterOptions) -> dict[str, str]:
    """The present environment, with the rate of ports and the emulated errors of hosts' clocks."""
    network = wanted.network
    env = {name: value for name, value in os.environ.items() if name != PORT_RATE}
    if network.port_rate is not None:
        env[PORT_RATE] = repr(network.port_rate)
    if wanted.clocks is not None:
        names = [network.name(host) for host in range(network.hosts)]
        env[VARIABLE] = wanted.clocks.of(names, time.perf_counter())
    return env


def _counted(cluster: Cluster) -> dict[str, tuple[int, int]]:
    return use.counters(cluster.call(use.COUNTERS).stdout)


@contextmanager
def _falling(cluster: Cluster, downs: Sequence[Down]) -> Iterator[None]:
    """Take links down, and up again, at their times while the context is open."""
    for down in downs:
        if not down.after:
            _raise(cluster, down.host, False)
    timers = [_later(down.after, cluster, down.host, False) for down in downs if down.after]
    timers += [
        _later(down.after + down.lasting, cluster, down.host, True)
        for down in downs
        if down.lasting is not None
    ]
    for timer in timers:
        timer.start()
    try:
        yield
    finally:
        for timer in timers:
            timer.cancel()
        for timer in timers:
            timer.join()


def _later(after: float, cluster: Cluster, host: int, up: bool) -> threading.Timer:
    return threading.Timer(after, partial(_raise, cluster, host, up))


def _raise(cluster: Cluster, host: int, up: bool) -> None:
    cluster.call(raised(cluster.network, host, up).words)
    print_note(f"{Network.name(host)}: its link {'is back' if up else 'went away'}")


TABLE = CommandTable(
    "Emulate a cluster on this machine.",
    "bench.cluster.",
    {"law": "law:LawCommand"},
    default="main:ClusterCommand",
)
