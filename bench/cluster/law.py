"""``busbar cluster law``: how collectives grow with the number of hosts.

Measured on the hosts of one cluster, beside the textbook's law and the simulator.
"""

from __future__ import annotations

import shlex
import subprocess
import tempfile
from argparse import SUPPRESS
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from importlib.util import find_spec
from math import isnan, log, nan
from operator import attrgetter
from pathlib import Path
from statistics import linear_regression, median
from typing import Any, NamedTuple

from bench.cluster.arguments import NetworkOptions
from bench.cluster.commands import SOCKET
from bench.cluster.launchers import launching
from bench.cluster.network import MOST_HOSTS
from bench.cluster.running import Cluster, watched
from bench.options.argument_types import at_least
from bench.options.nccl_flags import only
from busbar.arguments import Parser
from busbar.commands import Command
from busbar.errors import ReportError, StoreError, Unavailable, Unsupported
from busbar.files import check_figure as checked
from busbar.files import save_figure as save
from busbar.options import option, switch
from busbar.start import python
from busbar.tables import render_markdown
from busbar.terminal import print_note
from busbar.units import (
    format_link_rate,
    format_size_argument,
    parse_ranks,
    parse_size,
    sweep_sizes,
)
from collectives.predict.compare import port_volume
from collectives.predict.interface import Operation
from collectives.predict.named import machine_from_ports
from collectives.predict.simulation import NetworkPredictor
from collectives.schedule import catalogue
from reports.analysis.textbook import ALGORITHMS
from reports.readers.reading import read
from reports.records.measurement import LIBRARY
from topology.model.measured import matrix
from topology.model.topology import Topology
from topology.sources.gather import gather


class LawPoint(NamedTuple):
    """A measured time: the median of iterations in seconds, the least and the greatest.

    ``slower``: the median of the slower launch, if there were two. ``law``, ``model``: the
    textbook's and the simulated seconds, nan for the library.
    """

    algorithm: str
    hosts: int
    size: int
    seconds: float
    least: float
    most: float
    wrong: int
    slower: float | None = None
    collective: str = "allreduce"
    law: float = nan
    model: float = nan


class Ports(NamedTuple):
    """Links between hosts: measured bytes/s, measured seconds of an empty message.

    ``burst``: bytes that a port passes at once after a pause, as configured.
    """

    rate: float
    latency: float
    burst: float


def binary(name: str, hosts: int) -> str:
    """An algorithm's name with parameters for ``hosts`` hosts: hierarchical has levels of two."""
    if name != "hierarchical":
        return name
    levels = max(1, hosts.bit_length() - 1)
    return f"{name}:dims={'x'.join('2' * levels)}" if levels > 1 else name


def compared(points: Sequence[LawPoint], ports: Ports, rate: float) -> list[LawPoint]:
    """Every point with its expected times. ``rate``: configured bytes/s of a port."""
    return [
        p
        if p.algorithm == LIBRARY
        else p._replace(
            law=textbook(p.algorithm, p.hosts, p.collective) * p.size / rate,
            model=simulated(p.algorithm, p.hosts, p.size, ports, p.collective),
        )
        for p in points
    ]


def _operation(collective: str, name: str, hosts: int) -> Operation:
    label = binary(name, hosts) if collective == "allreduce" else name
    return Operation(collective, label, hosts)


def why_not(collective: str, name: str, hosts: int) -> str:
    """Return why an algorithm does not run on this number of hosts; empty if it does."""
    try:
        if name != LIBRARY:
            _ = _operation(collective, name, hosts).schedule
    except Unsupported as error:
        return str(error)
    return ""


def textbook(name: str, hosts: int, collective: str = "allreduce") -> float:
    """The bandwidth term of an algorithm: see `collectives.predict.compare.port_volume`."""
    return port_volume(_operation(collective, name, hosts))


