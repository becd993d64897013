"""The record of a measured row: immutable, versioned, raw times kept, statistics never stored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any

#: What this version writes. Format 1 had no per-rank times, limit, schedule or GPUs, wrote every
#: field and repeated the environment in every record. Format 2 did not say how many ranks there
#: were for a core, nor whether a rank's work was its own; `reports.readers.upgrade` works that out.
FORMAT = 3
#: The contender that is no algorithm: all processes share a collective's work.
WORKSHARING = "worksharing"
#: The contender that is no schedule of ours: the library's own collective.
LIBRARY = "library"
#: How the ``collective`` of training steps begins; the model comes behind it.
STEP = "step:"
#: Readings of one iteration on a common clock: from the earliest start to the latest end, and from
#: the last rank's arrival.
OPERATION, LAST = "operation", "last arrival"


@dataclass(frozen=True)
class Sample:
    """One placement of a row.

    ``times``: seconds of each iteration, already combined over ranks as ``across`` says; with
    ``timing`` ``loop`` one mean over ``iterations`` back-to-back. ``stopped``: what ended it
    (``iterations``, ``precise``, ``budget``). ``wrong``: wrong elements over all ranks, None when
    unchecked; ``checked``: ``timed``, for every timed iteration, or how many more were checked
    after them; empty when unchecked, and in records of earlier versions. ``sent`` and
    ``received``: bytes per iteration of the busiest rank each, ``total`` over all ranks, as the
    transport counted them; None for a library, which does not say.
    ``skipped``: why there are no times. ``per_rank``: every rank's own seconds, a tuple a rank in
    rank order, each as long as ``times``; empty when they were not asked for (``--per-rank``).
    ``limit``: the least seconds that the memory roofline measured in this run allows for this
    placement (docs/measuring-limit.md), None where none was measured; % of limit is limit / time.
    With ``--sync window`` ``across`` is ``operation``, from the earliest start to the latest end on
    the common clock, or ``last arrival of PATTERN``, from the last rank's arrival; ``sync`` then
    says what `bench.timing.starts.WindowStart` counted. ``also``: the same iterations read
    otherwise, each as long as ``times``, by what ``across`` would be. ``warm_up``: seconds of the
    iterations before ``times``, when the row was not yet steady.
    """

    times: tuple[float, ...] = ()
    iterations: int = 0
    timing: str = "each"
    across: str = "max"
    stopped: str = ""
    wrong: int | None = None
    checked: str = ""
    sent: int | None = None
    received: int | None = None
    total: int | None = None
    skipped: str = ""
    per_rank: tuple[tuple[float, ...], ...] = ()
    limit: float | None = None
    also: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    sync: Mapping[str, Any] = field(default_factory=dict)
    warm_up: tuple[float, ...] = ()


@dataclass(frozen=True)
class Result:
    """One row: what was measured, on what, and both placements (None: not asked for).

    ``size`` is the collective's bytes and ``count`` its elements as nccl-tests shows them;
    ``bus_factor`` turns algbw into busbw; algbw counts ``alg_factor`` of the
    size (1 but for nccl-tests' hypercube). ``schedule``: `collectives.schedule.digest.digest` of
    the schedule that ran, empty for a library. ``gpus``: what every GPU did while a placement ran,
    as `bench.run.sampler` describes it; empty without GPUs. ``ranks_per_core``: ranks over usable
    cores where they are most crowded, affinity counted; above 1 is oversubscribed, and times hold
    the waiting for a core; 0.0 unknown, and on GPUs. ``worksharing``: work of one rank may have
    been carried out by another process, so that the row does not time the algorithm that it names.
    Of new rows only the contender ``worksharing`` is so; of formats 1 and 2 all that ran a schedule
    over ``shm``, whose executor gave ranks' work to whoever had a core and fused it across steps.
    ``step``: of a training step what `bench.steps.record` says of it; empty for a collective.
    ``core_wait``: for a placement (``out``, ``in``) each rank's share of the time in which it was
    ready but had no core, where that is large although there is a core a rank (docs/measuring.md).
    ``noise``: for a placement what else the machine did meanwhile, as `bench.run.noise` has it.
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
    schedule: str = ""
    gpus: tuple[Mapping[str, Any], ...] = ()
    core_wait: Mapping[str, Any] = field(default_factory=dict)
    noise: Mapping[str, Any] = field(default_factory=dict)
    ranks_per_core: float = 0.0
    worksharing: bool = False
    step: Mapping[str, Any] = field(default_factory=dict)
    format: int = FORMAT

    def sample(self, placement: str) -> Sample | None:
        """The half of a placement, ``out`` or ``in``."""
        return self.out if placement == "out" else self.in_place

    def as_dict(self) -> dict[str, Any]:
        """The record as plain JSON values, without the fields that hold their default."""
        found = plain(self)
        for name in ("out", "in_place"):
            if name in found:
                found[name] = plain(found[name])
        return {**found, "format": self.format}


def _default(one: Any) -> Any:
    return (
        one.default_factory()
        if one.default is MISSING and callable(one.default_factory)
        else one.default
    )


_DEFAULTS = {kind: {f.name: _default(f) for f in fields(kind)} for kind in (Sample, Result)}


def plain(value: Sample | Result) -> dict[str, Any]:
    """The fields of one of our records that do not hold their default, by name; not nested."""
    defaults = _DEFAULTS[type(value)]
    named = ((name, getattr(value, name)) for name in defaults)
    return {name: one for name, one in named if one != defaults[name]}
