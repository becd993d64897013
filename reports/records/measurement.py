"""One record for all that is measured or read: `Measurement`, one placement of one case.

Seconds, bytes, bytes per second, hertz, joules. None, or an empty text or list: not known.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

from msgspec import Meta, Struct

from reports.records.steps import Step

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)

#: What this version writes. Format 3 had both placements in a line, with two names for many fields;
#: formats 1 and 2 did not know ranks per core (`reports.readers.upgrade`).
FORMAT = 4
#: The contender that is no algorithm: all processes share a collective's work.
WORKSHARING = "worksharing"
#: The contender that is no schedule of ours: the library's own collective.
LIBRARY = "library"
#: How the ``collective`` of training steps begins; the model comes behind it.
STEP = "step:"
#: How ranks' own durations become one time.
OWN = ("max", "avg", "min", "rank0")
#: Times of one iteration on a common clock: from the earliest start to the latest end, and from the
#: last rank's arrival.
OPERATION, LAST = "operation", "last arrival"

_MOST = 2**63 - 1  # what a column of whole numbers holds
Whole = Annotated[int, Meta(ge=-_MOST - 1, le=_MOST)]
Count = Annotated[int, Meta(ge=0, le=_MOST)]
Seconds = Annotated[float, Meta(ge=0)]
Factor = Annotated[float, Meta(ge=-1e6, le=1e6)]
Series = tuple[Seconds, ...]
Spread = tuple[float, float, float]
"""Least, median and most of several samples."""


class Window(Struct, frozen=True, omit_defaults=True):
    """How the iterations of ``--sync window`` began.

    ``begun``: iterations; ``lost``: those that do not count, because some rank was late.
    """

    by: str = "window"
    arrival: str = ""
    pattern: str = ""
    begun: Count = 0
    lost: Count = 0
    widest_s: Seconds = 0.0
    clock_error_s: Seconds = 0.0


class Noise(Struct, frozen=True, omit_defaults=True):
    """What else the machine did meanwhile (`busbar.counters.gathered`).

    By rank: ``switches`` (it slept), ``forced`` (it lost its core), ``migrations`` and ``hz``; by
    host, as shares of all cores: ``steal`` and ``others``.
    """

    switches: tuple[int, ...] = ()
    forced: tuple[int, ...] = ()
    migrations: tuple[int, ...] = ()
    hz: tuple[Annotated[float, Meta(gt=0, lt=1e12)], ...] = ()
    steal: tuple[float, ...] = ()
    others: tuple[float, ...] = ()


class GpuSample(Struct, frozen=True, omit_defaults=True):
    """What one GPU did while a placement ran.

    ``rank``: the first that uses the GPU. ``seconds``: the window in which ``operations`` ran.
    Clocks, power and temperature: least, median and most of the samples. ``throttle``: the reasons
    seen. ``energy_j``: of the window, by the GPU's counter; ``energy_per_op_j``: less ``idle_w``.
    """

    rank: int | None = None
    busid: str | None = None
    uuid: str | None = None
    name: str | None = None
    samples: Count = 0
    seconds: float = 0.0
    operations: Count = 0
    clock_sm_hz: Spread | None = None
    clock_memory_hz: Spread | None = None
    power_w: Spread | None = None
    temperature_c: Spread | None = None
    throttle: tuple[str, ...] = ()
    energy_j: float | None = None
    idle_w: float | None = None
    energy_per_op_j: float | None = None


class Overlap(Struct, frozen=True):
    """Seconds of a collective alone, of computing meanwhile, and of both together."""

    alone: Seconds
    computing: Seconds
    together: Seconds

    @property
    def share(self) -> float:
        """The overlap: (alone + computing - together) / min(alone, computing), from 0 to 1.

        1: the two take no longer than the longer of them; 0: as long as one after the other.
        """
        least = min(self.alone, self.computing)
        hidden = (self.alone + self.computing - self.together) / least if least > 0 else 0.0
        return max(0.0, min(1.0, hidden))

    @property
    def exposed(self) -> float:
        """Seconds that the collective adds to computing."""
        return max(0.0, self.together - self.computing)


# Fields up to `times_s` are equal from line to line of a long run: `reports.readers.codec` decodes
# each different text of them once.
class Record(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is kept on disk of a measurement: what was asked for, and raw results.

    Statistics are never kept; they follow from ``times_s``. docs/record.md is made from this class.
    """

    collective: Annotated[str, Meta(description="Collective, test of pairs, or `step:MODEL`.")] = ""
    algorithm: Annotated[str, Meta(description="Contender, as tables name it.")] = ""
    transport: Annotated[str, Meta(description="What moved the bytes.")] = ""
    dtype: Annotated[str, Meta(description="Element type.")] = ""
    op: Annotated[str, Meta(description="Reduction, or `none`.")] = ""
    ranks: Annotated[Count | None, Meta(description="Number of ranks.")] = None
    size: Annotated[Count | None, Meta(description="Bytes, as nccl-tests counts them.")] = None
    count: Annotated[Count | None, Meta(description="Elements of `size`.")] = None
    root: Annotated[Whole | None, Meta(description="Root rank; -1 without one.")] = None
    placement: Annotated[
        Literal["out", "in"], Meta(description="Out-of-place or in-place buffers.")
    ] = "out"
    bus_factor: Annotated[Factor | None, Meta(description="busbw / algbw.")] = None
    alg_factor: Annotated[Factor, Meta(description="Share of `size` that algbw counts.")] = 1.0
    parameters: Annotated[
        dict[str, Any], Meta(description="Parameters of the algorithm, by its own names.")
    ] = {}
    chosen_algorithm: Annotated[
        str, Meta(description="What `auto`, or a range of sizes, took at this size.")
    ] = ""
    per_iteration: Annotated[
        Count, Meta(description="Operations in one timed iteration; `times_s` are of one of them.")
    ] = 1
    injected: Annotated[
        float | None, Meta(description="Share by which iterations were lengthened (self-check).")
    ] = None
    schedule: Annotated[
        str, Meta(description="Hash of the schedule that ran; empty for a library.")
    ] = ""
    ranks_per_core: Annotated[
        Seconds | None,
        Meta(description="Ranks over usable cores where they are most crowded; above 1, shared."),
    ] = None
    worksharing: Annotated[
        bool, Meta(description="Work of a rank may have been carried out by another process.")
    ] = False
    timing: Annotated[
        str, Meta(description="`each` iteration, or one mean of a `loop` of `iterations`.")
    ] = ""
    across: Annotated[
        str, Meta(description="How ranks' times became one: max, avg, min, rank0, or a reading.")
    ] = ""
    stopped: Annotated[
        str, Meta(description="What ended the row: iterations, precise, budget, lost.")
    ] = ""
    skipped: Annotated[str, Meta(description="Why there are no times.")] = ""
    checked: Annotated[
        str, Meta(description="`timed`, or how many iterations more were compared; empty: none.")
    ] = ""
    limit_s: Annotated[
        Seconds | None, Meta(description="Least time that the memory roofline of the run allows.")
    ] = None
    wrong: Annotated[Count | None, Meta(description="Wrong elements over all ranks.")] = None
    sent_bytes: Annotated[
        Count | None, Meta(description="Bytes of an iteration that the busiest rank sent.")
    ] = None
    received_bytes: Annotated[
        Count | None, Meta(description="Bytes of an iteration that the busiest rank received.")
    ] = None
    total_bytes: Annotated[
        Count | None, Meta(description="Bytes of an iteration over all ranks.")
    ] = None
    times_s: Annotated[Series, Meta(description="Seconds of each iteration.")] = ()
    iterations: Annotated[Count | None, Meta(description="Timed iterations.")] = None
    runs: Annotated[Count | None, Meta(description="With warm-ups and lost iterations.")] = None
    per_rank_s: Annotated[
        tuple[Series, ...],
        Meta(description="The last of every rank by itself (`--per-rank`), 2^20 in all at most."),
    ] = ()
    warm_up_s: Annotated[
        Series, Meta(description="Iterations left out before `times_s`: not yet steady.")
    ] = ()
    also: Annotated[
        dict[str, Series], Meta(description="The same iterations by another reading.")
    ] = {}
    window: Annotated[Window | None, Meta(description="With `--sync window`: how it went.")] = None
    noise: Annotated[Noise | None, Meta(description="What else the machine did.")] = None
    core_wait: Annotated[
        tuple[float, ...],
        Meta(description="Each rank's share of time ready without a core, where it is large."),
    ] = ()
    gpus: Annotated[tuple[GpuSample, ...], Meta(description="What each GPU did meanwhile.")] = ()
    overlapped: Annotated[
        Overlap | None, Meta(description="What computing hid of a non-blocking collective.")
    ] = None
    library_facts: Annotated[
        dict[str, Any], Meta(description="What the library said of this row, by its own names.")
    ] = {}
    step: Annotated[Step | None, Meta(description="Of a training step: see below.")] = None


