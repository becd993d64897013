"""``simulate``: simulated times of schedules on a machine with shared links, and link loads."""

from __future__ import annotations

import sys
from dataclasses import replace
from itertools import product
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from busbar.commands import Command
from busbar.errors import Unsupported
from busbar.files import check_figure as checked
from busbar.options import option, switch
from busbar.tables import new_table
from busbar.units import (
    SIMULATED,
    five_characters,
    format_bytes,
    format_count,
    format_rate,
    format_seconds,
    parse_ranks,
    parse_size,
)
from collectives.commands.command import (
    PROSE,
    SchedulesOptions,
    ranks_of_grid,
    server_over_ring,
    show,
    sizes_between,
)
from collectives.formats.load import draft, is_file
from collectives.schedule.catalogue import spec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

    from collectives.predict.machine import Network
    from collectives.predict.simulation import Simulation, SimulationResult
    from collectives.schedule.spec import Collective

_MOST_RANKS = 1 << 20
_SHOWN_LINKS = 5


class SimulateCommand(SchedulesOptions, Command):
    """Simulate the time of schedules on a machine with shared links."""

    ELSEWHERE: ClassVar = {
        "topology": "--machine FILE",
        "fit": "--machine with the map that was fitted, or busbar collectives cost",
    }

    ranks: str = option(
        "-n --ranks  number of ranks (default: as many as the machine or the grid has); with"
        " --sweep n a list, 2-8,64",
        "",
    )
    machine: str = option(
        "--machine SPEC  torus:8x8, fattree:32x32:taper=2, ring, full, dgx1, nvswitch, rail,"
        " dragonfly, each with gbs=, latency_us=, overhead_us=, add_gbs=, buffer_kib=, burst_kib="
        " …; or a map's FILE (docs/simulation.md)",
        "",
    )
    minbytes: str = option("-b --minbytes SIZE  size; with --sweep b the smallest", "1M")
    maxbytes: str | None = option(
        "-e --maxbytes SIZE  with --sweep b: up to this size (default 1G)"
    )
    stepfactor: float = option("-f --stepfactor F  factor between the sizes of --sweep b", 4.0)
    sweep: str | None = option(
        "--sweep  simulate several rank counts (n) or sizes (b)", choices=("n", "b")
    )
    exact: bool = switch(
        "--exact  exact times, however long that takes; otherwise times of large cases may be wrong"
        " by up to 10 %"
    )
    svg: Path | None = option("--svg FILE  draw link loads, or the sweep (.svg or .png)")

    def run(self) -> int:
        """Simulate every algorithm at every rank count or size, and show them in tables."""
        if not self.machine:
            raise Unsupported(
                "simulate needs a machine: --machine nvswitch:8 has 8 ranks with a port each,"
                " full:8 a link for each pair, fattree:4x4 two levels of switches"
                " (docs/simulation.md)"
            )
        sizes = _sizes(self)
        names = self.names(self.collective or "allreduce")
        if self.svg is not None:
            checked(self.svg)
            if self.sweep is None and len(names) > 1:
                raise Unsupported(
                    "--svg draws the link loads of one algorithm; name one, or --sweep"
                )
        tables: dict[str, _Rows] = {}
        points: list[_Point] = []
        last: dict[str, SimulationResult] = {}
        notes: dict[str, None] = {}
        refused: list[Unsupported] = []
        for text in names:
            try:
                cases = _grown(self, text) if self.sweep == "n" else [_case(self, text, None)]
            except Unsupported as error:
                if self.name != "all":
                    raise
                refused.append(error)
                continue
            for case, nbytes in product(cases, sizes):
                result = last[text] = case.run(nbytes)
                points.append(point := _Point.of(case, nbytes, result))
                title, head, first = _labels(self, point, case.machine.name)
                tables.setdefault(title, _Rows(head)).add(first, point, result)
                notes |= dict.fromkeys(result.machine.notes)
        if not points:
            raise refused[-1]
        for reason in refused:
            print(f"collectives: left out: {reason}", file=sys.stderr)
        loads = {} if self.sweep or self.name == "all" else last
        busiest = [_links(result, name) for name, result in loads.items()]
        lines = [*_LEGEND, *(_LINKS_LEGEND if busiest else ()), *_latency_bound(points)]
        lines += [*_server_over_ring(points), *_own_links(self.machine)]
        lines += [line for note in notes for line in wrap(f"links: {note}", PROSE)]
        show(*(rows.table(title) for title, rows in tables.items()), *busiest, *lines)
        if self.svg is not None:
            self._draw(self.svg, result, title, points)
        return 0

    def _draw(
        self, path: Path, result: SimulationResult, title: str, points: Sequence[_Point]
    ) -> None:
        """Draw the sweep, or the link loads of ``result``, whose table has this title."""
        from collectives.predict.draw import draw_loads, draw_scaling

        if self.sweep is None:
            draw_loads(result.machine, result, f"{points[0].name}: {title}", path)
        else:
            title = f"{points[-1].collective}, {_fixed(self, points[-1])}"
            drawn = [
                (p.name, p.nranks if self.sweep == "n" else p.nbytes, p.seconds, p.busbw)
                for p in points
            ]
            draw_scaling(drawn, self.sweep, f"{title}, simulated on {self.machine}", path)
        print(f"drawn to {path}", file=sys.stderr)


