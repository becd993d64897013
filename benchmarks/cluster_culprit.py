"""How often `reports culprit` names the host with the slow link, and how often it is wrong.

    python benchmarks/cluster_culprit.py [--healthy 10] [--slow 10] [--busy 2]

Six emulated hosts (docs/cluster.md); each trial is a `topology measure` of its own. In the healthy
trials all links are alike. In the others, one host's link has a fraction of the others' rate; hosts
and fractions take turns. The line of a trial has the least, median and greatest rate of the slow
host's pairs and of the other pairs, the seconds that it took, and the accused hosts. ``--busy``
starts processes that never wait, which share the cores. Pairs are measured one at a time.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from bench.cluster.launchers import launching
from bench.cluster.network import Network
from bench.cluster.running import Cluster
from busbar.start import python
from reports.analysis.machine import read_pairs
from reports.analysis.stragglers import culprits

HOSTS, RATE = 6, 12.5e6
OPTIONS = ("--isolated", "--bytes", "16K", "--repetitions", "10")


@contextmanager
def neighbours(count: int) -> Iterator[None]:
    """Run ``count`` processes that never wait, until the context ends."""
    loop = [sys.executable, "-c", "while True: pass"]
    busy = [subprocess.Popen(loop) for _ in range(count)]
    try:
        yield
    finally:
        for one in busy:
            one.kill()
            one.wait()


def trial(slow: dict[int, float], margin: float) -> tuple[list[str], str]:
    """The hosts that a run accuses, and rates in MB/s of the slow host's pairs and of others."""
    with (
        tempfile.TemporaryDirectory() as folder,
        Cluster(Network(HOSTS, RATE, slow=slow)) as cluster,
    ):
        file = Path(folder) / "m.json"
        measure = python("topology", "measure", *OPTIONS, "-o", str(file))
        ended = cluster.run(
            launching(measure, HOSTS), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        if ended.status != 0:
            raise SystemExit(ended.err)
        matrices = read_pairs(file)
    rates = next(one.cells for one in matrices if one.name == "bandwidth")
    kinds = [
        [cell.value / 1e6 for pair, cell in rates.items() if bool({*pair} & {*slow}) == among]
        for among in (True, False)
    ]
    shown = ", ".join(f"{min(k):.2f} {median(k):.2f} {max(k):.2f}" for k in kinds if k)
    suspects = [one for one in culprits([], matrices, margin).suspects if one.sure]
    return [f"{one.name}, {'; '.join(one.evidence)}" for one in suspects], shown


def main() -> None:
    """Run the trials of both kinds and print the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--healthy", type=int, default=10, help="trials without a slow link")
    parser.add_argument("--slow", type=int, default=10, help="trials with one")
    parser.add_argument("--first", type=int, default=0, help="the slow trial to begin with")
    parser.add_argument("--shares", default="0.5,0.6,0.7,0.8,0.9", help="of the others' rate")
    parser.add_argument("--busy", type=int, default=0, help="processes that never wait")
    parser.add_argument("--margin", type=float, default=0.1, help="as of reports culprit")
    given = parser.parse_args()
    shares = [float(word) for word in given.shares.split(",")]
    with neighbours(given.busy):
        right = 0
        for _ in range(given.healthy):
            names = told("all links alike", {}, given.margin)
            right += not names
        if given.healthy:
            print(f"healthy: nobody was named in {right} of {given.healthy}", flush=True)
        right = 0
        for number in range(given.first, given.first + given.slow):
            host, share = number % HOSTS, shares[number % len(shares)]
            names = told(f"host{host} at {share:g}", {host: RATE * share}, given.margin)
            right += len(names) == 1 and f"(node host{host})," in names[0]
        if given.slow:
            print(f"slow: that host alone was named in {right} of {given.slow}", flush=True)


def told(what: str, slow: dict[int, float], margin: float) -> list[str]:
    """Run a trial and print a line on it. Returns the hosts that it accuses."""
    start = time.monotonic()
    names, rates = trial(slow, margin)
    took = time.monotonic() - start
    print(f"{what}: MB/s {rates}; {took:.0f} s; {' | '.join(names) or 'nobody'}", flush=True)
    return names


if __name__ == "__main__":
    main()
