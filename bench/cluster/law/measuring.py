"""Measures all-reduces on more and more hosts of one cluster, and the ports of the first four."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

from bench.cluster.launchers import launching
from bench.cluster.law.growth import LawPoint, binary
from bench.cluster.running import Cluster
from busbar.errors import ReportError, Unavailable
from reports.readers.reading import read
from topology.model.topology import Topology
from topology.sources.gather import gather

#: The file of what was measured between pairs, and how many hosts that takes part.
MAP = "ports.json"
_FIT_HOSTS = 4
# A row that takes longer is stuck.
_ROW_S = "600"


class Sweep(NamedTuple):
    """The measurement: algorithms, sizes as options of the benchmark, iterations."""

    algorithms: Sequence[str]
    sizes: Sequence[str]
    iterations: int


def rows_file(hosts: int) -> str:
    """The file of the rows on so many hosts."""
    return f"hosts{hosts}.jsonl"


def ports(cluster: Cluster, folder: Path) -> None:
    """Measure latency and rate between the first hosts, into ``folder``. Raises Unavailable."""
    hosts = min(_FIT_HOSTS, cluster.network.hosts)
    options = ["--repetitions", "5", "-o", str(folder / MAP)]
    _ranks(cluster, hosts, ["topology", "measure", *options])


def measure(
    cluster: Cluster, hosts: int, sweep: Sweep, folder: Path, said: Callable[[str], None]
) -> None:
    """Measure all algorithms on the first hosts, one rank each, into ``folder``."""
    said(f"{hosts} hosts: {', '.join(sweep.algorithms)}")
    names = ",".join(binary(name, hosts) for name in sweep.algorithms)
    n = str(sweep.iterations)
    options = ["-A", names, *sweep.sizes, "-n", n, "--placement", "out", "-T", _ROW_S]
    out = folder / rows_file(hosts)
    out.unlink(missing_ok=True)
    _ranks(cluster, hosts, ["bench.allreduce", *options, "--transport", "mpi", "--out", str(out)])


def _ranks(cluster: Cluster, hosts: int, module: list[str]) -> None:
    words = launching([sys.executable, "-m", *module], hosts)
    ended = cluster.run(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    if ended.interrupted:
        raise KeyboardInterrupt
    if ended.status != 0:
        why = (ended.err.strip().splitlines() or [f"status {ended.status}"])[-1]
        raise Unavailable(f"{hosts} hosts: {module[0]}: {why}")


def saved(folder: Path) -> tuple[list[LawPoint], Topology]:
    """Read a folder: the points, and the map of the ports. Raises ReportError, ProbeError."""
    points = []
    for path in sorted(folder.glob("hosts*.jsonl")):
        for row in read(path).rows:
            if row.times_s and row.ranks and row.size:
                name = row.algorithm.partition(":")[0].partition("(")[0]
                times = row.times_s
                ends = median(times), min(times), max(times)
                points.append(LawPoint(name, row.ranks, row.size, *ends, row.wrong or 0))
    if not points:
        raise ReportError(f"{folder}: no rows of a law; measure with --out {folder}")
    return points, gather([str(folder / MAP)])[0]