class _Point(NamedTuple):
    """A simulated time of an algorithm, as requested by ``name``.

    ``algbw``, ``busbw``: bytes per second; 0 for a collective that moves no data. ``latency``: the
    share of latencies in the time.
    """

    name: str
    collective: str
    nranks: int
    nbytes: int
    seconds: float
    algbw: float
    busbw: float
    latency: float

    @classmethod
    def of(cls, case: _Case, nbytes: int, result: SimulationResult) -> _Point:
        """The point of a result."""
        what, nranks, seconds = case.what, case.nranks, result.seconds
        shown = what.size(nranks, nbytes, 1).shown_bytes and nbytes
        alg = shown * what.alg_factor(nranks) / seconds if seconds else 0.0
        bus, latency = alg * what.bus_factor(nranks), result.parts["latency"] / (seconds or 1.0)
        return cls(case.name, what.name, nranks, nbytes, seconds, alg, bus, latency)


class _Case(NamedTuple):
    """One algorithm on one machine."""

    what: Collective
    name: str
    simulation: Simulation
    machine: Network
    nranks: int
    exact: bool

    def run(self, nbytes: int) -> SimulationResult:
        """Simulate one size; prints a warning to stderr if the times are not exact."""
        result = self.simulation.run(nbytes, slack=0.0 if self.exact else None)
        if result.slack:
            from collectives.predict.simulation import ERROR

            case = f"{self.name} on {format_count(self.nranks, 'rank')}, {format_bytes(nbytes)}"
            print(
                f"collectives: {case}: too much goes on at once for exact times; in tests such were"
                f" within {ERROR:.0%} of them (--exact: exact, and slow)",
                file=sys.stderr,
            )
        return result