def simulated(
    name: str, hosts: int, size: int, ports: Ports, collective: str = "allreduce"
) -> float:
    """Simulated seconds: one switch, one link per host, half of the latency on each link.

    MPI counts data in a socket buffer as sent. A full buffer accepts more when it is two thirds
    full (Linux, include/net/sock.h, sk_stream_is_writeable).
    """
    machine = machine_from_ports(
        hosts, ports.rate, ports.latency, buffer=SOCKET * 2 / 3, burst=ports.burst
    )
    operation = _operation(collective, name, hosts)
    return float(NetworkPredictor(machine).seconds(operation, [size])[0])


def fit(measured: Topology, burst: float) -> Ports:
    """The ports of hosts: medians over the pairs of `topology measure`."""
    rates = [cell.value for cell in matrix(measured, "bandwidth").values()]
    delays = [cell.value for cell in matrix(measured, "latency").values()]
    return Ports(median(rates), median(delays), burst)


def exponent(seconds: Mapping[int, float]) -> float | None:
    """The exponent of P in a time's growth: the slope of log time over log P, by least squares."""
    if len(seconds) < 2:
        return None
    return linear_regression([*map(log, seconds)], [*map(log, seconds.values())]).slope


#: Number of hosts on which ports are measured.
FIT_HOSTS = 4
_MAP = "ports.json"
# A row that takes longer is stuck.
_ROW_S = "600"
_OVER_MPI = ("--transport", "mpi", "--out")
#: A row is disturbed if its slowest iteration takes more times its fastest than this.
STEADY = 1.2


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
    cluster: Cluster, hosts: int, sweep: Sweep, folder: Path, note: Callable[[str], None]
) -> None:
    """Measure all algorithms on the first hosts, one rank each, into ``folder``.

    Rows with disturbed iterations are measured a second time, in launches of their own. ``note``
    gets the progress as text.
    """

    def rows(
        file: str, collective: str, algorithms: Sequence[str], sizes: Sequence[str]
    ) -> list[LawPoint]:
        names = ",".join(
            binary(name, hosts) if collective == "allreduce" else name for name in algorithms
        )
        (folder / file).unlink(missing_ok=True)
        n, out = str(sweep.iterations), str(folder / file)
        options = ["-A", names, *sizes, "-n", n, "--placement", "out", "-T", _ROW_S]
        _ranks(cluster, hosts, [f"bench.{collective}", *options, *_OVER_MPI, out])
        return _points(folder / file)

    for collective, algorithms in sweep.algorithms.items():
        reasons = {name: why_not(collective, name, hosts) for name in algorithms}
        for reason in filter(None, reasons.values()):
            note(f"{hosts} hosts: left out: {reason}")
        fitting = [name for name in algorithms if not reasons[name]]
        if not fitting:
            continue
        note(f"{hosts} hosts: {collective}: {', '.join(fitting)}")
        file = f"hosts{hosts}.{collective}"
        points = rows(f"{file}.jsonl", collective, fitting, sweep.sizes)
        for size, names in unsteady(points).items():
            note(f"{hosts} hosts, {format_size_argument(size)}, again: {', '.join(names)}")
            again = [name for name in fitting if name.partition(":")[0] in names]
            one_size = ["-b", str(size), "-e", str(size)]
            rows(f"{file}-{size}.jsonl", collective, again, one_size)


def unsteady(points: Sequence[LawPoint]) -> dict[int, list[str]]:
    """By size: the algorithms whose slowest iteration took over `STEADY` times their fastest."""
    names: dict[int, list[str]] = {}
    for point in points:
        if point.most > STEADY * point.least:
            names.setdefault(point.size, []).append(point.algorithm)
    return names


