"""The type of all measured or imported results: `Measurement`, one placement of one case.

Units: seconds, bytes, bytes per second, hertz, joules. None, an empty text or list: not known.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, TypeVar

from msgspec import Meta, Struct

from busbar.units import format_count
from reports.records.steps import Step

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)

#: The format that this version writes. Format 3 had both placements in a line, with two names for
#: many fields; formats 1 and 2 had no ranks per core (`reports.readers.upgrade`).
FORMAT = 4
#: A contender that is no algorithm: all processes share a collective's work.
WORKSHARING = "worksharing"
#: A contender without a schedule of Busbar: the library's own collective.
LIBRARY = "library"
#: Prefix of ``collective`` for training steps; the model follows.
STEP = "step:"
#: Ways to combine the ranks' own durations into one time.
OWN = ("max", "avg", "min", "rank0")
#: Times of one iteration on a common clock: from the earliest start to the latest end, and from the
#: last rank's arrival.
OPERATION, LAST = "operation", "last arrival"

_MOST = 2**63 - 1  # the largest value in a column of whole numbers
Whole = Annotated[int, Meta(ge=-_MOST - 1, le=_MOST)]
Count = Annotated[int, Meta(ge=0, le=_MOST)]
Seconds = Annotated[float, Meta(ge=0)]
Factor = Annotated[float, Meta(ge=-1e6, le=1e6)]
Series = tuple[Seconds, ...]
Spread = tuple[float, float, float]
"""Least, median and most of several samples."""


class Window(Struct, frozen=True, omit_defaults=True):
    """How the iterations of ``--sync window`` began: each at a time that all ranks agreed on.

    ``begun``: number of iterations; ``lost``: those not counted, because some rank was not ready
    at its time.
    """

    by: str = "window"
    arrival: str = ""
    pattern: str = ""
    begun: Count = 0
    lost: Count = 0
    widest_s: Seconds = 0.0
    clock_error_s: Seconds = 0.0


class Noise(Struct, frozen=True, omit_defaults=True):
    """Other activity of the machine during a measurement (`busbar.counters.gathered`).

    By rank: ``switches`` (it slept), ``forced`` (it was preempted), ``migrations`` and ``hz``. By
    host, as shares of all cores: ``steal`` and ``others`` (other programs).
    """

    switches: tuple[int, ...] = ()
    forced: tuple[int, ...] = ()
    migrations: tuple[int, ...] = ()
    hz: tuple[Annotated[float, Meta(gt=0, lt=1e12)], ...] = ()
    steal: tuple[float, ...] = ()
    others: tuple[float, ...] = ()


class GpuSample(Struct, frozen=True, omit_defaults=True):
    """Readings of one GPU while a placement was measured.

    ``rank``: the first rank that uses the GPU. ``seconds``: the time in which ``operations`` ran.
    Clocks, power and temperature: least, median and most of the samples. ``throttle``: reasons for
    throttling that were seen. ``energy_j``: energy in that time, by the GPU's counter;
    ``energy_per_op_j``: the same per operation, without ``idle_w``.
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
    """Seconds of a collective alone, of the computation while it is in flight, and of both."""

    alone: Seconds
    computing: Seconds
    together: Seconds

    @property
    def share(self) -> float:
        """The overlap: (alone + computing - together) / min(alone, computing), from 0 to 1.

        1: both together take as long as the longer one; 0: as long as one after the other.
        """
        least = min(self.alone, self.computing)
        hidden = (self.alone + self.computing - self.together) / least if least > 0 else 0.0
        return max(0.0, min(1.0, hidden))

    @property
    def exposed(self) -> float:
        """Seconds that the collective adds to computing."""
        return max(0.0, self.together - self.computing)


