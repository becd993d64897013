"""Predictions instead of measurements: the cost model's time of every candidate."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bench.run.tuning_file import Tunable
from bench.tuning.launches import algorithms
from bench.tuning.series import Key, Series
from collectives.formats.load import draft
from collectives.predict.fit import read_fit
from collectives.predict.interface import Operation
from collectives.predict.maps import load_machine
from collectives.predict.predictor import choose_predictor
from collectives.schedule import catalogue
from collectives.schedule.dtypes import dtype


def predicted(
    collectives: Sequence[str],
    ranks: Sequence[int],
    sizes: Sequence[int],
    fit: Path,
    topology: Sequence[str] | None,
    wanted: str | None,
    kind: str = "float",
) -> tuple[Series, list[str]]:
    """One predicted time per candidate and size, and lines about the origin of the costs.

    ``sizes``: bytes; ``fit``: a file from ``python -m collectives fit``; ``topology``: files that
    map the machine, None for ranks as they were measured. The candidates' transport is the one over
    which the fit was measured. Raises Unsupported for files or algorithms that cannot be used.
    """
    series: Series = {}
    notes: list[str] = []
    transport = read_fit(fit).costs[0].transport or "mpi"
    for collective in collectives:
        spec = catalogue.spec(collective)
        for n in ranks:
            machine = load_machine(topology, fit, n)
            predictor = choose_predictor(machine)
            notes += machine.notes
            names = wanted.split(",") if wanted else algorithms(collective, n)
            itemsize = dtype(kind).itemsize
            shown = [spec.size(n, size, itemsize).shown_bytes for size in sizes]
            # If a map tells how many ranks a node has.
            nodes = 1 if topology is None or not machine.classes else machine.classes.nodes(n)
            key = Key(collective, n, nodes, kind)
            at = series.setdefault(key, {size: {} for size in shown})
            for name in names:
                plain, parameters = catalogue.parse(name)
                schedule = draft(collective, plain, n, root=0, **parameters)
                operation = Operation.of(schedule, collective, itemsize=itemsize)
                times = predictor.seconds(operation, shown)
                for size, time in zip(shown, times.tolist(), strict=True):
                    at[size][Tunable(name, transport)] = [[time]]
    return series, list(dict.fromkeys(notes))
