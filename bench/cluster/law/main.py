"""``python -m bench.cluster law``: measure how collectives grow with the number of hosts."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path

from bench.cluster.arguments import network_options, planned
from bench.cluster.law import showing
from bench.cluster.law.growth import LIBRARY, compared, fit
from bench.cluster.law.measuring import FIT_HOSTS, Sweep, measure, ports, saved
from bench.cluster.network import MOST_HOSTS
from bench.cluster.running import Cluster, watched
from bench.options.argument_types import at_least
from busbar.arguments import Parser, program
from busbar.errors import Unsupported
from busbar.figures import checked as drawable
from busbar.terminal import print_note
from busbar.units import parse_ranks
from collectives.schedule import catalogue

_ALGORITHMS = "ring,ps,sharded_ps,tree,recursive_doubling,torus,hierarchical,library"
# A barrier has no bytes, and ranks of an all-to-all-v have unequal counts, which no law is of.
_WITHOUT_LAW = ("barrier", "alltoallv")


def main(argv: Sequence[str]) -> int:
    """Measure, or show what a folder holds; gives the exit status. Raises our errors."""
    args = _parser().parse_args(argv)
    if args.svg is not None:
        drawable(args.svg)
    counts = parse_ranks(args.hosts, MOST_HOSTS)
    if min(counts) < 2:
        raise Unsupported(f"--hosts {args.hosts}: a law is of 2 hosts or more")
    args.hosts = max(counts)
    network = planned(args)
    with ExitStack() as ends:
        folder = args.out or Path(ends.enter_context(tempfile.TemporaryDirectory()))
        if not args.show:
            sizes = ["-b", args.minbytes, "-e", args.maxbytes or args.minbytes, "-f", "4"]
            sweep = Sweep(chosen(args.collective, args.algorithm), sizes, args.iters)
            folder.mkdir(parents=True, exist_ok=True)
            with Cluster(network) as cluster, watched(cluster):
                print_note("ports of the first hosts")
                ports(cluster, folder)
                for hosts in counts:
                    measure(cluster, hosts, sweep, folder, print_note)
        points, measured = saved(folder)
        found = fit(measured, network.burst(network.rate))
        rows = compared(points, found, network.rate)
        print("\n".join(showing.lines(rows, found, network.rate)))
        print("\n".join(showing.errors(rows, FIT_HOSTS)))
        if args.svg is not None:
            showing.draw(rows, network.rate, args.svg)
    return 0


def chosen(collectives: str, algorithms: str | None) -> dict[str, list[str]]:
    """Algorithms by collective, from the options. Raises Unsupported for an unknown name."""
    known = [
        name
        for name in catalogue.collectives()
        if name not in _WITHOUT_LAW and find_spec(f"bench.{name}")
    ]
    names = known if collectives == "all" else collectives.split(",")
    for name in names:
        if name not in known:
            raise Unsupported(f"--collective {name[:40]}: there is a law of {', '.join(known)}")
    if algorithms is None:
        algorithms = _ALGORITHMS if names == ["allreduce"] else "all"
    if algorithms == "all":
        return {name: catalogue.algorithms(name) for name in names}
    wanted = algorithms.split(",")
    there = {LIBRARY}.union(*map(catalogue.algorithms, names), *map(catalogue.compositions, names))
    for algorithm in wanted:
        if algorithm.partition(":")[0] not in there:
            raise Unsupported(f"--algorithm {algorithm[:40]}: none of {', '.join(names)} has it")
    return dict.fromkeys(names, wanted)


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog=f"{program('bench.cluster')} law",
        description="Measure collectives on more and more hosts with a rank each, and show them"
        " beside the textbook's law and the simulator, which knows the ports of the first four"
        " hosts only.",
    )
    add = parser.group()
    add("--hosts P,P…", "default 2,4,8,16", default="2,4,8,16")
    network_options(add)
    said = "collectives, or all (default allreduce)"
    add("-c --collective NAMES", said, default="allreduce")
    said = f"algorithms, or all (default for allreduce {_ALGORITHMS}, for others all)"
    add("-A --algorithm NAMES", said)
    add("-b --minbytes SIZE", "smallest size (default 1M)", default="1M")
    add("-e --maxbytes SIZE", "largest size, by factors of 4 (default: one)")
    said = "iterations of a row (default 6)"
    add("-n --iters N", said, type=at_least(1, "iterations"), default=6)
    add("--out DIR", "keep the records and the measured map in DIR", type=Path)
    add("--show", "measure nothing; show the records in --out DIR", action="store_true")
    add("--svg FILE", "draw times over hosts at the largest size", type=Path)
    return parser
