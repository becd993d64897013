"""Algorithms side by side: counts, predicted times by size, the best, and the crossovers."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from busbar.errors import Unsupported
from busbar.units import MOST_RANKS
from collectives.formats.load import draft, is_file
from collectives.predict.effort import LEAST_ESTIMATED, grown
from collectives.predict.interface import CollectivePredictor, Operation
from collectives.predict.machine import Amounts
from collectives.predict.ports import chunk_bytes
from collectives.schedule.catalogue import spec
from collectives.schedule.cost import Cost, cost
from collectives.schedule.schedule import Schedule, runs_of

#: Schedules with more moves than this are left out, because they would take long.
MOST_MOVES = 50_000_000
# Relative differences below this are rounding errors.
_EQUAL = 1e-9


@dataclass(frozen=True)
class Contender:
    """An algorithm to compare, on some ranks.

    ``seconds``: predicted, an array with one value for each size; None without costs of links.
    """

    name: str
    schedule: Schedule
    cost: Cost
    seconds: Amounts | None = None


@dataclass(frozen=True)
class Crossover:
    """A size in bytes from which ``better`` is predicted to be the fastest."""

    size: int
    better: str


def count_moves(schedule: Schedule, every: bool = True) -> int:
    """Count the moves of all steps; if not ``every``, only of steps whose signatures differ."""
    known: dict[Hashable, int] = {}
    total = 0
    for i, (first, count, _) in enumerate(runs_of(schedule.steps)):
        signature = i if first.signature is None else first.signature
        fresh = signature not in known
        if fresh:
            known[signature] = len(first.moves())
        total += known[signature] * (count if every else fresh)
    return total


def estimate_moves(collective: str, name: str, nranks: int, every: bool = True) -> float:
    """Estimate the number of moves of a schedule without building it; 0 up to 512 ranks.

    ``every``: see `count_moves`. Raises Unsupported as `draft` does.
    """
    if nranks <= LEAST_ESTIMATED or is_file(name):
        return 0.0
    return grown(lambda n: [count_moves(draft(collective, name, n), every)], nranks)[0]


def _check_moves(name: str, nranks: int, moves: float) -> None:
    """Raise Unsupported if a schedule has too many moves."""
    if moves > MOST_MOVES:
        raise Unsupported(
            f"{name} on {nranks} ranks has about {moves:.1e} moves; at most {MOST_MOVES:.1e} are"
            " looked at"
        )


def port_volume(operation: Operation) -> float:
    """Bytes through the busiest port, summed over steps, for a collective of one byte.

    This is the bandwidth term of the textbooks (Chan et al. 2007; Thakur et al. 2005), where steps
    do not overlap: 2(P-1)/P for a ring, 2(P-1) for a parameter server, lg P for recursive doubling.
    A port sends and receives at once, so only the busier of its two directions counts.
    """
    schedule, ranks = operation.schedule, operation.ranks
    total = 0.0
    for step in schedule.steps:
        m = step.moves().remote()
        total += max(np.bincount(end, m.count, ranks).max(initial=0.0) for end in (m.src, m.dst))
    return total * chunk_bytes(operation.spec, ranks, schedule.nchunks, 1.0)


def compare_algorithms(
    collective: str,
    names: Sequence[str],
    nranks: int,
    *,
    root: int = 0,
    predictor: CollectivePredictor | None = None,
    sizes: Sequence[int] = (),
    parameters: Mapping[str, object] | None = None,
    strict: bool = False,
) -> tuple[list[Contender], dict[str, str]]:
    """Count and predict algorithms. Also returns, by name, why others do not run on so many ranks.

    ``parameters``: of the algorithms. ``strict``: raise Unsupported for the first algorithm that
    does not run, instead of leaving it out.
    """
    contenders: list[Contender] = []
    refused: dict[str, str] = {}
    chosen = dict(parameters or {})
    what = spec(collective)
    for name in names:
        try:
            # A parameter such as a grid may fit only this number of ranks.
            small = chosen or nranks <= MOST_RANKS
            if not small:
                _check_moves(name, nranks, estimate_moves(collective, name, nranks, every=False))
            schedule = draft(collective, name, nranks, root=root, **chosen)
            # Times are predicted step by step.
            if not small and predictor is not None:
                _check_moves(name, nranks, count_moves(schedule))
        except Unsupported as error:
            if strict:
                raise
            refused[name] = str(error)
            continue
        counts = cost(schedule, what)
        times = None
        if predictor is not None:
            times = predictor.seconds(Operation.of(schedule, collective), sizes)
        contenders.append(Contender(name, schedule, counts, times))
    return contenders, refused


def find_crossovers(
    collective: str,
    candidates: Sequence[Contender],
    predictor: CollectivePredictor,
    sizes: Sequence[int],
) -> list[Crossover]:
    """Find the sizes at which the fastest candidate changes, within about 2 %.

    If two are equally fast, the earlier one stays the fastest. Sizes too small to move anything, at
    which all take no time, are left out.
    """
    timed = [c for c in candidates if c.seconds is not None]
    if not timed:
        return []
    table = np.array([c.seconds for c in timed])
    changes: list[Crossover] = []
    first = int(table.any(axis=0).argmax())
    best = int(table[:, first].argmin())
    for i in range(first + 1, len(sizes)):
        better = int(table[:, i].argmin())
        if table[better, i] < table[best, i] * (1 - _EQUAL):
            pair = timed[best], timed[better]
            size = _where(collective, *pair, predictor, sizes[i - 1], sizes[i])
            changes.append(Crossover(size, pair[1].name))
            best = better
    return changes


def _where(
    collective: str,
    one: Contender,
    other: Contender,
    predictor: CollectivePredictor,
    low: int,
    high: int,
) -> int:
    """Find the first size above ``low``, up to ``high``, at which the other is faster."""
    while high - low > max(4, low // 50):
        grid = np.unique(np.geomspace(low, high, 17).astype(np.int64))
        operations = (Operation.of(c.schedule, collective) for c in (one, other))
        a, b = (predictor.seconds(operation, grid.tolist()) for operation in operations)
        ahead = np.flatnonzero(b < a * (1 - _EQUAL))
        ahead = ahead[ahead > 0]
        at = int(ahead[0]) if len(ahead) else len(grid) - 1
        low, high = int(grid[at - 1]), int(grid[at])
    return high
