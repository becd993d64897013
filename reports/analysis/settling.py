"""When rows became steady: the iterations of records, beginning with their warm-up. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from reports.records.record import Result, Sample
from reports.records.shown import size_text
from reports.statistics.steady import Steady, steady


@dataclass(frozen=True)
class Settling:
    """All iterations of a row in order, the warm-up that it left out first, and the verdict."""

    title: str
    times: tuple[float, ...]
    left_out: int
    verdict: Steady


def settlings(results: Sequence[Result]) -> list[Settling]:
    """Of every row and placement that has iterations."""
    return [
        Settling(_title(r, placement), _all(half), len(half.warm_up), steady(_all(half)))
        for r in results
        for placement, half in (("", r.out), (" in place", r.in_place))
        if half is not None and len(half.times) > 1
    ]


def _all(half: Sample) -> tuple[float, ...]:
    return (*half.warm_up, *half.times)


def _title(r: Result, placement: str) -> str:
    what = f"{r.collective} {r.algorithm} {r.transport} {r.ranks} ranks"
    return f"{what} {size_text(r.size)}{placement}"
