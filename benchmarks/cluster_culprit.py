"""How often `reports culprit` names the host whose link is slow, and anybody where all are well.

    python benchmarks/cluster_culprit.py [--trials 10] [--busy 2] [--slow 0.5,0.6,0.7,0.8,0.9]

Six emulated hosts (docs/cluster.md), each trial a `topology measure` of its own. In the trials of
the first kind all links are alike. In those of the second the link of one host has a share of the
others' rate: shares and hosts take turns. Every second a line with who was named, the rates found
and the seconds taken. ``--busy``: processes of another program that never wait, on this machine's
cores meanwhile. Pairs are measured one at a time: the hosts share the cores.
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
from reports.analysis.machine import read_pairs
from reports.analysis.stragglers import culprits

HOSTS, RATE = 6, 12.5e6
OPTIONS = ("--isolated", "--bytes", "16K", "--repetitions", "10")


@contextmanager
def neighbours(count: int) -> Iterator[None]:
    """While this is open, so many processes never wait."""
    loop = [sys.executable, "-c", "while True: pass"]
    busy = [subprocess.Popen(loop) for _ in range(count)]
    try:
        yield
    finally:
        for one in busy:
            one.kill()
            one.wait()


def trial(slow: dict[int, float], margin: float) -> tuple[list[str], str]:
    """Whom a run accuses, and the rates in MB/s: of the slow host's pairs, and of the others'."""
    with (
        tempfile.TemporaryDirectory() as folder,
        Cluster(Network(HOSTS, RATE, slow=slow)) as cluster,
    ):
        file = Path(folder) / "m.json"
        measure = [sys.executable, "-m", "topology", "measure", *OPTIONS, "-o", str(file)]
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
    """Run the trials of both kinds and print what came out."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=10, help="of each kind")
    parser.add_argument("--busy", type=int, default=0, help="processes that never wait")
    parser.add_argument("--slow", default="0.5,0.6,0.7,0.8,0.9", help="shares; empty: only healthy")
    parser.add_argument("--margin", type=float, default=0.1, help="of reports culprit")
    given = parser.parse_args()
    shares = [float(word) for word in given.slow.split(",") if word]
    with neighbours(given.busy):
        for kind in ("healthy", "slow"):
            right = 0
            for number in range(given.trials if kind == "healthy" or shares else 0):
                slow = {}
                if kind == "slow":
                    slow = {number % HOSTS: RATE * shares[number % len(shares)]}
                start = time.monotonic()
                names, rates = trial(slow, given.margin)
                host = next((f"host{one}" for one in slow), "")
                right += not names if not host else len(names) == 1 and f"node {host}" in names[0]
                what = f"{host} at {slow[number % HOSTS] / RATE:g}" if slow else "all alike"
                seconds = time.monotonic() - start
                said = "; ".join(names) or "nobody"
                print(f"{what}: {said} (MB/s {rates}; {seconds:.0f} s)", flush=True)
            said = "nobody was named" if kind == "healthy" else "the slow host alone was named"
            print(f"{kind}: {said} in {right} of {given.trials}", flush=True)


if __name__ == "__main__":
    main()
