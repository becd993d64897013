"""The options of ``busbar cluster``: of the network, then of the command on it."""

from __future__ import annotations

import shutil
from functools import cached_property
from pathlib import Path

from bench.cluster import text
from bench.cluster.faults import Faults, OtherFile, RankSignal, Shell, Variable
from bench.cluster.network import MOST_HOSTS, Network
from busbar.arguments import program, whole
from busbar.errors import Unsupported
from busbar.options import CommandWords, OptionGroup, Self, option, switch
from busbar.units import MOST_RANKS
from collectives.schedule.catalogue import collectives

_HOSTS = 4
#: Bytes/s of a host's link unless ``--rate`` says otherwise.
RATE = 12.5e6


class NetworkOptions(OptionGroup):
    """The options that describe the network."""

    rate: float = option(
        "--rate RATE  rate of a host's link, each way (default 100Mbit)", RATE, text.rate
    )
    racks: text.Racks | None = option(
        "--racks RxH[:taper=T]  R racks of H hosts each under a spine; a rack's uplink has 1/T of"
        " its hosts' rates",
        parse=text.racks,
    )
    slow: tuple[text.Slow, ...] = option(
        "--slow HOST:RATE[:out|:in]  give a host's link another rate, or only what it sends (out)"
        " or receives (in); repeatable",
        (),
        text.slow,
        action="append",
    )
    uplink: tuple[tuple[int, float], ...] = option(
        "--uplink RACK:RATE  give a rack's uplink another rate; repeatable",
        (),
        text.uplink,
        action="append",
    )
    pair: tuple[tuple[tuple[int, int], float], ...] = option(
        "--pair HOST-HOST:RATE  limit the rate between two hosts, each way; repeatable",
        (),
        text.pair,
        action="append",
    )
    latency: float = option(
        "--latency TIME  delay of everything that a host sends, such as 50us; needs the kernel's"
        " netem",
        0.0,
        text.latency,
    )
    loss: float = option(
        "--loss P%  share of packets that are lost, such as 0.1%; needs the kernel's netem",
        0.0,
        text.loss,
    )
    mtu: int = option("--mtu BYTES  largest packet", 9000, whole(1280, "bytes a packet", 65535))
    buffer: int = option(
        "--buffer KIB  queue of a port before it drops packets (default 65536 KiB: nothing is"
        " lost)",
        1 << 16,
        whole(16, "KiB", 1 << 20),
    )

    def plan(self, count: int | None) -> Network:
        """The network with ``count`` hosts, or with racks. Raises Unsupported if they differ."""
        racks = self.racks
        hosts = count or (racks.racks * racks.hosts if racks else _HOSTS)
        if racks and hosts != racks.racks * racks.hosts:
            raise Unsupported(
                f"--hosts {hosts} are not --racks {racks.racks}x{racks.hosts}; leave out --hosts"
            )
        return Network(
            hosts=hosts,
            rate=self.rate,
            per_rack=racks.hosts if racks else 0,
            taper=racks.taper if racks else 1.0,
            slow={one.host: one.rate for one in self.slow if not one.way},
            slow_out={one.host: one.rate for one in self.slow if one.way == "out"},
            slow_in={one.host: one.rate for one in self.slow if one.way == "in"},
            uplinks=dict(self.uplink),
            pairs=dict(self.pair),
            latency=self.latency,
            loss=self.loss,
            mtu=self.mtu,
            buffer=self.buffer << 10,
        )


class ClusterOptions(CommandWords, NetworkOptions):
    """The options before ``--`` and the ``command`` after it."""

    PREFIX = "busbar "
    hosts: int | None = option(
        f"--hosts H  number of hosts (default {_HOSTS}, or as many as --racks say)",
        parse=whole(1, "hosts", MOST_HOSTS),
    )
    ranks_per_host: int = option(
        "--ranks-per-host R  ranks that launchers put on a host", 1, whole(1, "ranks", MOST_RANKS)
    )
    down: tuple[text.Down, ...] = option(
        "--down HOST@TIME[+TIME]  take a host's link down at this time after the start, and up"
        " again after +TIME; repeatable",
        (),
        text.down,
        action="append",
    )
    shell: tuple[Shell, ...] = option(
        "--shell HOST:TIME|hang|refuse  let a host's remote shell answer after this time, never, or"
        " refuse; repeatable",
        (),
        text.shell,
        action="append",
    )
    env: tuple[Variable, ...] = option(
        "--env HOST:NAME=VALUE  set a variable in what a host's remote shell starts; repeatable",
        (),
        text.variable,
        action="append",
    )
    file: tuple[OtherFile, ...] = option(
        "--file HOST:PATH=FILE  show FILE in place of PATH to what a host's remote shell starts;"
        " repeatable",
        (),
        text.other_file,
        action="append",
    )
    crash: tuple[RankSignal, ...] = option(
        "--crash HOST[@TIME]  let a host's ranks crash (SIGSEGV) this long after their start, or"
        " at once; repeatable",
        (),
        text.crash,
        action="append",
    )
    stop: tuple[RankSignal, ...] = option(
        "--stop HOST@TIME  stop a host's ranks (SIGSTOP) this long after their start; repeatable",
        (),
        text.stop,
        action="append",
    )
    clocks: text.Skews | None = option(
        "--clocks TIME:PPM  let the hosts' clocks be wrong by up to this offset and drift, such as"
        " 3s:100ppm",
        parse=text.clocks,
    )
    once: bool = switch("--once  start COMMAND once, outside the hosts; it starts its ranks itself")
    dry_run: bool = switch(
        "--dry-run  print the plan and the commands that would make it, and exit"
    )
    svg: Path | None = option("--svg FILE  draw the network, links coloured by how busy they were")

    @cached_property
    def network(self) -> Network:
        """The network of these options. Raises Unsupported for options that do not fit together."""
        return self.plan(self.hosts)

    @property
    def faults(self) -> Faults:
        """The faults of hosts, except those of links."""
        return Faults((*self.env, *self.file, *self.shell), (*self.crash, *self.stop))

    def checked(self) -> Self:
        """Check these options. Raises Unsupported for unknown hosts, or without a command."""
        for option_, faults in (
            ("--down", self.down),
            ("--shell", self.shell),
            ("--env", self.env),
            ("--file", self.file),
            ("--crash", self.crash),
            ("--stop", self.stop),
        ):
            for fault in faults:
                self.network.check(fault.host, option_)
        if not self.command and not self.dry_run and self.svg is None:
            own = program("bench.cluster")
            raise Unsupported(f"no command; write it after --, as {own} --hosts 4 -- COMMAND")
        _ = self.network
        name = self.command[0] if self.command else ""
        if name in collectives() and shutil.which(name) is None:
            raise Unsupported(f"-- {name}: no program; did you mean -- busbar {name}?")
        return self
