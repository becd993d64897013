"""Predicted times of measured rows, from a fit.

Only this module of reports uses predictors. A library's row has no schedule, so no prediction
from a fit. For NCCL there is its own published model (`nccl_machine`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from busbar.errors import BusbarError, ReportError, Unsupported
from busbar.files import decoded
from collectives.predict.fit import Fit, digest, read_fit
from collectives.predict.interface import ITEM_BYTES, CollectivePredictor, Operation
from collectives.predict.machine import Machine
from collectives.predict.maps import assumed_machine
from collectives.predict.nccl import NcclPredictor, machine_from_log
from collectives.predict.predictor import FitPredictor, choose_predictor
from collectives.schedule.catalogue import collectives
from collectives.schedule.dtypes import dtype
from reports.readers.text import read_bytes
from reports.records.measurement import LIBRARY, Expected, Measurement

#: Read the fit in a file.
open_fit = read_fit


def open_machine(
    path: Path | None, *, assume: bool
) -> tuple[Callable[[str, int, Sequence[int]], Sequence[float | None]], Callable[[], list[str]]]:
    """Two functions: (algorithm, ranks, sizes) -> seconds of all-reduce, and the model's notes.

    Seconds come from the fit in ``path``. Without a path they come from an assumed network if
    ``assume``, and are None otherwise. Raises ReportError if the fit cannot be read.
    """
    if path is None and not assume:
        return lambda name, ranks, sizes: [None] * len(sizes), list
    if path is None:
        assumed = choose_predictor(assumed_machine())

        def by_assumption(name: str, ranks: int, sizes: Sequence[int]) -> Sequence[float | None]:
            return _seconds(assumed, Operation("allreduce", name, ranks), sizes)

        return by_assumption, lambda: list(assumed.machine.notes)
    predictor = FitPredictor(open_fit(path))
    predicted: list[int] = []

    def by_fit(name: str, ranks: int, sizes: Sequence[int]) -> Sequence[float | None]:
        predicted.append(ranks)
        return _seconds(predictor.on(ranks), Operation("allreduce", name, ranks), sizes)

    return by_fit, lambda: [line for n in predicted for line in predictor.on(n).machine.notes]


def _seconds(
    predictor: CollectivePredictor, operation: Operation, sizes: Sequence[int]
) -> list[float | None]:
    """Seconds at each size; None if the predictor does not cover the operation."""
    if predictor.refusal(operation):
        return [None] * len(sizes)
    return [float(seconds) for seconds in predictor.seconds(operation, sizes)]


def _itemsize(name: str) -> int:
    try:
        return dtype(name).itemsize
    except BusbarError:
        return ITEM_BYTES


def predictions(rows: Sequence[Measurement], fit: Fit) -> list[float | None]:
    """Predicted seconds of each row, or None. Rows of one schedule are predicted together."""
    predicted: list[float | None] = [None] * len(rows)
    predictor = FitPredictor(fit)
    groups: dict[tuple[str, str, int, str, int, bool], list[int]] = {}
    for i, row in enumerate(rows):
        if row.ranks is not None and row.size is not None and row.algorithm:
            words = (row.collective, row.algorithm, row.ranks, row.dtype, max(0, row.root or 0))
            groups.setdefault((*words, row.placement.startswith("in")), []).append(i)
    for (collective, algorithm, ranks, kind, root, inside), places in groups.items():
        sizes = [rows[i].size or 0 for i in places]
        operation = Operation(collective, algorithm, ranks, _itemsize(kind), root, inside)
        times = _seconds(predictor.on(ranks), operation, sizes)
        for i, time in zip(places, times, strict=True):
            predicted[i] = time
    return predicted


def beside(rows: Sequence[Measurement], fit: Fit) -> Callable[[Measurement], Expected]:
    """A function: row -> its predicted time, and the one-port bound (docs/model.md).

    Rows of other transports than the fit's have neither. Rows of libraries have only the bound.
    """
    transports = {costs.transport for costs in fit.costs}
    covered = [row for row in rows if row.transport in transports or row.algorithm == LIBRARY]
    predictor = FitPredictor(fit)
    expected = {
        id(row): Expected(time, _one_port_bound(predictor, row))
        for row, time in zip(covered, predictions(covered, fit), strict=True)
    }
    return lambda row: expected.get(id(row), Expected())


def _one_port_bound(predictor: FitPredictor, row: Measurement) -> float | None:
    """The one-port bound in seconds on the fit's links; None if it is not known."""
    if row.collective not in collectives() or not row.ranks or row.ranks < 2 or not row.size:
        return None
    on, itemsize = predictor.on(row.ranks), _itemsize(row.dtype)
    bounds = on.one_port_bound(row.collective, row.ranks, [row.size], itemsize)
    return None if bounds is None else float(bounds[0])


def sources(path: Path) -> set[str]:
    """SHA-256 of a file, or of each file in a run directory. A fit stores these of its sources."""
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    try:
        return {digest(file.read_bytes()) for file in files if file.is_file()}
    except OSError as error:
        raise ReportError(f"{path}: cannot be read: {error.strerror}") from None


def nccl_machine(log: Path, sm: int, ranks: int, nodes: int) -> Machine:
    """The machine described by the graphs in NCCL's log. Raises ReportError naming the file."""
    try:
        return machine_from_log(decoded(read_bytes(log)[0]), sm, ranks, nodes)
    except Unsupported as error:
        raise ReportError(f"{log}: {error}") from None


def nccl_seconds(row: Measurement, machine: Machine) -> float | None:
    """Seconds for a row by NCCL's model; None if the model does not cover the collective."""
    if row.size is None:
        return None
    operation = Operation(row.collective, LIBRARY, row.ranks or 0)
    return _seconds(NcclPredictor(machine), operation, [row.size])[0]