@dataclass(frozen=True)
class Run:
    """Facts that hold for all rows of a run. ``number`` counts runs, or tables, of a file from 0.

    ``environment``: facts of our own records, open to what libraries and machines have to say.
    """

    source: str
    number: int
    format: str
    program: str = ""
    version: str = ""
    library: str = ""
    hosts: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    environment: Mapping[str, Any] = field(default_factory=dict)


class Measurement(Record, frozen=True, kw_only=True):
    """One placement of one measured size: the record, its run, and figures.

    Figures of our own records follow from ``times_s`` (`reports.records.table.completed`); of a
    foreign log they are what it prints. ``message``: the bytes in the log's own sense, which is
    ``size`` unless the log counts one rank's share. ``statistic`` says what ``time_s`` is
    (``median``, ``mean``); ``low_s`` and ``high_s`` are the median's 95 % interval; ``min_s``,
    ``max_s`` and ``p99_s`` are over iterations, for OSU and IMB over ranks; ``cv`` is standard
    deviation over mean. ``error``: the largest deviation, which old nccl-tests print.
    ``clock_core_hz``: of the slowest rank's core; ``others_share``: what other programs took of all
    cores, on the host where it is greatest; ``clock_memory_hz``: of the GPU whose median is lowest;
    ``energy_per_op_j``: of all GPUs, idle power taken off. ``time_of``: what ``time_s`` is
    of, where that is not the operation (`reports.records.metrics`). ``bandwidth_bytes_per_s`` and
    ``messages_per_s``: as OSU and IMB print them. Of their non-blocking collectives ``overall_s``
    is the time with the compute that runs beside it, ``compute_s`` that compute alone, ``overlap``
    the share of the communication that it hides. ``launches_s``: of a row of several launches the
    median of each, and ``visits_s`` each launch's number and the medians of its visits (``-N``).
    """

    run: Run
    line: int = 0
    message: int | None = None
    statistic: str = "mean"
    time_s: float | None = None
    low_s: float | None = None
    high_s: float | None = None
    min_s: float | None = None
    max_s: float | None = None
    p99_s: float | None = None
    cv: float | None = None
    algbw_bytes_per_s: float | None = None
    busbw_bytes_per_s: float | None = None
    error: float | None = None
    clock_core_hz: float | None = None
    others_share: float | None = None
    clock_memory_hz: float | None = None
    energy_per_op_j: float | None = None
    time_of: str = ""
    bandwidth_bytes_per_s: float | None = None
    messages_per_s: float | None = None
    overall_s: float | None = None
    compute_s: float | None = None
    overlap: float | None = None
    launches_s: tuple[float, ...] = ()
    visits_s: tuple[tuple[int, tuple[float, ...]], ...] = ()

    @property
    def nbytes(self) -> int | None:
        """The collective's bytes; where the log does not tell them, its message's."""
        return self.message if self.size is None else self.size

    @property
    def reading(self) -> str:
        """What its times are, where they are not each rank's own duration of the operation."""
        across = self.across if self.across not in ("", *OWN) else ""
        return self.time_of or across

    @property
    def oversubscribed(self) -> bool:
        """Whether ranks are known to have shared cores: the time includes waiting for one."""
        return (self.ranks_per_core or 0.0) > 1


