"""``simulate``: times of schedules on a machine with shared links, and the links' load."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from busbar.errors import Unsupported
from busbar.sizes import human, parse_size, ranks, sweep
from collectives.commands.command import Subcommand, asked, new_table, schedule_options, show
from collectives.formats.load import draft, from_file
from collectives.schedule.catalogue import algorithms, collectives, spec

if TYPE_CHECKING:
    from rich.table import Table

    from collectives.schedule.spec import Collective
    from collectives.simulate.machines.machine import Machine
    from collectives.simulate.outcome import Outcome, Simulation

_MOST_RANKS = 1 << 20
_MOST_SIZES = 256
# Some gigabytes and minutes.
_MOST_WORK = 1.8e7
_SHOWN_LINKS = 5


def _options(parser: argparse.ArgumentParser) -> None:
    text = (
        "rank count (default: as many as the machine or the grid has); with --sweep n a list,"
        " 2-8,64"
    )
    schedule_options(parser, every=False, ranks="", ranks_help=text)
    option = parser.add_argument
    text = (
        "torus:8x8, fattree:32x32:taper=2, ring, full, dgx1, nvswitch, rail, dragonfly, each with"
        " gbs=, latency_us=, overhead_us=, add_gbs=, buffer_kib=, burst_kib= …; or a"
        " map's FILE (docs/simulation.md)"
    )
    option("--machine", required=True, metavar="SPEC", help=text)
    option(
        "-b",
        "--minbytes",
        default="1M",
        metavar="SIZE",
        help="size; with --sweep b the smallest (default 1M)",
    )
    option("-e", "--maxbytes", metavar="SIZE", help="with --sweep b: up to this size")
    option(
        "-f",
        "--stepfactor",
        type=float,
        default=4.0,
        metavar="F",
        help="factor between the sizes of --sweep b (default 4)",
    )
    option("--sweep", choices=("n", "b"), help="simulate several rank counts (n) or sizes (b)")
    text = "exact times, however long that takes; else large cases may be off by up to 10 %%"
    option("--exact", action="store_true", help=text)
    option("--svg", type=Path, metavar="FILE", help="draw link loads, or the sweep (.svg or .png)")


class _Case(NamedTuple):
    """One algorithm on one machine."""

    what: Collective
    name: str
    simulation: Simulation
    machine: Machine
    nranks: int
    exact: bool

    def run(self, nbytes: int) -> Outcome:
        """Simulate a size; says on stderr where the times are not exact."""
        found = self.simulation.run(nbytes, slack=0.0 if self.exact else None)
        if found.slack:
            from collectives.simulate.outcome import ERROR

            case = f"{self.name} on {self.nranks} ranks, {human(nbytes)}"
            print(
                f"collectives: {case}: too much goes on at once for exact times; in tests such were"
                f" within {ERROR:.0%} of them (--exact: exact, and slow)",
                file=sys.stderr,
            )
        return found


def _names(options: argparse.Namespace) -> list[str]:
    text: str = options.name
    return [text] if from_file(text) else text.split(",")


def _collective(options: argparse.Namespace, name: str) -> str:
    """The collective that is meant; where nothing says it, all-reduce if it has the algorithm."""
    if options.collective is not None:
        return spec(options.collective).name
    known = [each for each in collectives() if name in algorithms(each)]
    if "+" in name or "allreduce" in known:
        return "allreduce"
    if not known:
        raise Unsupported(
            f"no algorithm {name!r} in any collective; see python -m collectives list"
        )
    return known[0]


def _case(options: argparse.Namespace, text: str, nranks: int | None) -> _Case:
    """Build the schedule and the machine, and everything that does not depend on the size."""
    from collectives.model.sweep import work_about
    from collectives.simulate.machines.table import machine
    from collectives.simulate.outcome import Simulation

    own = argparse.Namespace(**{**vars(options), "name": text})
    name, given = asked(own)
    collective = _collective(own, name)
    if from_file(text) and nranks not in (None, int(own.ranks)):
        raise Unsupported(f"{text}: it is for {own.ranks} ranks, not {nranks}")
    if nranks is None:
        nranks = _counted(own, given)
    made = machine(options.machine, nranks or 8)
    nranks = nranks or made.nranks
    about = work_about(collective, name, nranks, given)
    if about > _MOST_WORK:
        raise Unsupported(
            f"{text} on {nranks} ranks has about {about:.1e} messages and steps to go through; at"
            f" most {_MOST_WORK:.1e} are simulated"
        )
    schedule = draft(collective, name, nranks, root=own.root, **given)
    simulation = Simulation(schedule, spec(collective), made)
    return _Case(spec(collective), text, simulation, made, nranks, options.exact)


def _counted(options: argparse.Namespace, given: dict[str, object]) -> int | None:
    """The rank count that the options say, or None."""
    if options.ranks:
        found = ranks(options.ranks, _MOST_RANKS)
        if len(found) != 1:
            raise Unsupported(f"-n {options.ranks}: one rank count is needed without --sweep n")
        return found[0]
    sides = given.get("grid") or given.get("dims")
    if isinstance(sides, tuple):
        count = 1
        for side in sides:
            count *= side
        return count
    return None


def _simulate(options: argparse.Namespace) -> int:
    size = parse_size(options.minbytes)
    if options.maxbytes is not None and options.sweep != "b":
        raise Unsupported("-e goes with --sweep b")
    if options.svg is not None:
        _drawable(options)
    if options.sweep is None:
        return _once(options, size)
    return _swept(options, size)


def _drawable(options: argparse.Namespace) -> None:
    """Refuse, before anything is simulated, a drawing that could not be made."""
    from busbar.figures import checked

    checked(options.svg)
    if options.sweep is None and len(_names(options)) > 1:
        raise Unsupported("--svg draws the link loads of one algorithm; name one, or --sweep")


def _once(options: argparse.Namespace, size: int) -> int:
    tables: dict[str, Table] = {}
    for text in _names(options):
        case = _case(options, text, None)
        found = case.run(size)
        title = f"{case.what.name} on {case.nranks} ranks, {case.machine.name}, {human(size)}"
        if title not in tables:
            tables[title] = _table(title, "algorithm")
        tables[title].add_row(text, _seconds(found.seconds), *_rates(case, size, found))
        if options.svg is not None:
            from collectives.simulate.draw import loads

            loads(found.machine, found, f"{text}: {title}", options.svg)
            print(f"drawn to {options.svg}", file=sys.stderr)
    notes: list[object] = []
    if len(_names(options)) == 1:
        notes = [_links(found)]
    show(*tables.values(), *notes, *_LEGEND)
    return 0


_RATES = ("algbw", "busbw")
_PARTS = ("posting", "latency", "wire", "sharing", "adding")
_LEGEND = (
    "algbw, busbw: GB/s. post … adding: shares of the time, along the chain of",
    "messages that the last rank waited for; sharing: what others on their links cost.",
)


def _table(title: str, first: str) -> Table:
    """A table with columns for a simulation; what is narrow folds the first."""
    table = new_table(title, first, "time", *_RATES, "post", *_PARTS[1:])
    for column, width in zip(table.columns[1:], (8, 5, 5, 4, 7, 4, 7, 6), strict=True):
        column.min_width = width
    return table


def _seconds(seconds: float) -> str:
    for unit, scale in (("s", 1.0), ("ms", 1e3), ("us", 1e6)):
        if seconds * scale >= 1:
            return f"{seconds * scale:.4g} {unit}"
    return f"{seconds * 1e9:.4g} ns"


def _bandwidths(case: _Case, size: int, found: Outcome) -> tuple[float, float]:
    """The algbw and busbw, bytes per second; 0 for a collective that moves nothing."""
    shown = case.what.size(case.nranks, size, 1).shown_bytes and size
    alg = shown * case.what.alg_factor(case.nranks) / found.seconds if found.seconds else 0.0
    return alg, alg * case.what.bus_factor(case.nranks)


def _rates(case: _Case, size: int, found: Outcome) -> list[str]:
    cells = [_gigabytes(rate) for rate in _bandwidths(case, size, found)]
    whole = found.seconds or 1.0
    return [*cells, *(f"{max(0.0, found.parts[part]) / whole:.0%}" for part in _PARTS)]


def _gigabytes(rate: float) -> str:
    """GB/s in five characters, as the table has for them at 80 columns."""
    value = rate / 1e9
    if value >= 1000:
        return f"{value:.0f}"
    return f"{value:.4g}" if value >= 1 else f"{value:.3g}"


def _links(found: Outcome) -> Table:
    """The busiest links, those that are as busy as each other in one line."""
    from collectives.simulate.outcome import busiest

    table = new_table("busiest links", "link", "links", "bytes each", "busy")
    for group in busiest(found, _SHOWN_LINKS):
        name = found.machine.link(group.link)
        table.add_row(name, str(group.links), human(group.nbytes), f"{group.busy:.1%}")
    return table


def _swept(options: argparse.Namespace, size: int) -> int:
    cases = _grown(options) if options.sweep == "n" else _sized(options, size)
    points: list[tuple[str, float, float, float]] = []
    tables = []
    for text, rows in cases.items():
        first = rows[0][0]
        title = f"{first.what.name} {text}, {options.machine}"
        title += f", {human(size)}" if options.sweep == "n" else f", {first.nranks} ranks"
        table = _table(title, "ranks" if options.sweep == "n" else "size")
        for case, nbytes in rows:
            found = case.run(nbytes)
            at = case.nranks if options.sweep == "n" else nbytes
            label = str(at) if options.sweep == "n" else human(at)
            table.add_row(label, _seconds(found.seconds), *_rates(case, nbytes, found))
            points.append((text, at, found.seconds, _bandwidths(case, nbytes, found)[1]))
        tables.append(table)
    show(*tables, *_LEGEND)
    if options.svg is not None:
        from collectives.simulate.draw import scaling

        first = next(iter(cases.values()))[0][0]
        fixed = human(size) if options.sweep == "n" else f"{first.nranks} ranks"
        title = f"{first.what.name}, {fixed}, simulated on {options.machine}"
        scaling(points, options.sweep, title, options.svg)
        print(f"drawn to {options.svg}", file=sys.stderr)
    return 0


def _grown(options: argparse.Namespace) -> dict[str, list[tuple[_Case, int]]]:
    """Every algorithm for every rank count that it serves."""
    if from_file(options.name):
        raise Unsupported(f"{options.name}: a file is for one rank count; use --sweep b")
    counts = ranks(options.ranks or "64", _MOST_RANKS)
    if len(counts) == 1:
        counts = [1 << bit for bit in range(1, counts[0].bit_length())] or counts
    size = parse_size(options.minbytes)
    found: dict[str, list[tuple[_Case, int]]] = {}
    for text in _names(options):
        rows: list[tuple[_Case, int]] = []
        refused: list[tuple[int, Unsupported]] = []
        for count in counts:
            try:
                rows.append((_case(options, text, count), size))
            except Unsupported as error:
                refused.append((count, error))
        if not rows:
            raise refused[-1][1]
        for count, reason in refused:
            print(f"collectives: {text} on {count} ranks: {reason}", file=sys.stderr)
        found[text] = rows
    return found


def _sized(options: argparse.Namespace, size: int) -> dict[str, list[tuple[_Case, int]]]:
    top = parse_size(options.maxbytes or "1G")
    sizes = sweep(size, max(size, top) if options.maxbytes is None else top,
                  factor=options.stepfactor, step=None)  # fmt: skip
    if len(sizes) > _MOST_SIZES:
        raise Unsupported(f"{len(sizes)} sizes; at most {_MOST_SIZES}, give a greater -f")
    found = {}
    for text in _names(options):
        case = _case(options, text, None)
        found[text] = [(case, nbytes) for nbytes in sizes]
    return found


COMMAND = Subcommand("what schedules take on a machine with shared links", _options, _simulate)