def _ranks(cluster: Cluster, hosts: int, module: list[str]) -> None:
    words = launching(python(*module), hosts)
    ended = cluster.run(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    if ended.interrupted:
        raise KeyboardInterrupt
    if ended.status != 0:
        why = (ended.err.strip().splitlines() or [f"status {ended.status}"])[-1]
        raise Unavailable(f"{hosts} hosts: {module[0]}: {why}")


def _records(folder: Path) -> list[Path]:
    """The files in a folder that have rows of a law."""
    return [*folder.glob("hosts*.jsonl")]


def saved(folder: Path) -> tuple[list[LawPoint], Topology]:
    """Read a folder: the points, and the map of the ports. Raises ReportError or ProbeError.

    Other work only makes a row slower, so the faster of two launches is the point.
    """
    points: dict[tuple[str, str, int, int], LawPoint] = {}
    # The first launches have all algorithms, in the order of the table.
    for path in sorted(_records(folder), key=lambda path: ("-" in path.stem, path.stem)):
        for point in _points(path):
            key = point.collective, point.algorithm, point.hosts, point.size
            if key in points:
                fast, slow = sorted((point, points[key]), key=attrgetter("seconds"))
                point = fast._replace(slower=slow.seconds)
            points[key] = point
    if not points:
        raise ReportError(f"{folder}: no rows of a law; measure with --out {folder}")
    return list(points.values()), gather([str(folder / _MAP)])[0]


def _points(path: Path) -> list[LawPoint]:
    """The rows of a file, in their order."""
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


# Sizes that differ by less were asked for as one.
_LESS = 0.02


def _order(rows: Sequence[LawPoint]) -> tuple[list[str], list[int], list[int]]:
    """(algorithms with the library last, host counts, sizes)."""
    names = sorted(dict.fromkeys(r.algorithm for r in rows), key=lambda name: name == LIBRARY)
    return names, sorted({r.hosts for r in rows}), sorted({r.size for r in rows})


def _rounded(rows: Sequence[LawPoint]) -> list[LawPoint]:
    """The rows with requested sizes: actual ones may be smaller, as parts have whole elements."""
    sizes: list[int] = []
    for size in sorted({row.size for row in rows}, reverse=True):
        if not sizes or size < (1 - _LESS) * sizes[-1]:
            whole = 1 << (size - 1).bit_length()
            sizes.append(whole if size > (1 - _LESS) * whole else size)
    return [row._replace(size=min(n for n in sizes if n >= row.size)) for row in rows]


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.4g}" if seconds >= 0.1 else f"{seconds * 1e3:.3g}"


def lines(rows: Sequence[LawPoint], ports: Ports, rate: float) -> Iterator[str]:
    """The tables, as Markdown. ``rate``: configured bytes/s of a port, on which laws are based."""
    yield (
        f"Ports of {format_link_rate(rate)}, {ports.burst:.0f} B at once after a pause; measured"
        " between"
        f" the first hosts: {format_link_rate(ports.rate)}, {ports.latency * 1e6:.3g} µs."
    )
    for collective in dict.fromkeys(row.collective for row in rows):
        yield from _of(collective, _rounded([r for r in rows if r.collective == collective]))
    twice = [
        f"{p.collective} `{p.algorithm}` {p.hosts}x{format_size_argument(p.size)} {_ms(p.slower)}"
        for p in _rounded(rows)
        if p.slower is not None
    ]
    if twice:
        yield ""
        yield (
            f"Measured twice, since iterations differed by more than {100 * (STEADY - 1):.0f} %;"
            f" the table has the faster launch, the other's median, ms: {', '.join(twice)}"
        )


