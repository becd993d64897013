"""How often `reports culprit` names the host whose link is slow, and anybody where all are well.

    python benchmarks/cluster_culprit.py [TRIALS]

Six emulated hosts (docs/cluster.md), each trial a `topology measure` of its own. In half of the
trials the link of host 3 has a fifth of the others' rate. One pair at a time: hosts share this
machine's cores.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from bench.cluster.launchers import launching
from bench.cluster.network import Network
from bench.cluster.running import Cluster
from busbar.start import python
from reports.analysis.machine import read_pairs
from reports.analysis.stragglers import culprits

HOSTS, RATE, SLOW = 6, 12.5e6, 3
OPTIONS = ("--isolated", "--bytes", "16K", "--repetitions", "10")


def named(cluster: Cluster, file: Path) -> list[str]:
    """Whom a trial accuses."""
    measure = python("topology", "measure", *OPTIONS, "-o", str(file))
    ended = cluster.run(
        launching(measure, HOSTS), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    if ended.status != 0:
        raise SystemExit(ended.err)
    return [one.name for one in culprits([], read_pairs(file)).suspects if one.sure]


def main() -> None:
    """Run the trials of both kinds and print what came out."""
    trials = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    with tempfile.TemporaryDirectory() as folder:
        for slow in ({}, {SLOW: RATE / 5}):
            with Cluster(Network(HOSTS, RATE, slow=slow)) as cluster:
                found = [named(cluster, Path(folder) / "m.json") for _ in range(trials)]
            right = sum(len(one) == 1 and f"host{SLOW}" in one[0] for one in found)
            what = f"host{SLOW} at a fifth of the rate" if slow else "all links alike"
            print(f"{what}: somebody named in {sum(map(bool, found))} of {trials} runs,", end=" ")
            print(f"host{SLOW} alone in {right}", flush=True)
            for names in found:
                if names and not (slow and len(names) == 1):
                    print("  ", "; ".join(names))


if __name__ == "__main__":
    main()