# Fields before `times_s` repeat from line to line of a long run: `reports.readers.codec` decodes
# each distinct text of them once.
class Record(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The part of a measurement that is stored on disk: its settings and the raw results.

    Statistics are not stored; they are computed from ``times_s``. docs/record.md is made from this
    class.
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
        str, Meta(description="`each` iteration, or means of a `loop`: of equally many iterations.")
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
    times_s: Annotated[
        Series, Meta(description="Seconds of each iteration, or its mean in each loop.")
    ] = ()
    iterations: Annotated[Count | None, Meta(description="Timed iterations, of all loops.")] = None
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
    """Facts that all rows of a run share. ``number``: of the run, or table, in its file, from 0.

    ``environment``: facts in Busbar's own records; libraries and machines may add further ones.
    ``average_busbw_bytes_per_s``: of all rows, as nccl-tests print it below their table.
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
    average_busbw_bytes_per_s: float | None = None


def launch_of(run: Run) -> tuple[int, int, int] | None:
    """(seed, number of launches, number of this one) of a run; None if it is not one of several."""
    facts = run.environment.get("launch")
    if not isinstance(facts, Mapping):
        return None
    numbers = tuple(facts.get(name) for name in ("seed", "of", "number"))
    return numbers if all(type(one) is int for one in numbers) else None  # type: ignore[return-value]


# What `busbar cluster` sets for both launchers (`bench.cluster.launchers.variables`). Open MPI's
# removes its own from the environment of ranks; records made before Hydra's was kept have only it.
_SHELL_VARIABLES, _CLUSTER_SHELL = ("HYDRA_LAUNCHER_EXEC", "PRTE_MCA_plm_ssh_agent"), "/run/enter"


def is_emulated(environment: Mapping[str, Any]) -> bool:
    """Whether a run was on hosts of `busbar cluster`, as its launchers' remote shell says."""
    variables = environment.get("variables")
    return isinstance(variables, Mapping) and any(
        variables.get(name) == _CLUSTER_SHELL for name in _SHELL_VARIABLES
    )


class Measurement(Record, frozen=True, kw_only=True):
    """One row of a run, out of place or in place: its record, its run, and derived figures.

    Figures of Busbar's own records are computed from ``times_s`` (`reports.records.table`); those
    of other logs are as printed.

    - ``message``: the bytes as the log counts them: ``size``, or one rank's share.
    - ``statistic``: ``median`` or ``mean``, for ``time_s``. ``low_s``, ``high_s``: the median's
      95 % interval.
    - ``min_s``, ``max_s``, ``p99_s``: over iterations, for OSU and IMB over ranks. ``cv``: standard
      deviation / mean.
    - ``time_of``: what ``time_s`` is if it is not the operation's time, such as CPU time or
      communication without computation (`reports.records.metrics`); else empty.
    - ``error``: the largest deviation, printed by old nccl-tests.
    - ``clock_core_hz``: of the slowest rank's core. ``clock_memory_hz``: of the GPU with the lowest
      median.
    - ``others_share``: share of all cores that other programs used, on the host with the most.
    - ``energy_per_op_j``: of all GPUs, without idle power.
    - ``bandwidth_bytes_per_s``, ``messages_per_s``: as OSU and IMB print them.
    - ``overall_s``, ``compute_s``, ``overlap``: of their non-blocking collectives, the time with
      computation, that of the computation alone, and the hidden share of communication.
    - ``launches_s``: for a row merged over launches, the median of each launch.
    - ``visits_s``: for the same, the number of each launch, and the median of each turn in which
      the launch measured this row (several with ``-N``).
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

    if not TYPE_CHECKING:  # for a checker, any attribute would be there

        def __getattr__(self, name: str) -> Any:
            """Raise AttributeError, which names the field for ``busbw``, ``time`` and such."""
            if name == "median":
                near = ["time_s"]
            else:
                near = [one for one in self.__struct_fields__ if one.startswith(f"{name}_")]
            meant = f"; did you mean {' or '.join(near)}?" if near else ""
            raise AttributeError(f"a row has no {name}{meant}", name=name, obj=self)

    def __repr__(self) -> str:
        """What was measured and the time in microseconds: all fields would fill screens."""
        what = f"{self.collective} {self.algorithm}".strip() or "row"
        where = "in place" if self.placement == "in" else "out of place"
        ranks = "" if self.ranks is None else f", {format_count(self.ranks, 'rank')}"
        took = "no time" if self.time_s is None else f"{self.time_s * 1e6:.4g} us"
        return f"<Measurement: {what}{ranks}, {self.nbytes} bytes, {where}: {took}>"

    @property
    def nbytes(self) -> int | None:
        """The bytes of the collective; if the log does not state them, the bytes of a message."""
        return self.message if self.size is None else self.size

    @property
    def reading(self) -> str:
        """What the times are, if they are not ranks' own durations of the operation; else empty."""
        across = self.across if self.across not in ("", *OWN) else ""
        return self.time_of or across

    @property
    def oversubscribed(self) -> bool:
        """True if ranks are known to have shared cores: times include waiting for a core.

        False on emulated hosts: they share cores, too, but the rates of their ports are chosen to
        be the limit, and `busbar cluster` says during the run if they are not.
        """
        return (self.ranks_per_core or 0.0) > 1 and not is_emulated(self.run.environment)


class Placements(NamedTuple):
    """Out-of-place and in-place measurement of one case; None if that placement was not run."""

    out: Measurement | None = None
    in_place: Measurement | None = None

    @property
    def every(self) -> list[Measurement]:
        """The one or two measurements that there are."""
        return [one for one in self if one is not None]


def placements(measurements: Iterable[Measurement]) -> list[Placements]:
    """Pair the measurements of one run: each in-place one with the out-of-place one before it."""
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
    """Group items by a key, in order of first appearance."""
    groups: dict[K, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def level_of(row: Measurement) -> str:
    """The MPI thread level of a row over MPI; empty for other transports, or if not known."""
    over_mpi = "mpi" in row.transport.split("+")
    return str(row.run.environment.get("mpi_threads", "")) if over_mpi else ""


def flat(environment: Mapping[str, Any], between: str) -> dict[str, Any]:
    """Flatten nested mappings of an environment: keys are name, ``between``, inner name."""
    facts: dict[str, Any] = {}
    for name, value in environment.items():
        inner = flat(value, between) if isinstance(value, Mapping) else {}
        facts |= {f"{name}{between}{key}": one for key, one in inner.items()}
        if not isinstance(value, Mapping):
            facts[name] = value
    return facts


def listed(value: object) -> Sequence[Any]:
    """A list in an environment that was read from a file; any other value gives an empty list."""
    return value if isinstance(value, (list, tuple)) else ()


#: How the note on a record begins whose run stopped before its last row, and said why.
ENDED_EARLY = "the run ended early"


#: In a note on a row or record that could not be read; the reason follows.
NOT_READ = " not read: "


@dataclass(frozen=True, slots=True)
class Note:
    """A reader's note on what it skipped or inferred; line 0: no single line.

    ``broken``: the note says that the run failed, was cut, was interrupted or had wrong values.
    ``inferred``: it says what was inferred where the log is silent, which changes no figure.
    """

    source: str
    line: int
    text: str
    broken: bool = False
    inferred: bool = False

    @property
    def lacks(self) -> bool:
        """True if the note says that a row or record, or half of it, could not be read."""
        return NOT_READ in self.text

    def __str__(self) -> str:
        """``file:line: text``."""
        return (
            f"{self.source}:{self.line}: {self.text}"
            if self.line
            else f"{self.source}: {self.text}"
        )


@dataclass(frozen=True)
class Reading:
    """The rows of a file, and the reader's notes on the file."""

    rows: Sequence[Measurement]
    notes: Sequence[Note] = ()


class Expected(NamedTuple):
    """A model's times for a row in seconds: prediction, and one-port bound (docs/model.md)."""

    predicted: float | None = None
    bound: float | None = None
