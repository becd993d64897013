"""``busbar cluster law``: how collectives grow with the number of hosts.

Measured on the hosts of one cluster, beside the textbook's law and the simulator.
"""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
import tempfile
import time
from argparse import SUPPRESS
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from importlib.util import find_spec
from math import isnan, nan
from operator import attrgetter
from pathlib import Path
from statistics import median
from types import FrameType
from typing import Any, NamedTuple

from bench.cluster.arguments import RATE, NetworkOptions
from bench.cluster.commands import SOCKET
from bench.cluster.launchers import launching
from bench.cluster.main import network_lines
from bench.cluster.network import MOST_HOSTS, Network
from bench.cluster.running import Cluster, watched
from bench.launch.child import handled
from bench.options import argument_types as types
from bench.options.nccl_flags import only
from busbar.arguments import Parser
from busbar.commands import Command
from busbar.counters import MUCH
from busbar.errors import ReportError, StoreError, Unavailable, Unsupported
from busbar.files import check_figure as checked
from busbar.files import make_folder, write_all
from busbar.files import save_figure as save
from busbar.options import option, switch
from busbar.start import python
from busbar.statistics import interval
from busbar.tables import Column, RenderedTable, render_markdown, render_rich
from busbar.terminal import open_console, print_note
from busbar.units import (
    format_count,
    format_duration,
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
from reports.analysis.cautions import long_enough, ran_beside
from reports.analysis.disturbance import is_disturbed, tells_others
from reports.analysis.textbook import ALGORITHMS, grown
from reports.analysis.winners import ratio_bounds
from reports.readers.reading import read
from reports.records.measurement import LIBRARY
from topology.model.measured import matrix
from topology.model.topology import Topology
from topology.sources.gather import gather


class LawPoint(NamedTuple):
    """A measured row: the seconds of its iterations.

    ``slower``: the median of the slower launch, if there were two. ``law``, ``model``: the
    textbook's and the simulated seconds, nan for the library. ``others``: the share of all cores
    that other programs used meanwhile, 0 below what counts; ``long_enough``: False if the row is
    too short to tell.
    """

    algorithm: str
    hosts: int
    size: int
    times: tuple[float, ...]
    wrong: int = 0
    slower: float | None = None
    collective: str = "allreduce"
    law: float = nan
    model: float = nan
    others: float = 0.0
    long_enough: bool = True

    @property
    def seconds(self) -> float:
        """The median of the iterations."""
        return median(self.times)

    @property
    def ends(self) -> tuple[float, float] | None:
        """The 95 % interval of the median; None for too few iterations."""
        return interval(self.times)

    @property
    def steady(self) -> bool:
        """False if the slowest iteration took more than `STEADY` times the fastest."""
        return max(self.times) <= STEADY * min(self.times)


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


#: Number of hosts on which ports are measured.
FIT_HOSTS = 4
_MAP = "ports.json"
_APART = 0.05  # between two algorithms' points in the figure, in powers of two
_SLOWER = "slower"  # a folder in that of the records
# A row that takes longer is stuck.
_ROW_S = "600"
_OVER_MPI = ("--transport", "mpi", "--out")
#: A row is disturbed if its slowest iteration takes more times its fastest than this.
STEADY = 1.2


#: Seconds that interrupted ranks have before the cluster is removed.
_GRACE_S = 0.5
# Seconds on an idle machine: of the ports, of a launch, and of a row besides its iterations.
_PORTS_S, _LAUNCH_S, _OF_ROW_S = 30.0, 2.0, 0.5
# Iterations of a row that are not reported: one is checked, one is a trial.
_UNREPORTED = 2
# A line of progress from ranks (`bench.run.screen`).
_RANKS_PROGRESS = re.compile(r"busbar: (\d+) of \d+ done, [^:]*: (.*)")


class _Interrupted(Exception):
    """A signal asks the law to end; the argument is its number."""


class Sweep(NamedTuple):
    """A measurement: algorithms by collective, sizes (by factors of 4), iterations of a row.

    ``quiet_s``: how long each launch waits at most until other programs leave the cores.
    """

    algorithms: Mapping[str, Sequence[str]]
    least: int
    most: int
    iterations: int
    quiet_s: float | None = None

    @property
    def sizes(self) -> list[int]:
        """The sizes in bytes."""
        return sweep_sizes(self.least, self.most, factor=4.0, step=None)


class Launch(NamedTuple):
    """One start of ranks: algorithms of a collective on the first hosts, at some sizes.

    ``quiet_s``: see `Sweep`.
    """

    hosts: int
    collective: str
    algorithms: Sequence[str]
    least: int
    most: int
    iterations: int
    quiet_s: float | None = None

    def words(self, out: Path) -> list[str]:
        """The module that each rank runs, with its options."""
        names = ",".join(
            binary(name, self.hosts) if self.collective == "allreduce" else name
            for name in self.algorithms
        )
        options = ["-A", names, "-b", str(self.least), "-e", str(self.most), "-f", "4"]
        options += ["-n", str(self.iterations), "--placement", "out", "-T", _ROW_S]
        options += [] if self.quiet_s is None else ["--wait-quiet", f"{self.quiet_s:.15g}"]
        return [f"bench.{self.collective}", *options, *_OVER_MPI, str(out)]

    def file(self) -> str:
        """The name of the file with its rows."""
        return f"hosts{self.hosts}.{self.collective}.jsonl"


def launches(
    counts: Sequence[int], sweep: Sweep, note: Callable[[str], None] = lambda _: None
) -> list[Launch]:
    """The launches of a sweep. ``note`` gets the algorithms that are left out, with the reason."""
    planned = []
    for hosts in counts:
        for collective, algorithms in sweep.algorithms.items():
            reasons = {name: why_not(collective, name, hosts) for name in algorithms}
            for reason in filter(None, reasons.values()):
                note(f"{hosts} hosts: left out: {reason}")
            if fitting := [name for name in algorithms if not reasons[name]]:
                rest = sweep.least, sweep.most, sweep.iterations, sweep.quiet_s
                planned.append(Launch(hosts, collective, fitting, *rest))
    return planned


def row_seconds(launch: Launch, sizes: Sequence[int], rate: float) -> list[float]:
    """Estimated seconds of each row of a launch, in their order: its iterations by the law.

    The library is taken for a ring. The first row has the start of the launch.
    """
    seconds = []
    for name in launch.algorithms:
        known = 2.0 if name == LIBRARY else textbook(name, launch.hosts, launch.collective)
        each = [(launch.iterations + _UNREPORTED) * known * size / rate for size in sizes]
        seconds += [_OF_ROW_S + one for one in each]
    return [seconds[0] + _LAUNCH_S, *seconds[1:]]


class Progress:
    """Rows that are done, and an estimate of the seconds that are left.

    The estimate of the rows to come is multiplied by what those that are done took, over theirs.
    """

    def __init__(
        self, seconds: Sequence[float], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._seconds, self._clock = list(seconds), clock
        self._start = self._last = clock()
        self.done = 0

    def begin(self) -> None:
        """Begin the first row."""
        self._start = self._last = self._clock()

    def reach(self, done: int) -> None:
        """Take so many rows for done; a smaller number than before changes nothing."""
        if done > self.done:
            self.done, self._last = done, self._clock()

    def __str__(self) -> str:
        """Rows, and the seconds that are left, as ``3 of 8 rows done, about 20 s left``."""
        before = sum(self._seconds[: self.done])
        pace = (self._last - self._start) / before if before else 1.0
        rest = pace * sum(self._seconds[self.done :])
        if self.done < len(self._seconds):
            rest -= min(self._clock() - self._last, pace * self._seconds[self.done])
        done = f"{self.done} of {format_count(len(self._seconds), 'row')} done"
        return f"{done}, about {format_duration(rest)} left"


def ports(cluster: Cluster, folder: Path) -> None:
    """Measure latency and rate between the first hosts, into ``folder``. Raises Unavailable."""
    hosts = min(FIT_HOSTS, cluster.network.hosts)
    _ranks(cluster, hosts, _ports_words(folder))


def _ports_words(folder: Path) -> list[str]:
    return ["topology", "measure", "--repetitions", "5", "-o", str(folder / _MAP)]


def measure(
    cluster: Cluster,
    launch: Launch,
    folder: Path,
    note: Callable[[str], None],
    progress: Progress,
) -> None:
    """Measure the rows of a launch, into ``folder``.

    Rows with disturbed iterations are measured a second time, in launches of their own. ``note``
    gets the progress as text.
    """
    before = progress.done

    def rows(part: Launch, file: str) -> list[LawPoint]:
        (folder / file).unlink(missing_ok=True)
        _ranks(cluster, part.hosts, part.words(folder / file), passed)
        return _points(folder / file)

    def passed(line: str) -> None:
        if (match := _RANKS_PROGRESS.match(line)) and progress.done < after:
            progress.reach(before + int(match[1]))
            note(f"{progress}: {launch.hosts} hosts: {match[2]}")

    sizes = sweep_sizes(launch.least, launch.most, factor=4.0, step=None)
    after = before + len(launch.algorithms) * len(sizes)
    every = ", ".join(launch.algorithms)
    waits = ", once other programs leave the cores" * (launch.quiet_s is not None)
    note(f"{progress}: {launch.hosts} hosts: {launch.collective}: {every}{waits}")
    points = rows(launch, launch.file())
    progress.reach(after)
    for size, disturbed in unsteady(points).items():
        note(f"{launch.hosts} hosts, {format_size_argument(size)}, again: {', '.join(disturbed)}")
        names = [name for name in launch.algorithms if name.partition(":")[0] in disturbed]
        part = launch._replace(algorithms=names, least=size, most=size)
        again = launch.file().replace(".jsonl", f"-{size}.jsonl")
        second = {(p.algorithm, p.size): p.seconds for p in rows(part, again)}
        first = {(p.algorithm, p.size): p.seconds for p in points}
        slower = {key for key, seconds in second.items() if seconds >= first.get(key, 0.0)}
        _join(folder, launch.file(), second.keys() - slower, again, slower)


def _join(
    folder: Path,
    name: str,
    slower: Collection[tuple[str, int]],
    again: str,
    slower_again: Collection[tuple[str, int]],
) -> None:
    """Move the rows of a second launch to the file of the first, and slower rows to `_SLOWER`.

    ``name``, ``again``: the files of both launches; ``slower``, ``slower_again``: (algorithm, size)
    of the rows that go to a file of the same name in the folder `_SLOWER`. Other work only makes a
    row slower, so of two launches the faster row counts, also for ``busbar reports``, which reads
    the files of a folder and not those below it. All rows then stand under the environment of the
    first launch, from which the second one's differs in its start and its options.
    """
    kept: list[bytes] = []
    moved: list[bytes] = []
    run = ""
    for file, lost in ((name, slower), (again, slower_again)):
        for line in (folder / file).read_bytes().splitlines(keepends=True):
            record = json.loads(line)
            run = run or record["run"]
            if "algorithm" in record:
                text = json.dumps({**record, "run": run}, separators=(",", ":")).encode() + b"\n"
                is_slower = (_plain(record["algorithm"]), record["size"]) in lost
                (moved if is_slower else kept).append(text)
            elif file == name:
                kept.append(line)
                moved.append(line)
    aside = folder / _SLOWER / name
    make_folder(aside.parent)
    earlier = aside.read_bytes() if aside.exists() else b""
    write_all([(aside, earlier + b"".join(moved)), (folder / name, b"".join(kept))])
    (folder / again).unlink()


def unsteady(points: Sequence[LawPoint]) -> dict[int, list[str]]:
    """By size: the algorithms whose slowest iteration took over `STEADY` times their fastest."""
    names: dict[int, list[str]] = {}
    for point in points:
        if not point.steady:
            names.setdefault(point.size, []).append(point.algorithm)
    return names


def _ranks(
    cluster: Cluster, hosts: int, module: list[str], on_line: Callable[[str], None] | None = None
) -> None:
    words = launching(python(*module), hosts)
    null, pipe = subprocess.DEVNULL, subprocess.PIPE
    ended = cluster.run(words, grace=_GRACE_S, on_line=on_line, stdout=null, stderr=pipe)
    if ended.interrupted:
        raise _Interrupted(ended.interrupted)
    if ended.status != 0:
        why = (ended.err.strip().splitlines() or [f"status {ended.status}"])[-1]
        raise Unavailable(f"{hosts} hosts: {module[0]}: {why}")


@contextmanager
def _interruptible() -> Iterator[None]:
    """Raise `_Interrupted` at a signal that asks to end, once: ``timeout`` sends it twice.

    A signal that comes a second or more after the first raises KeyboardInterrupt.
    """
    first: list[float] = []

    def interrupt(number: int, frame: FrameType | None) -> None:
        again = bool(first)
        first.append(time.monotonic())
        if not again:
            raise _Interrupted(number)
        if first[-1] > first[0] + 1:
            raise KeyboardInterrupt

    with handled(interrupt):
        yield


@contextmanager
def _finishing() -> Iterator[list[int]]:
    """Print the results whole although signals ask to end; yields their numbers as they come.

    The third raises KeyboardInterrupt: ``timeout`` sends one twice.
    """
    came: list[int] = []

    def interrupt(number: int, frame: FrameType | None) -> None:
        came.append(number)
        if len(came) > 2:
            raise KeyboardInterrupt

    with handled(interrupt):
        yield came


def _records(folder: Path) -> list[Path]:
    """The files in a folder that have rows of a law, also of those that took longer."""
    return [*folder.glob("hosts*.jsonl"), *folder.glob(f"{_SLOWER}/hosts*.jsonl")]


def saved(folder: Path) -> tuple[list[LawPoint], Topology]:
    """Read a folder: the points, and the map of the ports. Raises ReportError or ProbeError.

    The faster of two launches is the point, see `_join`.
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


def _plain(algorithm: str) -> str:
    """The name of an algorithm without its parameters."""
    return algorithm.partition(":")[0].partition("(")[0]


def _points(path: Path) -> list[LawPoint]:
    """The rows of a file, in their order."""
    points = []
    for row in read(path).rows:
        if row.times_s and row.ranks and row.size:
            name = _plain(row.algorithm)
            others = (row.others_share or 0.0) if is_disturbed(row) else 0.0
            point = LawPoint(
                name, row.ranks, row.size, tuple(row.times_s), row.wrong or 0,
                collective=row.collective or "allreduce", others=others,
                long_enough=tells_others(row),
            )  # fmt: skip
            points.append(point)
    return points


# Below this fraction of its law a row is named as faster, and above this of its simulated time as
# slower.
_BELOW, _ABOVE = 0.98, 1.2
_NAMED = 6  # slower rows, the slowest first
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


def heading(ports: Ports, rate: float) -> str:
    """The line on the ports: as configured, and as measured."""
    return (
        f"Ports of {format_link_rate(rate)}, {ports.burst:.0f} B at once after a pause; measured"
        " between"
        f" the first hosts: {format_link_rate(ports.rate)}, {ports.latency * 1e6:.3g} µs."
    )


def notes(rows: Sequence[LawPoint], ports: Ports, rate: float) -> Iterator[str]:
    """Lines below the tables: other programs, rows that are off, rows measured twice."""
    rounded = _rounded(rows)
    if beside := _beside(rows):
        yield f"{beside}: they may have taken longer than alone."
    if fast := [p for p in rounded if p.seconds < _BELOW * p.law]:
        each = ", ".join(f"{_place(p)} {p.seconds / p.law:.2f}" for p in fast)
        yield (
            f"Faster than their law (measured over law): {each}. After a pause a port passes"
            f" {ports.burst:.0f} B at once, which saves up to {_ms(ports.burst / rate)} ms in a"
            " step; the law leaves this out, the simulation has it."
        )
    if slow := [p for p in rounded if p.seconds > _ABOVE * p.model]:
        slow.sort(key=lambda p: p.model / p.seconds)
        each = ", ".join(f"{_place(p)} {p.seconds / p.model:.2f}" for p in slow[:_NAMED])
        each += f" and {format_count(len(slow) - _NAMED, 'more row')}" * (len(slow) > _NAMED)
        yield (
            f"Slower than simulated by more than {100 * (_ABOVE - 1):.0f} % (measured over"
            f" simulated): {each}. The simulation has the ports' rates, latencies and bursts. It"
            " leaves out the time that ranks need on their cores for copies, additions and system"
            " calls, and other programs."
        )
    if twice := [f"{_place(p)} {_ms(p.slower)}" for p in rounded if p.slower is not None]:
        yield (
            f"Measured twice, since iterations differed by more than {100 * (STEADY - 1):.0f} %;"
            f" the table has the faster launch, the other's median, ms: {', '.join(twice)}"
        )


def _beside(rows: Sequence[LawPoint]) -> str:
    """How many rows ran beside other programs, and the most that these took; empty for none."""
    shares = [row.others for row in rows if row.others]
    able = long_enough(sum(row.long_enough for row in rows), len(rows))
    return ran_beside(shares, able) if shares else ""


def _place(row: LawPoint) -> str:
    return f"{row.collective} {row.algorithm} {row.hosts}x{format_size_argument(row.size)}"


def lines(rows: Sequence[LawPoint], ports: Ports, rate: float) -> Iterator[str]:
    """The tables, as Markdown. ``rate``: configured bytes/s of a port, on which laws are based."""
    yield heading(ports, rate)
    for collective in dict.fromkeys(row.collective for row in rows):
        yield from _of(collective, _rounded([r for r in rows if r.collective == collective]))
    for line in notes(rows, ports, rate):
        yield from ("", line)


def tables(rows: Sequence[LawPoint], rate: float, width: int) -> Iterator[RenderedTable]:
    """A table for each collective and size, in ``width`` characters; below it how times grow."""
    for collective in dict.fromkeys(row.collective for row in rows):
        mine = _rounded([r for r in rows if r.collective == collective])
        names, _, sizes = _order(mine)
        for size in sizes:
            by_name = [
                sorted((r for r in mine if (r.algorithm, r.size) == (name, size)), key=_hosts)
                for name in names
            ]
            here = [row for group in by_name for row in group]
            columns: list[Column] = [
                ("algorithm", "left", [r.algorithm for r in here]),
                ("hosts", "right", [str(r.hosts) for r in here]),
                ("measured", "right", [_ms(r.seconds) + _wrong(r) for r in here]),
                ("95 %", "left", [_interval(r) or "-" for r in here]),
                ("law", "right", [_known(r.law, _ms) for r in here]),
                ("simulated", "right", [_known(r.model, _ms) for r in here]),
                ("over law", "right", [_known(r.seconds / r.law, _ratio) for r in here]),
                ("over simulated", "right", [_known(r.seconds / r.model, _ratio) for r in here]),
            ]
            title = (
                f"{collective} of {format_size_argument(size)}, ms: measured (median), its law over"
                f" ports of {format_link_rate(rate)}, and simulated"
            )
            spare = ("over simulated", "95 %")
            below = [
                f"{group[0].algorithm} {power}" for group in by_name if (power := _power(group))
            ]
            texts = [f"grows as (95 %; law): {', '.join(below)}"] if below else []
            texts += _server_over_ring(here)
            drawn = render_rich(title, columns, width, spare)
            yield RenderedTable(title, drawn.table, "\n".join(texts))


_hosts = attrgetter("hosts")


def _known(value: float, text: Callable[[float], str]) -> str:
    return "" if isnan(value) else text(value)


def _interval(row: LawPoint) -> str:
    """The 95 % interval in ms; empty if it is not known."""
    return " to ".join(map(_ms, row.ends or ()))


def _ratio(value: float) -> str:
    return f"{value:.2f}"


def _wrong(row: LawPoint) -> str:
    return f" {row.wrong} wrong" if row.wrong else ""


def _power(rows: Sequence[LawPoint]) -> str:
    """The growth of times with the number of hosts; empty for one host count.

    As ``P^0.31 (0.25 to 0.36; law P^0.29)``. An interval that is not known is left out, and so is
    the law of the library.
    """
    if not rows:
        return ""
    first = rows[0]
    known = not isnan(first.law)
    growth = grown(
        first.algorithm,
        first.size,
        {row.hosts: [row.times] for row in rows},
        lambda n: textbook(first.algorithm, n, first.collective) if known else 1.0,
    )
    if growth is None:
        return ""
    low, high = growth.low, growth.high
    within = "" if low is None or high is None else f"{low:.2f} to {high:.2f}"
    about = "; ".join(filter(None, (within, f"law P^{growth.port:.2f}" if known else "")))
    return f"P^{growth.exponent:.2f}" + (f" ({about})" if about else "")


def _server_over_ring(rows: Sequence[LawPoint]) -> list[str]:
    """The line on ps over ring at one size; none if no number of hosts has both."""
    at = {(row.algorithm, row.hosts): row for row in rows}
    ratios = [
        f"P = {n}: {_times_as_long(at['ps', n], at['ring', n])}"
        for n in sorted({row.hosts for row in rows})
        if ("ps", n) in at and ("ring", n) in at
    ]
    return ["ps / ring (95 %; law: P): " + ", ".join(ratios)] if ratios else []


def _times_as_long(slower: LawPoint, faster: LawPoint) -> str:
    """A ratio of times with its interval, as ``3.91 (3.85 to 4.02)``.

    Where other programs used much of the cores, iterations of a launch do not show what that did
    to all of them, and there is no interval.
    """
    ratio = f"{slower.seconds / faster.seconds:.3g}"
    if max(slower.others, faster.others) >= MUCH:
        return f"{ratio} (disturbed)"
    low, high = ratio_bounds([faster.times], [slower.times])
    return ratio if low is None or high is None else f"{ratio} ({low:.3g} to {high:.3g})"


def _of(collective: str, rows: Sequence[LawPoint]) -> Iterator[str]:
    """The tables of one collective, by size: times, and their ratios to law and simulation."""
    names, hosts, sizes = _order(rows)
    at = {(r.algorithm, r.hosts, r.size): r for r in rows}
    columns = [("algorithm", "left"), *((f"{n} hosts", "right") for n in hosts)]
    for size in sizes:
        yield ""
        yield (
            f"{collective} of {format_size_argument(size)}, ms: measured (95 % interval) / law"
            " / simulated"
        )
        yield ""
        lines: list[list[str]] = []
        for name in names:
            mine = {n: at[name, n, size] for n in hosts if (name, n, size) in at}
            cells = [_cell(mine[n]) if n in mine else "" for n in hosts]
            lines.append([f"`{name}`", *cells, _power(list(mine.values()))])
        yield from render_markdown([*columns, ("grows as (95 %; law)", "left")], lines, right="--:")
        yield ""
        yield f"{collective} of {format_size_argument(size)}: measured over law, over simulated"
        yield ""
        lines = [
            [f"`{name}`", *(_over(at.get((name, n, size))) for n in hosts)]
            for name in names
            if name != LIBRARY
        ]
        yield from render_markdown(columns, lines, right="--:")
        for line in _server_over_ring([row for row in rows if row.size == size]):
            yield from ("", line)


def _over(row: LawPoint | None) -> str:
    """A measured time divided by its law, and by its simulation."""
    if row is None:
        return ""
    return f"{row.seconds / row.law:.2f}, {row.seconds / row.model:.2f}"


def _cell(point: LawPoint) -> str:
    text = f"{_ms(point.seconds)} ({_interval(point) or '-'}){_wrong(point)}"
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

    from busbar.canvas import colour_of, times_axis

    rows = [row for row in rows if row.collective == rows[0].collective]
    names, hosts, sizes = _order(rows)
    size = sizes[-1]
    rows = [row for row in rows if row.size == size]
    figure = Figure(figsize=(8.5, 5), layout="constrained")
    axes = figure.subplots()
    colours = colour_of(names)
    for place, name in enumerate(names):
        colour = colours[name]
        points = sorted((row for row in rows if row.algorithm == name), key=_hosts)
        # Beside each other: several algorithms often take the same time.
        at = [p.hosts * 2 ** (_APART * (place - (len(names) - 1) / 2)) for p in points]
        spread = [
            [1e6 * (p.seconds - (p.ends or (p.seconds,))[0]) for p in points],
            [1e6 * ((p.ends or (p.seconds,))[-1] - p.seconds) for p in points],
        ]
        times = [1e6 * p.seconds for p in points]
        axes.errorbar(at, times, spread, fmt="o", color=colour, label=name, capsize=2, ms=5)
        axes.plot(at, [1e6 * p.law for p in points], "-", color=colour, lw=1.2)
        axes.plot(at, [1e6 * p.model for p in points], ":", color=colour, lw=1.6)
    axes.plot([], [], "k-", lw=1.2, label="law")
    axes.plot([], [], "k:", lw=1.6, label="simulated")
    axes.set_xscale("log", base=2)
    axes.set_xticks(hosts, [str(n) for n in hosts])
    times_axis(axes)
    axes.set(xlabel="hosts", ylabel="time")
    title = (
        f"{rows[0].collective} of {format_size_argument(size)} over ports of"
        f" {format_link_rate(rate)}, measured"
    )
    axes.set_title("\n".join(filter(None, (title, _beside(rows)))))
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
    iters: int = option("-n --iters N  iterations of a row", 6, types.at_least(1, "iterations"))
    wait_quiet: float | None = option(
        "--wait-quiet SECONDS|10m  before each launch, wait until nothing else uses the cores, at"
        " most this long",
        parse=types.seconds,
    )
    out: Path | None = option("--out DIR  keep the records and the measured map in DIR")
    show: bool = switch("--show  measure nothing; show the records in --out DIR")
    overwrite: bool = switch(
        "--overwrite  replace the results in --out DIR; without, a folder that has results is"
        " refused"
    )
    svg: Path | None = option("--svg FILE  draw times over hosts at the largest size")
    md: bool = switch("--md  print the tables as Markdown")
    dry_run: bool = switch(
        "--dry-run  measure nothing; print the network, the launches and an estimate of their time"
    )

    @classmethod
    def make_parser(cls, **about: Any) -> Parser:
        """The parser, which answers options of other commands with what there is here."""
        parser = super().make_parser(**about)
        remedy = "-n sets the iterations of each row"
        parser.add_argument(
            "--budget", nargs="?", const="", type=only((), remedy), default=SUPPRESS, help=SUPPRESS
        )
        return parser

    def run(self) -> int:
        """Measure, or show the records in a folder."""
        if self.svg is not None:
            checked(self.svg)
        counts = parse_ranks(self.hosts, MOST_HOSTS, "--hosts")
        if min(counts) < 2:
            raise Unsupported(f"--hosts {self.hosts}: a law is of 2 hosts or more")
        if self.show and self.out is None:
            raise Unsupported("--show needs --out DIR, the folder of the records to show")
        least, most = parse_size(self.minbytes), parse_size(self.maxbytes or self.minbytes)
        algorithms = chosen(self.collective, self.algorithm)
        sweep = Sweep(algorithms, least, most, self.iters, self.wait_quiet)
        _ = sweep.sizes
        network = self.plan(max(counts))
        if self.dry_run:
            print("\n".join(planned(network, counts, sweep, self.out)))
            return 0
        number = done = 0
        late = list[int]()
        with ExitStack() as ends:
            folder = self.out or Path(ends.enter_context(tempfile.TemporaryDirectory()))
            if not self.show:
                earlier = _records(folder)
                if earlier and not self.overwrite:
                    raise StoreError(
                        f"{folder}: has results already; --show shows them, --overwrite replaces"
                        " them"
                    )
                existed = folder.exists()
                make_folder(folder)
                ends.enter_context(_interruptible())
                try:
                    for done in self._measured(network, counts, sweep, folder, earlier):  # noqa: B007
                        pass
                except _Interrupted as signalled:
                    (number,) = signalled.args
                    if earlier or not any(map(_points, _records(folder))):
                        if not existed:
                            _remove(folder)
                        print_note(f"interrupted by {signal.Signals(number).name} before any row")
                        return 128 + int(number)
                late = ends.enter_context(_finishing())
            self._print(network, folder)
        number = number or next(iter(late), 0)
        if number:
            name, of = signal.Signals(number).name, format_count(len(counts), "host count")
            again = "nothing is kept without --out DIR"
            if self.out is not None:
                rate = ["--rate", f"{8 * self.rate:.15g}bit"] if self.rate != RATE else []
                words = ["cluster", "law", "--show", "--out", str(folder), *rate]
                again = shlex.join(["busbar", *words])
            print_note(f"interrupted by {name}; {done} of {of} done: {again}")
            return 128 + int(number)
        return 0

    def _measured(
        self,
        network: Network,
        counts: Sequence[int],
        sweep: Sweep,
        folder: Path,
        earlier: list[Path],
    ) -> Iterator[int]:
        """Measure; yields the host counts that are done, after each launch.

        Files of ``earlier`` are removed, from the list, too, once there is a cluster.
        """
        parts = launches(counts, sweep, print_note)
        seconds = [row_seconds(part, sweep.sizes, network.rate) for part in parts]
        progress = Progress([one for some in seconds for one in some])
        print_note(f"{_estimate(parts, seconds)}, longer beside other programs")
        with Cluster(network) as cluster, watched(cluster):
            while earlier:
                earlier.pop().unlink()
            print_note("ports of the first hosts")
            ports(cluster, folder)
            progress.begin()
            for at, part in enumerate(parts):
                measure(cluster, part, folder, print_note, progress)
                left = {one.hosts for one in parts[at + 1 :]}
                yield sum(hosts not in left for hosts in counts)

    def _print(self, network: Network, folder: Path) -> None:
        """Print the tables of a folder, and draw it."""
        points, measured = saved(folder)
        fitted = fit(measured, network.burst(network.rate))
        rows = compared(points, fitted, network.rate)
        if self.md:
            print("\n".join(lines(rows, fitted, network.rate)))
        else:
            screen = open_console(highlight=False, emoji=False, soft_wrap=False)
            screen.print(heading(fitted, network.rate), markup=False)
            for table in tables(rows, network.rate, screen.width):
                screen.print()
                screen.print(table.heading, style="bold", markup=False)
                screen.print(table.table, crop=False)
                screen.print(table.footnote, markup=False)
            for line in notes(rows, fitted, network.rate):
                screen.print()
                screen.print(line, markup=False)
        for line in errors(rows, FIT_HOSTS):
            print(line)
        if self.svg is not None:
            draw(rows, network.rate, self.svg)
        if self.out is not None and any(_in_model(row) for row in rows):
            print(f"\nnext: busbar reports model {shlex.quote(str(folder))} --out model.png")


def _estimate(parts: Sequence[Launch], seconds: Sequence[Sequence[float]]) -> str:
    """The estimated duration of launches, as ``12 rows in 3 launches: about 2 min 05 s``."""
    rows, starts = format_count(sum(map(len, seconds)), "row"), format_count(len(parts), "launch")
    return f"{rows} in {starts}: about {format_duration(_PORTS_S + sum(map(sum, seconds)))}"


def planned(
    network: Network, counts: Sequence[int], sweep: Sweep, out: Path | None
) -> Iterator[str]:
    """The lines of ``--dry-run``: the network, the command of each launch, the estimate."""
    folder = out or Path("DIR")
    yield from network_lines(network)
    left_out: list[str] = []
    parts = launches(counts, sweep, left_out.append)
    yield from (f"# {line}" for line in left_out)
    starts = [(min(FIT_HOSTS, network.hosts), _ports_words(folder))]
    starts += [(part.hosts, part.words(folder / part.file())) for part in parts]
    for hosts, words in starts:
        yield shlex.join(launching(python(*words), hosts))
    seconds = [row_seconds(part, sweep.sizes, network.rate) for part in parts]
    yield f"# {_estimate(parts, seconds)}, longer beside other programs"


def _remove(folder: Path) -> None:
    """Remove a folder of a law without rows, and what the law wrote into it."""
    for path in (*_records(folder), folder / _MAP):
        path.unlink(missing_ok=True)
    for place in (folder / _SLOWER, folder):
        with suppress(OSError):
            place.rmdir()


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
