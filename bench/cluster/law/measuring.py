"""Measures collectives on more and more hosts of one cluster, and the ports of four hosts."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from statistics import median
from typing import NamedTuple

from bench.cluster.launchers import launching
from bench.cluster.law.growth import LawPoint, binary, why_not
from bench.cluster.running import Cluster
from busbar.errors import ReportError, Unavailable
from busbar.start import python
from busbar.units import format_size_argument
from reports.readers.reading import read
from topology.model.topology import Topology
from topology.sources.gather import gather

#: Number of hosts whose ports are measured.
FIT_HOSTS = 4
_MAP = "ports.json"
# A row that takes longer is stuck (seconds).
_ROW_S = "600"
_OVER_MPI = ("--transport", "mpi", "--out")
#: A row is disturbed if its slowest iteration takes more than so many times its fastest.
STEADY = 1.2
_SECONDS = attrgetter("seconds")


class Sweep(NamedTuple):
    """A measurement: algorithms by collective, the benchmark's options for sizes, iterations."""

    algorithms: Mapping[str, Sequence[str]]
    sizes: Sequence[str]
    iterations: int


def ports(cluster: Cluster, folder: Path) -> None:
    """Measure latency and rate between the first hosts, into ``folder``. Raises Unavailable."""
    hosts = min(FIT_HOSTS, cluster.network.hosts)
    options = ["--repetitions", "5", "-o", str(folder / _MAP)]
    _ranks(cluster, hosts, ["topology", "measure", *options])


def measure(
    cluster: Cluster, hosts: int, sweep: Sweep, folder: Path, said: Callable[[str], None]
) -> None:
    """Measure all algorithms on the first hosts, one rank each, into ``folder``.

    Rows with disturbed iterations are measured a second time, in launches of their own. ``said``
    gets the progress as text.
    """
    for stale in folder.glob(f"hosts{hosts}[-.]*"):
        stale.unlink()
    for collective, algorithms in sweep.algorithms.items():
        reasons = {name: why_not(collective, name, hosts) for name in algorithms}
        for reason in filter(None, reasons.values()):
            said(f"{hosts} hosts: left out: {reason}")
        fitting = [name for name in algorithms if not reasons[name]]
        if fitting:
            _rows(cluster, hosts, (collective, fitting), sweep, folder, said)


def _rows(
    cluster: Cluster,
    hosts: int,
    chosen: tuple[str, Sequence[str]],
    sweep: Sweep,
    folder: Path,
    said: Callable[[str], None],
) -> None:
    collective, algorithms = chosen

    def rows(file: str, algorithms: Sequence[str], sizes: Sequence[str]) -> list[LawPoint]:
        names = ",".join(
            binary(name, hosts) if collective == "allreduce" else name for name in algorithms
        )
        (folder / file).unlink(missing_ok=True)
        n, out = str(sweep.iterations), str(folder / file)
        options = ["-A", names, *sizes, "-n", n, "--placement", "out", "-T", _ROW_S]
        _ranks(cluster, hosts, [f"bench.{collective}", *options, *_OVER_MPI, out])
        return _points(folder / file)

    said(f"{hosts} hosts: {collective}: {', '.join(algorithms)}")
    found = rows(f"hosts{hosts}.{collective}.jsonl", algorithms, sweep.sizes)
    for size, names in unsteady(found).items():
        said(f"{hosts} hosts, {format_size_argument(size)}, again: {', '.join(names)}")
        again = [name for name in algorithms if name.partition(":")[0] in names]
        rows(f"hosts{hosts}.{collective}-{size}.jsonl", again, ["-b", str(size), "-e", str(size)])


def unsteady(points: Sequence[LawPoint]) -> dict[int, list[str]]:
    """By size: the algorithms whose slowest iteration took over `STEADY` times their fastest."""
    found: dict[int, list[str]] = {}
    for point in points:
        if point.most > STEADY * point.least:
            found.setdefault(point.size, []).append(point.algorithm)
    return found


def _ranks(cluster: Cluster, hosts: int, module: list[str]) -> None:
    words = launching(python(*module), hosts)
    ended = cluster.run(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    if ended.interrupted:
        raise KeyboardInterrupt
    if ended.status != 0:
        why = (ended.err.strip().splitlines() or [f"status {ended.status}"])[-1]
        raise Unavailable(f"{hosts} hosts: {module[0]}: {why}")


def saved(folder: Path) -> tuple[list[LawPoint], Topology]:
    """Read a folder: the points, and the map of the ports. Raises ReportError or ProbeError.

    Other work only makes a row slower, so the faster of two launches is the point.
    """
    found: dict[tuple[str, str, int, int], LawPoint] = {}
    # The first launches have all algorithms, in the table's order.
    for path in sorted(folder.glob("hosts*.jsonl"), key=lambda path: ("-" in path.stem, path.stem)):
        for point in _points(path):
            key = point.collective, point.algorithm, point.hosts, point.size
            if key in found:
                fast, slow = sorted((point, found[key]), key=_SECONDS)
                point = fast._replace(slower=slow.seconds)
            found[key] = point
    if not found:
        raise ReportError(f"{folder}: no rows of a law; measure with --out {folder}")
    return list(found.values()), gather([str(folder / _MAP)])[0]


def _points(path: Path) -> list[LawPoint]:
    points = []
    for row in read(path).rows:
        if row.times_s and row.ranks and row.size:
            name = row.algorithm.partition(":")[0].partition("(")[0]
            times = row.times_s
            ends = median(times), min(times), max(times)
            wrong, of = row.wrong or 0, row.collective
            points.append(
                LawPoint(name, row.ranks, row.size, *ends, wrong, collective=of or "allreduce")
            )
    return points
