"""`predict` and `simulate`: times of schedules that were not measured."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from math import isnan, nan
from pathlib import Path
from typing import SupportsIndex

from bench.api.calls import build, function_name, in_python, listed, python_names
from bench.api.keywords import Algorithm, Collective, Sizes
from bench.api.machine import map_names
from bench.api.public import public
from bench.api.results import ResultTable
from busbar.arguments import each
from busbar.errors import Unsupported
from busbar.tables import Column, render_lines
from busbar.units import (
    PREDICTED,
    SIMULATED,
    TimeStyle,
    format_count,
    format_rate,
    format_seconds,
    format_size,
    parse_size,
)
from collectives.formats.load import draft
from collectives.predict.interface import Operation
from collectives.predict.machine import Machine
from collectives.predict.maps import load_machine
from collectives.predict.named import build_network
from collectives.predict.predictor import choose_predictor
from collectives.predict.simulation import NetworkPredictor, check_effort
from collectives.schedule import catalogue
from collectives.schedule.cost import cost
from collectives.schedule.schedule import Schedule

_SIZES = ("1K", "64K", "1M", "16M", "256M")
_MOST_SIZES, _MOST_RANKS = 256, 1 << 20
Paths = str | Path | Sequence[str | Path]


@dataclass(frozen=True)
class PredictedTime:
    """The predicted time of an algorithm at one size, from `busbar.predict`.

    ``best``: True for the fastest at this size. ``bound_s``: the one-port bound, 0 where nothing is
    moved, None if it is not known (docs/model.md). ``steps``: steps with messages. ``sent``: bytes
    that leave the busiest rank, in units of the collective's total. ``busbw_bytes_per_s``: NaN for
    a collective that moves no data.
    """

    size: int
    ranks: int
    algorithm: str
    time_s: float
    busbw_bytes_per_s: float
    best: bool
    bound_s: float | None
    steps: int
    sent: float
    collective: str


@dataclass(frozen=True)
class SimulatedTime:
    """The simulated time of an algorithm at one size, from `busbar.simulate`.

    ``posting_s`` to ``adding_s``: parts of the time, along the chain of messages that the last rank
    waited for; ``sharing_s``: what others on its links cost. ``exact``: False if the time may be
    off by up to 10 %, as large cases are. ``busbw_bytes_per_s``: see `PredictedTime`.
    """

    size: int
    ranks: int
    algorithm: str
    time_s: float
    busbw_bytes_per_s: float
    posting_s: float
    latency_s: float
    wire_s: float
    sharing_s: float
    adding_s: float
    exact: bool
    collective: str
    machine: str


@public
def predict(
    collective: Collective = "allreduce",
    *,
    ranks: int = 8,
    algorithms: Algorithm | Sequence[Algorithm] = "all",
    sizes: Sizes = _SIZES,
    root: int = 0,
    topology: Paths | None = None,
    fit: str | Path | None = None,
) -> ResultTable[PredictedTime]:
    """Predict times of algorithms from the costs of links, as ``busbar collectives cost``.

    ``algorithms``: names, ``"all"``, or functions as for `run`. ``topology``: files that map the
    machine, as ``busbar topology --from`` reads them. ``fit``: measured costs, a file of ``busbar
    collectives fit``. Without both, an assumed network; the text says which.

    Raises Unsupported for names, rank counts and files that cannot be used, and MissingFile.
    """
    what, nbytes = catalogue.spec(str(collective)), _bytes(sizes, "busbar.predict")
    if topology is not None and not isinstance(topology, (str, Path, Sequence)):
        raise Unsupported(f"busbar.predict: topology is a file or several, not {topology!r}")
    if fit is not None and not isinstance(fit, (str, Path)):
        raise Unsupported(f"busbar.predict: fit is a file, not {fit!r}")
    files = [topology] if isinstance(topology, (str, Path)) else topology
    count = _ranks(ranks, "busbar.predict")
    root = _root(root, count)
    with python_names(), map_names():
        machine = load_machine(
            None if files is None else list(map(str, files)),
            None if fit is None else Path(fit),
            count,
        )
    predictor = choose_predictor(machine)
    left_out: list[str] = []
    times: dict[str, tuple[Schedule, Sequence[float]]] = {}
    for name, make in _schedules(collective, algorithms, root):
        try:
            schedule = make(count)
        except Unsupported as error:
            if algorithms != "all":
                raise
            left_out.append(f"left out: {error}")
            continue
        operation = Operation.of(schedule, collective, root=root)
        times[name] = schedule, predictor.seconds(operation, nbytes).tolist()
    if not times:
        raise Unsupported(left_out[0].removeprefix("left out: "))
    bounds = predictor.one_port_bound(collective, count, nbytes)
    lines = []
    for at, size in enumerate(nbytes):
        least = min(seconds[at] for _, seconds in times.values())
        for name, (schedule, seconds) in times.items():
            counts = cost(schedule, what)
            lines.append(
                PredictedTime(
                    size=size,
                    ranks=count,
                    algorithm=name,
                    time_s=seconds[at],
                    busbw_bytes_per_s=_busbw(collective, count, size, seconds[at]),
                    best=seconds[at] <= least * (1 + 1e-9),
                    bound_s=None if bounds is None else float(bounds[at]),
                    steps=counts.steps,
                    sent=counts.out,
                    collective=what.name,
                )
            )
    columns: list[Column] = [
        *_first_columns(lines, PREDICTED),
        ("", "left", ["best" if one.best else "" for one in lines]),
    ]
    title = f"{what.name} on {format_count(count, 'rank')}: predicted time, and busbw in GB/s"
    text = [title, *render_lines(columns), *left_out, *map(in_python, machine.notes)]
    return ResultTable(PredictedTime, lines, "\n".join(text))


@public
def simulate(
    collective: Collective = "allreduce",
    *,
    machine: str,
    ranks: int | None = None,
    algorithms: Algorithm | Sequence[Algorithm] | None = None,
    sizes: Sizes = _SIZES,
    root: int = 0,
    exact: bool = False,
) -> ResultTable[SimulatedTime]:
    """Simulate algorithms on a machine with shared links, as ``busbar collectives simulate``.

    ``machine``: such as ``"torus:8x8"``, ``"fattree:32x32:taper=2"``, ``"dgx1"``, or a map's file
    (docs/simulation.md). ``ranks``: default: as many as the machine has. ``algorithms``: default:
    the usual one of the collective, such as ring. ``exact``: exact times, however long that takes.

    Raises Unsupported for names, machines and rank counts that cannot be used, and MissingFile.
    """
    what, nbytes = catalogue.spec(str(collective)), _bytes(sizes, "busbar.simulate")
    requested = None if ranks is None else _ranks(ranks, "busbar.simulate")
    with python_names(values=[machine]), map_names():
        network = build_network(str(machine), requested)
    count = network.nranks if requested is None else requested
    root = _root(root, count)
    if algorithms is None:
        algorithms = catalogue.usual(what.name)
    predictor = NetworkPredictor(Machine(network=network))
    lines = []
    for name, make in _schedules(collective, algorithms, root):
        if name in catalogue.algorithms(what.name):
            check_effort(collective, name, count, {}, network)
        schedule = make(count)
        simulation = predictor.simulation(Operation.of(schedule, collective, root=root))
        for size in nbytes:
            result = simulation.run(size, slack=0.0 if exact else None)
            lines.append(
                SimulatedTime(
                    size=size,
                    ranks=count,
                    algorithm=name,
                    time_s=result.seconds,
                    busbw_bytes_per_s=_busbw(collective, count, size, result.seconds),
                    # Differences of equal times may be a little below 0.
                    **{f"{part}_s": max(0.0, value) for part, value in result.parts.items()},
                    exact=not result.slack,
                    collective=what.name,
                    machine=network.name,
                )
            )
    columns: list[Column] = [
        *_first_columns(lines, SIMULATED),
        ("latency", "right", [_share(one.latency_s, one.time_s) for one in lines]),
        ("wire", "right", [_share(one.wire_s, one.time_s) for one in lines]),
        ("sharing", "right", [_share(one.sharing_s, one.time_s) for one in lines]),
        ("", "left", ["" if one.exact else "within 10 %" for one in lines]),
    ]
    where = f"{format_count(count, 'rank')}, {network.name}"
    title = f"{what.name} on {where}: simulated time, busbw in GB/s, and shares of the time"
    text = [title, *render_lines(columns), *(f"links: {note}" for note in network.notes)]
    return ResultTable(SimulatedTime, lines, "\n".join(text))


def _schedules(
    collective: str, algorithms: Algorithm | Iterable[Algorithm], root: int
) -> list[tuple[str, Callable[[int], Schedule]]]:
    """The name of each algorithm, and a function from a rank count to its schedule."""
    if algorithms == "all":
        algorithms = catalogue.algorithms(collective)
    makers: list[tuple[str, Callable[[int], Schedule]]] = []
    for one in listed(algorithms):
        if callable(one):
            make = partial(build, one, collective, root=root)
            makers.append((function_name(one, collective), make))
        else:
            makers += [(name, _of_name(name, collective, root)) for name in str(one).split(",")]
    return makers


def _of_name(text: str, collective: str, root: int) -> Callable[[int], Schedule]:
    name, parameters = catalogue.parse(text)

    def make(ranks: int) -> Schedule:
        with python_names():
            return draft(collective, name, ranks, root=root, **parameters)

    return make


def _bytes(sizes: Sizes, of: str) -> list[int]:
    texts = sizes.split(",") if isinstance(sizes, str) else list(each(sizes))
    if not 0 < len(texts) <= _MOST_SIZES:
        raise Unsupported(f"{of}: {len(texts)} sizes; from 1 to {_MOST_SIZES} are possible")
    try:
        nbytes = sorted({parse_size(str(one)) for one in texts})
    except Unsupported as error:
        raise Unsupported(f"sizes: {error}") from None
    if nbytes[0] < 1:
        raise Unsupported(f"{of}: sizes begin at 1 byte")
    return nbytes


def _ranks(ranks: SupportsIndex, of: str) -> int:
    count = int(ranks) if isinstance(ranks, SupportsIndex) else 0
    if not 1 <= count <= _MOST_RANKS:
        raise Unsupported(f"{of}: ranks is one number from 1 to {_MOST_RANKS}, not {ranks!r}")
    return count


def _root(root: SupportsIndex, ranks: int) -> int:
    rank = int(root) if isinstance(root, SupportsIndex) else -1
    if not 0 <= rank < ranks:
        raise Unsupported(f"root {root!r} is not a rank; there are {ranks}, from 0")
    return rank


def _busbw(collective: str, ranks: int, size: int, seconds: float) -> float:
    """Bytes per second; NaN for a collective that moves no data, and for no time."""
    what = catalogue.spec(collective)
    if seconds <= 0 or not what.size(ranks, size, 1).shown_bytes:
        return nan
    return what.alg_factor(ranks) * what.bus_factor(ranks) * size / seconds


def _first_columns(
    lines: Sequence[PredictedTime | SimulatedTime], style: TimeStyle
) -> list[Column]:
    """The columns of both tables; ``style``: of the times."""
    rates = [one.busbw_bytes_per_s for one in lines]
    return [
        ("size", "right", [format_size(one.size) for one in lines]),
        ("algorithm", "left", [one.algorithm for one in lines]),
        ("time", "right", [format_seconds(one.time_s, style) for one in lines]),
        ("busbw", "right", ["-" if isnan(rate) else format_rate(rate) for rate in rates]),
    ]


def _share(part: float, whole: float) -> str:
    return f"{max(0.0, part) / (whole or 1.0):.0%}"