class Placements(NamedTuple):
    """The measurements of one case, which some tables show in one line; None: not asked for."""

    out: Measurement | None = None
    in_place: Measurement | None = None

    @property
    def every(self) -> list[Measurement]:
        """Those that were asked for: one or two."""
        return [one for one in self if one is not None]


def placements(measurements: Iterable[Measurement]) -> list[Placements]:
    """Measurements of one run, each in-place one beside the out-of-place one before it."""
    pairs: list[Placements] = []
    for one in measurements:
        if one.placement == "out":
            pairs.append(Placements(one))
        elif pairs and pairs[-1].in_place is None:
            pairs[-1] = Placements(pairs[-1].out, one)
        else:
            pairs.append(Placements(None, one))
    return pairs


def grouped(items: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """Items by their key, in order of first appearance."""
    groups: dict[K, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def level_of(row: Measurement) -> str:
    """MPI's thread level of a row over MPI; empty for any other, and where it is not known."""
    over_mpi = "mpi" in row.transport.split("+")
    return str(row.run.environment.get("mpi_threads", "")) if over_mpi else ""


def flat(environment: Mapping[str, Any], between: str) -> dict[str, Any]:
    """An environment with the facts of its objects as its own: name, ``between``, inner name."""
    facts: dict[str, Any] = {}
    for name, value in environment.items():
        inner = flat(value, between) if isinstance(value, Mapping) else {}
        facts |= {f"{name}{between}{key}": one for key, one in inner.items()}
        if not isinstance(value, Mapping):
            facts[name] = value
    return facts


def listed(value: object) -> Sequence[Any]:
    """A list of an environment, which comes from a file: anything else is an empty one."""
    return value if isinstance(value, (list, tuple)) else ()


@dataclass(frozen=True, slots=True)
class Note:
    """A remark of a reader on what it could not take, or inferred; line 0: no single line."""

    source: str
    line: int
    text: str

    def __str__(self) -> str:
        """``file:line: text``."""
        return (
            f"{self.source}:{self.line}: {self.text}"
            if self.line
            else f"{self.source}: {self.text}"
        )


@dataclass(frozen=True)
class Reading:
    """The rows of a file and the remarks on them."""

    rows: Sequence[Measurement]
    notes: Sequence[Note] = ()


class Expected(NamedTuple):
    """A model's times for a row, in seconds: the prediction, and the bound of any algorithm."""

    predicted: float | None = None
    bound: float | None = None