def _of(collective: str, rows: Sequence[LawPoint]) -> Iterator[str]:
    """The tables of one collective, by size: times, and their ratios to law and simulation."""
    names, hosts, sizes = _order(rows)
    at = {(r.algorithm, r.hosts, r.size): r for r in rows}
    columns = [("algorithm", "left"), *((f"{n} hosts", "right") for n in hosts)]
    for size in sizes:
        yield ""
        yield (
            f"{collective} of {format_size_argument(size)}, ms: measured (least to greatest) | law"
            " | simulated"
        )
        yield ""
        lines: list[list[str]] = []
        for name in names:
            mine = {n: at[name, n, size] for n in hosts if (name, n, size) in at}
            cells = [_cell(mine[n]) if n in mine else "" for n in hosts]
            power = exponent({n: row.seconds for n, row in mine.items()})
            cells.append(f"P^{power:.2f}" if power is not None else "")
            lines.append([f"`{name}`", *cells])
        yield from render_markdown([*columns, ("grows as", "left")], lines, right="--:")
        yield ""
        yield f"{collective} of {format_size_argument(size)}: measured over law, over simulated"
        yield ""
        lines = [
            [f"`{name}`", *(_over(at.get((name, n, size))) for n in hosts)]
            for name in names
            if name != LIBRARY
        ]
        yield from render_markdown(columns, lines, right="--:")
        ratios = [
            f"P = {n}: {at['ps', n, size].seconds / at['ring', n, size].seconds:.3g}"
            for n in hosts
            if ("ps", n, size) in at and ("ring", n, size) in at
        ]
        if ratios:
            yield ""
            yield "ps / ring (law: P): " + ", ".join(ratios)


def _over(row: LawPoint | None) -> str:
    """A measured time divided by its law, and by its simulation."""
    if row is None:
        return ""
    return f"{row.seconds / row.law:.2f}, {row.seconds / row.model:.2f}"


def _cell(point: LawPoint) -> str:
    text = f"{_ms(point.seconds)} ({_ms(point.least)} to {_ms(point.most)})"
    if point.wrong:
        text += f" {point.wrong} wrong"
    return text if isnan(point.law) else f"{text} / {_ms(point.law)} / {_ms(point.model)}"


def errors(rows: Sequence[LawPoint], fitted: int) -> Iterator[str]:
    """The simulator's errors on more hosts than those whose ports were measured."""
    relative = {
        p: p.model / p.seconds - 1
        for p in _rounded(rows)
        if p.hosts > fitted and not isnan(p.model)
    }
    if not relative:
        return
    yield ""
    yield (
        f"Simulated against measured on more than {fitted} hosts, {len(relative)} points:"
        f" {_off(relative)}."
    )
    for size in sorted({p.size for p in relative}):
        yield (
            f"- {format_size_argument(size)}:"
            f" {_off({p: e for p, e in relative.items() if p.size == size})}"
        )
    for name in dict.fromkeys((p.collective, p.algorithm) for p in relative):
        mine = {p: e for p, e in relative.items() if (p.collective, p.algorithm) == name}
        each = ", ".join(
            f"{p.hosts}x{format_size_argument(p.size)} {100 * e:+.3g}" for p, e in mine.items()
        )
        yield f"- {name[0]} `{name[1]}`, %: {each}"


def _off(relative: Mapping[LawPoint, float]) -> str:
    """The median of relative errors, and the largest."""
    worst = max(relative, key=lambda p: abs(relative[p]))
    return (
        f"median error {100 * median(map(abs, relative.values())):.3g} %, worst"
        f" {100 * relative[worst]:+.3g} % ({worst.collective} {worst.algorithm}, {worst.hosts}"
        f" hosts, {format_size_argument(worst.size)})"
    )


def draw(rows: Sequence[LawPoint], rate: float, path: Path) -> None:
    """Draw time over hosts at the largest size: measured, law, simulated. Raises as `checked`."""
    checked(path)
    from matplotlib.figure import Figure

    from reports.figures.series import colour_of

    rows = [row for row in rows if row.collective == rows[0].collective]
    names, hosts, sizes = _order(rows)
    size = sizes[-1]
    figure = Figure(figsize=(8.5, 5), layout="constrained")
    axes = figure.subplots()
    colours = colour_of(names)
    for name in names:
        colour = colours[name]
        points = [row for row in rows if (row.algorithm, row.size) == (name, size)]
        points.sort(key=attrgetter("hosts"))
        at = [p.hosts for p in points]
        spread = [
            [1e3 * (p.seconds - p.least) for p in points],
            [1e3 * (p.most - p.seconds) for p in points],
        ]
        times = [1e3 * p.seconds for p in points]
        axes.errorbar(at, times, spread, fmt="o", color=colour, label=name, capsize=2, ms=5)
        axes.plot(at, [1e3 * p.law for p in points], "-", color=colour, lw=1.2)
        axes.plot(at, [1e3 * p.model for p in points], ":", color=colour, lw=1.6)
    axes.plot([], [], "k-", lw=1.2, label="textbook's law")
    axes.plot([], [], "k:", lw=1.6, label="simulated")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(hosts, [str(n) for n in hosts])
    axes.set(xlabel="hosts", ylabel="time, ms")
    axes.set_title(
        f"{rows[0].collective} of {format_size_argument(size)} over ports of"
        f" {format_link_rate(rate)}, measured"
    )
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, fontsize=9, loc="upper left", bbox_to_anchor=(1, 1))
    save(figure, path, 150)


