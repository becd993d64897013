"""The command line of ``python -m bench.cluster``: options of the network, then a command."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from bench.cluster import text
from bench.cluster.network import MOST_HOSTS, Network
from busbar.arguments import Parser, program, whole
from busbar.errors import Unsupported
from busbar.sizes import MOST_RANKS

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
        args.network.known(one.host, "--down")
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
        latency=args.latency or 0.0,
        loss=args.loss or 0.0,
        mtu=args.mtu,
        buffer=args.buffer << 10,
    )


def network_options(parser: argparse.ArgumentParser) -> None:
    """Add what describes the network."""
    add = parser.add_argument
    add("--rate", type=text.rate, default=12.5e6, metavar="RATE",
        help="rate of a host's link, each way (default 100Mbit)")  # fmt: skip
    add("--racks", type=text.racks, metavar="RxH[:taper=T]",
        help="R racks of H hosts each under a spine; a rack's uplink has 1/T of its hosts'"
        " rates")  # fmt: skip
    add("--slow", type=text.slow, action="append", default=[], metavar="HOST:RATE",
        help="give a host's link another rate; repeatable")  # fmt: skip
    add("--latency", type=text.latency, metavar="TIME",
        help="delay of everything that a host sends, such as 50us; needs the kernel's"
        " netem")  # fmt: skip
    add("--loss", type=text.loss, metavar="P%",
        help="share of packets that are lost, such as 0.1%%; needs the kernel's netem")  # fmt: skip
    add("--mtu", type=whole(1280, "bytes a packet", 65535), default=9000, metavar="BYTES",
        help="largest packet (default 9000)")  # fmt: skip
    add(
        "--buffer",
        type=whole(16, "KiB", 1 << 20),
        default=1 << 16,
        metavar="KIB",
        help="queue of a port before it drops packets (default 65536 KiB: nothing is lost)",
    )


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
    add = parser.add_argument
    add("--hosts", type=whole(1, "hosts", MOST_HOSTS), metavar="H",
        help=f"how many (default {_HOSTS}, or as many as --racks say)")  # fmt: skip
    add("--ranks-per-host", type=whole(1, "ranks", MOST_RANKS), default=1, metavar="R",
        help="ranks that launchers put on a host (default 1)")  # fmt: skip
    network_options(parser)
    add(
        "--down",
        type=text.down,
        action="append",
        default=[],
        metavar="HOST@TIME[+TIME]",
        help="take a host's link down at this time after the start, and up again after +TIME;"
        " repeatable",
    )
    add(
        "--clocks",
        type=text.clocks,
        metavar="TIME:PPM",
        help="let the hosts' clocks be wrong by up to this offset and drift, such as 3s:100ppm",
    )
    add("--once", action="store_true",
        help="start COMMAND once, outside the hosts; it starts its ranks itself")  # fmt: skip
    add("--dry-run", action="store_true",
        help="print the plan and the commands that would make it, and exit")  # fmt: skip
    add("--svg", type=Path, metavar="FILE",
        help="draw the network, links coloured by how busy they were")  # fmt: skip
    return parser
