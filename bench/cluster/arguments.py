"""The command line of ``python -m bench.cluster``: options of the network, then a command."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from bench.cluster import text
from bench.cluster.network import MOST_HOSTS, Network
from busbar.arguments import Add, Parser, program, whole
from busbar.errors import Unsupported
from busbar.units import MOST_RANKS

_HOSTS = 4


class Asked(argparse.Namespace):
    """The options of a command line."""

    network: Network
    ranks_per_host: int
    once: bool
    clocks: text.Skews | None
    down: list[text.Down]
    dry_run: bool
    svg: Path | None
    command: list[str]


def asked(argv: Sequence[str]) -> Asked:
    """The options before ``--`` and the command after it. Raises Unsupported."""
    mine, command = list(argv), []
    if "--" in mine:
        at = mine.index("--")
        mine, command = mine[:at], mine[at + 1 :]
    args = _parser().parse_args(mine, Asked(command=command))
    args.network = planned(args)
    for one in args.down:
        args.network.check(one.host, "--down")
    if not command and not args.dry_run and args.svg is None:
        raise Unsupported(
            f"no command; write it after --, as {program('bench.cluster')} --hosts 4 -- COMMAND"
        )
    return args


def planned(args: argparse.Namespace) -> Network:
    """The network that `network_options` describe. Raises Unsupported."""
    racks: text.Racks | None = args.racks
    hosts = args.hosts or (racks.racks * racks.hosts if racks else _HOSTS)
    if racks and hosts != racks.racks * racks.hosts:
        raise Unsupported(
            f"--hosts {hosts} are not --racks {racks.racks}x{racks.hosts}; leave out --hosts"
        )
    return Network(
        hosts=hosts,
        rate=args.rate,
        per_rack=racks.hosts if racks else 0,
        taper=racks.taper if racks else 1.0,
        slow=dict(args.slow),
        latency=args.latency,
        loss=args.loss,
        mtu=args.mtu,
        buffer=args.buffer << 10,
    )


def network_options(add: Add) -> None:
    """Add what describes the network."""
    said = "rate of a host's link, each way (default 100Mbit)"
    add("--rate RATE", said, type=text.rate, default=12.5e6)
    said = "R racks of H hosts each under a spine; a rack's uplink has 1/T of its hosts' rates"
    add("--racks RxH[:taper=T]", said, type=text.racks)
    said = "give a host's link another rate; repeatable"
    add("--slow HOST:RATE", said, type=text.slow, action="append", default=[])
    said = "delay of everything that a host sends, such as 50us; needs the kernel's netem"
    add("--latency TIME", said, type=text.latency, default=0.0)
    said = "share of packets that are lost, such as 0.1%%; needs the kernel's netem"
    add("--loss P%", said, type=text.loss, default=0.0)
    frame = whole(1280, "bytes a packet", 65535)
    add("--mtu BYTES", "largest packet (default 9000)", type=frame, default=9000)
    said = "queue of a port before it drops packets (default 65536 KiB: nothing is lost)"
    add("--buffer KIB", said, type=whole(16, "KiB", 1 << 20), default=1 << 16)


def _parser() -> argparse.ArgumentParser:
    own = program("bench.cluster")
    parser = Parser(
        prog=own,
        usage=f"{own} [options] -- COMMAND …\n       {own} law [options]",
        description="Emulate a cluster on this machine and run a command over it: hosts with names,"
        " links with a rate. Without privilege it uses user namespaces; nothing is left.",
        epilog="COMMAND runs on every rank, unless it starts ranks itself (mpirun, srun, --once)."
        " See docs/cluster.md.",
    )
    add = parser.group()
    said = f"how many (default {_HOSTS}, or as many as --racks say)"
    add("--hosts H", said, type=whole(1, "hosts", MOST_HOSTS))
    said = "ranks that launchers put on a host (default 1)"
    add("--ranks-per-host R", said, type=whole(1, "ranks", MOST_RANKS), default=1)
    network_options(add)
    said = (
        "take a host's link down at this time after the start, and up again after +TIME; repeatable"
    )
    add("--down HOST@TIME[+TIME]", said, type=text.down, action="append", default=[])
    said = "let the hosts' clocks be wrong by up to this offset and drift, such as 3s:100ppm"
    add("--clocks TIME:PPM", said, type=text.clocks)
    said = "start COMMAND once, outside the hosts; it starts its ranks itself"
    add("--once", said, action="store_true")
    said = "print the plan and the commands that would make it, and exit"
    add("--dry-run", said, action="store_true")
    add("--svg FILE", "draw the network, links coloured by how busy they were", type=Path)
    return parser