_ALGORITHMS = "ring,ps,sharded_ps,tree,recursive_doubling,torus,hierarchical,library"
# A barrier has no bytes, and ranks of an all-to-all-v have unequal counts, which no law is of.
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
    overwrite: bool = switch(
        "--overwrite  replace the results in --out DIR; without, a folder that has results is"
        " refused"
    )
    svg: Path | None = option("--svg FILE  draw times over hosts at the largest size")

    @classmethod
    def make_parser(cls, **about: Any) -> Parser:
        """The parser, which answers options of other commands with what there is here."""
        parser = super().make_parser(**about)
        for flag, remedy in (
            ("--budget", "-n sets the iterations of each row"),
            ("--dry-run", "busbar cluster --hosts P --dry-run prints the plan of a cluster"),
        ):
            parser.add_argument(
                flag, nargs="?", const="", type=only((), remedy), default=SUPPRESS, help=SUPPRESS
            )
        return parser

    def run(self) -> int:
        """Measure, or show the records in a folder."""
        if self.svg is not None:
            checked(self.svg)
        counts = parse_ranks(self.hosts, MOST_HOSTS)
        if min(counts) < 2:
            raise Unsupported(f"--hosts {self.hosts}: a law is of 2 hosts or more")
        if self.show and self.out is None:
            raise Unsupported("--show needs --out DIR, the folder of the records to show")
        most = self.maxbytes or self.minbytes
        sweep_sizes(parse_size(self.minbytes), parse_size(most), factor=4.0, step=None)
        network = self.plan(max(counts))
        with ExitStack() as ends:
            folder = self.out or Path(ends.enter_context(tempfile.TemporaryDirectory()))
            if not self.show:
                sizes = ["-b", self.minbytes, "-e", most, "-f", "4"]
                sweep = Sweep(chosen(self.collective, self.algorithm), sizes, self.iters)
                earlier = _records(folder)
                if earlier and not self.overwrite:
                    raise StoreError(
                        f"{folder}: has results already; --show shows them, --overwrite replaces"
                        " them"
                    )
                folder.mkdir(parents=True, exist_ok=True)
                with Cluster(network) as cluster, watched(cluster):
                    for path in earlier:
                        path.unlink()
                    print_note("ports of the first hosts")
                    ports(cluster, folder)
                    for hosts in counts:
                        measure(cluster, hosts, sweep, folder, print_note)
            points, measured = saved(folder)
            fitted = fit(measured, network.burst(network.rate))
            rows = compared(points, fitted, network.rate)
            print("\n".join(lines(rows, fitted, network.rate)))
            print("\n".join(errors(rows, FIT_HOSTS)))
            if self.svg is not None:
                draw(rows, network.rate, self.svg)
            if self.out is not None and any(_in_model(row) for row in rows):
                print(f"\nnext: busbar reports model {shlex.quote(str(folder))} --out model.png")
        return 0


def _in_model(row: LawPoint) -> bool:
    """Whether ``busbar reports model`` compares this row with the textbook."""
    return row.collective == "allreduce" and row.algorithm in ALGORITHMS


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
