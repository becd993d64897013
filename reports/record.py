"""The one record of a measured row: immutable, versioned, raw times kept, statistics never stored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

__all__ = ["FORMAT", "Result", "Sample"]

FORMAT = 1


@dataclass(frozen=True)
class Sample:
    """One placement of a row.

    ``times``: seconds of each iteration, already combined over ranks as ``across`` says; with
    ``timing`` ``loop`` one mean over ``iterations`` back-to-back. ``stopped``: what ended it
    (``iterations``, ``precise``, ``budget``). ``wrong``: wrong elements over all ranks, None when
    unchecked. ``sent`` and ``received``: bytes per iteration of the busiest rank each, ``total``
    over all ranks, as the transport counted them; None for a library, which does not say.
    ``skipped``: why there are no times.
    """

    times: tuple[float, ...] = ()
    iterations: int = 0
    timing: str = "each"
    across: str = "max"
    stopped: str = ""
    wrong: int | None = None
    sent: int | None = None
    received: int | None = None
    total: int | None = None
    skipped: str = ""


@dataclass(frozen=True)
class Result:
    """One row: what was measured, on what, and both placements (None: not asked for).

    ``size`` is the collective's bytes and ``count`` its elements as nccl-tests shows them;
    ``bus_factor`` turns algbw into busbw; algbw counts ``alg_factor`` of the
    size (1 but for nccl-tests' hypercube).
    """

    collective: str
    algorithm: str
    transport: str
    ranks: int
    size: int
    count: int
    dtype: str
    op: str
    root: int
    bus_factor: float
    out: Sample | None = None
    in_place: Sample | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, Any] = field(default_factory=dict)
    alg_factor: float = 1.0
    format: int = FORMAT

    def sample(self, placement: str) -> Sample | None:
        """The half of a placement, ``out`` or ``in``."""
        return self.out if placement == "out" else self.in_place

    def as_dict(self) -> dict[str, Any]:
        """The record as plain JSON values."""
        return asdict(self)
