"""``python -m bench.cluster law``: measure how collectives grow with the number of hosts."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path

from bench.cluster.arguments import NetworkOptions
from bench.cluster.law import showing
from bench.cluster.law.growth import LIBRARY, compared, fit
from bench.cluster.law.measuring import FIT_HOSTS, Sweep, measure, ports, saved
from bench.cluster.network import MOST_HOSTS
from bench.cluster.running import Cluster, watched
from bench.options.argument_types import at_least
from busbar.commands import Command
from busbar.errors import Unsupported
from busbar.figures import checked as drawable
from busbar.options import option, switch
from busbar.terminal import print_note
from busbar.units import parse_ranks
from collectives.schedule import catalogue

_ALGORITHMS = "ring,ps,sharded_ps,tree,recursive_doubling,torus,hierarchical,library"
# A barrier has no bytes, and the ranks of an all-to-all-v have unequal counts: no textbook law.
_WITHOUT_LAW = ("barrier", "alltoallv")


class LawCommand(NetworkOptions, Command):
    """Measure collectives on more and more hosts with one rank each.

    The table also has the textbook's law and the simulator, which uses only the measured ports of
    the first four hosts.
    """

    hosts: str = option("--hosts P,P…", "2,4,8,16")
    collective: str = option("-c --collective NAMES  collectives, or all", "allreduce")
    algorithm: str | None = option(
        "-A --algorithm NAMES  algorithms, or all (default for allreduce"
        f" {_ALGORITHMS}, for others all)"
    )
    minbytes: str = option("-b --minbytes SIZE  smallest size", "1M")
    maxbytes: str | None = option(
        "-e --maxbytes SIZE  largest size, by factors of 4 (default: one)"
    )
    iters: int = option("-n --iters N  iterations of a row", 6, at_least(1, "iterations"))
    out: Path | None = option("--out DIR  keep the records and the measured map in DIR")
    show: bool = switch("--show  measure nothing; show the records in --out DIR")
    svg: Path | None = option("--svg FILE  draw times over hosts at the largest size")

    def run(self) -> int:
        """Measure, or show the records in a folder."""
        if self.svg is not None:
            drawable(self.svg)
        counts = parse_ranks(self.hosts, MOST_HOSTS)
        if min(counts) < 2:
            raise Unsupported(f"--hosts {self.hosts}: a law is of 2 hosts or more")
        network = self.plan(max(counts))
        with ExitStack() as ends:
            folder = self.out or Path(ends.enter_context(tempfile.TemporaryDirectory()))
            if not self.show:
                sizes = ["-b", self.minbytes, "-e", self.maxbytes or self.minbytes, "-f", "4"]
                sweep = Sweep(chosen(self.collective, self.algorithm), sizes, self.iters)
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
            if self.svg is not None:
                showing.draw(rows, network.rate, self.svg)
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