class _Rows:
    """The rows of one table, and the rates (bytes/s) and latencies (seconds) of their links.

    ``head``: the head of the first column.
    """

    def __init__(self, head: str) -> None:
        self._head = head
        self._cells: list[list[str]] = []
        self._rates: set[float] = set()
        self._latencies: set[float] = set()

    def add(self, first: str, point: _Point, result: SimulationResult) -> None:
        """Add a row whose first cell is ``first``."""
        links, whole = result.machine.links, result.seconds or 1.0
        for ends, values in ((self._rates, links.rate), (self._latencies, links.latency)):
            if len(values):
                ends.update((float(values.min()), float(values.max())))
        rates = (format_rate(rate, five_characters) for rate in (point.algbw, point.busbw))
        parts = (f"{max(0.0, result.parts[part]) / whole:.0%}" for part in _PARTS)
        self._cells.append([first, format_seconds(result.seconds, SIMULATED), *rates, *parts])

    def table(self, title: str) -> Table:
        """The table, without parts that take no time; a narrow terminal folds the first column."""
        heads = [self._head, "time", "algbw", "busbw", "post", *_PARTS[1:]]
        columns = zip(heads, zip(*self._cells, strict=True), _WIDTHS, strict=True)
        kept = [
            (head, cells, width)
            for head, cells, width in columns
            if head not in ("post", "adding") or {*cells} != {"0%"}
        ]
        table = new_table(f"{title}; {self._links()}", *(head for head, *_ in kept))
        for column, (*_, width) in zip(table.columns, kept, strict=True):
            column.min_width = width
        for row in zip(*(cells for _, cells, _ in kept), strict=True):
            table.add_row(*row)
        return table

    def _links(self) -> str:
        """``links 25 GB/s, 0.5 us``, or ranges: ``links 10 to 40 GB/s, 0.5 us``."""
        rates = dict.fromkeys(f"{each / 1e9:.3g}" for each in sorted(self._rates))
        latencies = dict.fromkeys(f"{1e6 * each:.3g}" for each in sorted(self._latencies))
        ends = [" to ".join([*texts][:: len(texts) - 1 or 1]) for texts in (rates, latencies)]
        return f"links {ends[0]} GB/s, {ends[1]} us"


def _case(options: SimulateCommand, text: str, nranks: int | None) -> _Case:
    """Build the schedule, the machine and the simulation, none of which depends on the size."""
    from collectives.predict.interface import Operation
    from collectives.predict.machine import Machine
    from collectives.predict.named import build_network
    from collectives.predict.simulation import NetworkPredictor, check_effort

    own, name, parameters = replace(options, name=text).algorithm()
    collective = own.collective_of(name)
    if is_file(text) and nranks not in (None, int(own.ranks)):
        raise Unsupported(f"{text}: it is for {own.ranks} ranks, not {nranks}")
    if nranks is None:
        nranks = _counted(own, parameters)
    network = build_network(options.machine, nranks)
    nranks = nranks or network.nranks
    check_effort(collective, name, nranks, parameters, network)
    schedule = draft(collective, name, nranks, root=own.root, **parameters)
    predictor = NetworkPredictor(Machine(network=network))
    simulation = predictor.simulation(Operation.of(schedule, collective))
    return _Case(spec(collective), text, simulation, network, nranks, options.exact)


def _counted(options: SimulateCommand, parameters: dict[str, object]) -> int | None:
    """The rank count of ``--ranks`` or of the grid; None if the options have neither."""
    if options.ranks:
        counts = parse_ranks(options.ranks, _MOST_RANKS)
        if len(counts) != 1:
            raise Unsupported(f"-n {options.ranks}: one rank count is needed without --sweep n")
        return counts[0]
    return ranks_of_grid(parameters)


def _sizes(options: SimulateCommand) -> list[int]:
    """The sizes to simulate, one unless --sweep b asks for several."""
    size = parse_size(options.minbytes)
    if options.sweep != "b":
        if options.maxbytes is not None:
            raise Unsupported("-e goes with --sweep b")
        return [size]
    return sizes_between(size, parse_size(options.maxbytes or "1G"), options.stepfactor)


def _grown(options: SimulateCommand, text: str) -> list[_Case]:
    """One case for each requested rank count that the algorithm supports."""
    if is_file(text):
        raise Unsupported(f"{text}: a file is for one rank count; use --sweep b")
    counts = parse_ranks(options.ranks or "64", _MOST_RANKS)
    if len(counts) == 1:
        counts = [1 << bit for bit in range(1, counts[0].bit_length())] or counts
    cases: list[_Case] = []
    refused: list[tuple[int, Unsupported]] = []
    for count in counts:
        try:
            cases.append(_case(options, text, count))
        except Unsupported as error:
            refused.append((count, error))
    if not cases:
        raise refused[-1][1]
    for count, reason in refused:
        print(f"collectives: {text} on {format_count(count, 'rank')}: {reason}", file=sys.stderr)
    return cases


def _fixed(options: SimulateCommand, point: _Point) -> str:
    """The quantity that a sweep does not change: the rank count or the size."""
    if options.sweep == "b":
        return format_count(point.nranks, "rank")
    return format_bytes(point.nbytes)


