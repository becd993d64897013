"""Predicted times of measured rows, from a fit.

This is the only module of reports that uses the cost model. A library's row has no schedule and so
no prediction here; for NCCL there is its own published model (`nccl_system`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from busbar.errors import BusbarError, ReportError
from busbar.files import decoded
from collectives.predict import nccl
from collectives.predict.fit import Fit, digest, read_fit
from collectives.predict.maps import given
from collectives.predict.ports import seconds
from collectives.predict.predictor import Predictor
from collectives.schedule.catalogue import draft, spec
from reports.readers.text import read_bytes
from reports.records.record import LIBRARY
from reports.records.rows import Expected, Row

#: The fit of a file.
open_fit = read_fit


def open_machine(
    path: Path | None, *, assume: bool
) -> tuple[Callable[[str, int, Sequence[int]], Sequence[float | None]], Callable[[], list[str]]]:
    """A function (all-reduce algorithm, ranks, sizes) to seconds, and one that says on what costs.

    By a fit; where there is none by an assumed network if ``assume``, else not at all. Raises
    ReportError naming the fit.
    """
    if path is None and not assume:
        return lambda name, ranks, sizes: [None] * len(sizes), list
    if path is None:
        priced, notes = given(None, None, 2)

        def assumed(name: str, ranks: int, sizes: Sequence[int]) -> Sequence[float | None]:
            schedule = draft("allreduce", name, ranks)
            return [float(t) for t in seconds(schedule, spec("allreduce"), priced, sizes)]

        return assumed, lambda: notes
    predictor = Predictor(open_fit(path))
    asked: list[int] = []

    def fitted(name: str, ranks: int, sizes: Sequence[int]) -> Sequence[float | None]:
        asked.append(ranks)
        return predictor.seconds("allreduce", name, ranks, sizes)

    return fitted, lambda: [line for ranks in asked for line in predictor.machine(ranks)[1]]


def predictions(rows: Sequence[Row], fit: Fit) -> list[float | None]:
    """Predicted seconds of each row, None where there is none. Rows of one schedule go together."""
    found: list[float | None] = [None] * len(rows)
    predictor = Predictor(fit)
    groups: dict[tuple[str, str, int, str, int, bool], list[int]] = {}
    for i, row in enumerate(rows):
        if row.ranks is not None and row.size is not None and row.algorithm:
            words = (row.collective, row.algorithm, row.ranks, row.dtype, max(0, row.root or 0))
            groups.setdefault((*words, row.placement.startswith("in")), []).append(i)
    for (collective, algorithm, ranks, dtype, root, inside), places in groups.items():
        sizes = [rows[i].size or 0 for i in places]
        times = predictor.seconds(
            collective, algorithm, ranks, sizes, dtype=dtype, root=root, in_place=inside
        )
        for i, time in zip(places, times, strict=True):
            found[i] = time
    return found


def beside(rows: Sequence[Row], fit: Fit) -> Callable[[Row], Expected]:
    """The prediction of each row, and the lower bound of any algorithm's time.

    Of the rows that the fit's transport carried; other rows, and rows of libraries, have the bound
    at most.
    """
    transports = {costs.transport for costs in fit.costs}
    mine = [row for row in rows if row.transport in transports or row.algorithm == LIBRARY]
    predictor = Predictor(fit)
    found = {
        id(row): Expected(time, predictor.bound(row.collective, row.ranks, row.size))
        for row, time in zip(mine, predictions(mine, fit), strict=True)
    }
    return lambda row: found.get(id(row), Expected())


def sources(path: Path) -> set[str]:
    """SHA-256 of a file, or of every file in a run directory: what a fit would remember it by."""
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    try:
        return {digest(file.read_bytes()) for file in files if file.is_file()}
    except OSError as error:
        raise ReportError(f"{path}: cannot be read: {error.strerror}") from None


def nccl_system(log: Path, sm: int, ranks: int, nodes: int) -> nccl.System:
    """The system that NCCL's log of its graphs describes. Raises ReportError naming the file."""
    graphs = nccl.graphs(decoded(read_bytes(log)[0]))
    if not graphs:
        raise ReportError(
            f"{log}: no line 'Pattern …, nChannels …'; run with NCCL_DEBUG=INFO"
            " NCCL_DEBUG_SUBSYS=GRAPH"
        )
    return nccl.System(sm, ranks, graphs, nodes)


def nccl_seconds(row: Row, system: nccl.System) -> float | None:
    """NCCL's model for a row; None for a collective that it lacks."""
    if row.size is None:
        return None
    try:
        found = nccl.predict(system, row.collective, row.size)
    except BusbarError:
        return None
    return None if found is None else found[0]