def _labels(options: SimulateCommand, point: _Point, machine: str) -> tuple[str, str, str]:
    """The labels of a simulation: the table's title, its first column's head, its text there.

    ``machine``: its name.
    """
    if options.sweep is None:
        where = f"{format_count(point.nranks, 'rank')}, {machine}"
        title = f"{point.collective} on {where}, {format_bytes(point.nbytes)}"
        return title, "algorithm", point.name
    title = f"{point.collective} {point.name}, {options.machine}, {_fixed(options, point)}"
    if options.sweep == "n":
        return title, "ranks", str(point.nranks)
    return title, "size", format_bytes(point.nbytes)


def _own_links(machine: str) -> list[str]:
    """Why ps can be as fast as a ring: each pair of ranks has a link of its own."""
    if machine.split(":")[0] != "full":
        return []
    return [
        "full: each pair of ranks has a link of its own, so a rank sends to all others at",
        "once, and ps takes P/(P-1) times as long as a ring. With one port a rank it is P",
        "times where bytes and not latencies take the time: --machine fattree:8 -b 64M.",
    ]


def _server_over_ring(points: Sequence[_Point]) -> list[str]:
    """Lines on ps over ring, for each rank count a sentence on the sizes that both have."""
    from collectives.predict.compare import port_volume
    from collectives.predict.interface import Operation

    at = {(p.name, p.nranks, p.nbytes): p for p in points if p.collective == "allreduce"}
    ratios: dict[int, dict[int, float]] = {}
    for (name, nranks, nbytes), server in at.items():
        ring = at.get(("ring", nranks, nbytes))
        if name == "ps" and ring is not None and nranks > 1:
            ratios.setdefault(nranks, {})[nbytes] = server.seconds / ring.seconds
    lines: list[str] = []
    for nranks, by_size in ratios.items():
        volumes = [port_volume(Operation("allreduce", each, nranks)) for each in ("ps", "ring")]
        lines += server_over_ring(by_size, nranks, volumes[0] / volumes[1])
    return lines


def _latency_bound(points: Sequence[_Point]) -> list[str]:
    """Lines on rows whose time is mostly latency, so that it does not follow the bytes."""
    # A collective that moves no data, such as a barrier, is latency at any size.
    bound = [point for point in points if point.algbw and point.latency > _MOSTLY]
    if not bound:
        return []
    most = max(bound, key=lambda point: point.latency)
    where = f"{most.name} at {format_bytes(most.nbytes)} on {format_count(most.nranks, 'rank')}"
    rows = f", and more than half in {len(bound)} of {len(points)} rows" if points[1:] else ""
    text = (
        f"latency is {most.latency:.0%} of the time of {where}{rows}: such times depend on the"
        " steps that follow each other, not on the bytes; at larger sizes (-b) bytes decide"
    )
    return wrap(text, PROSE)


# From this share of latency on, a time says little of bytes and rates.
_MOSTLY = 0.5
_PARTS = ("posting", "latency", "wire", "sharing", "adding")
# The least width of each column: first, time, algbw, busbw, and the parts.
_WIDTHS = (None, 8, 5, 5, 4, 7, 4, 7, 6)
_LEGEND = (
    "algbw, busbw: GB/s. %: shares of the time, along the chain of messages that the",
    "last rank waited for: post(ing) messages, latency, on the wire, sharing (what",
    "others on their links cost), adding. Post and adding are left out where 0.",
)
_LINKS_LEGEND = (
    "Column links: how many have the same rate and load as the one that is named;",
    "busy: the share of the time for which the bytes of each keep it at full rate.",
)


def _links(result: SimulationResult, name: str) -> Table:
    """A table of the busiest links. Links that are equally busy share a row."""
    from collectives.predict.simulation import find_busiest

    table = new_table(f"busiest links of {name}", "link", "links", "bytes each", "busy")
    for group in find_busiest(result, _SHOWN_LINKS):
        name = result.machine.link(group.link)
        table.add_row(name, str(group.links), format_bytes(group.nbytes), f"{group.busy:.1%}")
    return table
