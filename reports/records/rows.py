"""The row that every reader gives.

Seconds, bytes, bytes per second; None means that the log does not say.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True)
class Run:
    """Facts that a log states once for a table. ``number`` counts tables in a file from 0."""

    source: str
    number: int
    format: str
    program: str = ""
    version: str = ""
    library: str = ""
    hosts: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    environment: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Row:
    """One placement of one measured size.

    ``size`` is the collective's bytes in nccl-tests' sense and ``message`` the bytes in the log's
    own sense; they differ where a log counts one rank's share. ``time_s`` is the figure of the
    log and ``statistic`` says which (``median``, ``mean``). ``low_s`` and ``high_s`` are the 95 %
    interval of the median. ``min_s``, ``max_s`` and ``p99_s`` are over iterations for nccl-tests
    and Busbar, over ranks for OSU and IMB. ``cv`` is standard deviation over mean. ``wrong``
    counts wrong elements; ``error`` is the largest deviation that old nccl-tests print instead.
    ``times_s`` are raw iterations where the log has them, ``per_rank_s`` every rank's own.
    ``limit_s``: the least time that the memory roofline of the run allows. ``schedule``: the hash
    of the schedule that ran. ``clock_core_hz``: of the slowest rank's core, as looked at before and
    after. ``clock_memory_hz``: of the GPU whose median is lowest.
    ``energy_per_op_j``: joules of all GPUs for one operation, idle power taken off. ``timing``
    (``each``, ``loop``) and ``across`` (``max``, ``avg``, ``min``, ``rank0``): how Busbar's times
    were taken and combined over ranks; empty where the log does not say. ``checked``: which results
    Busbar compared, as `reports.records.record.Sample` has it. ``ranks_per_core``: of the
    busiest node, above 1 where ranks shared cores. ``worksharing``: work of one rank may have been
    carried out by another process. ``sent_bytes``, ``received_bytes``: an iteration's bytes through
    the busiest port each way, as counted; ``total_bytes``: over all links. ``time_of``: what
    ``time_s`` is the time of, where that is not the operation (`reports.records.metrics`).
    ``bandwidth_bytes_per_s`` and ``messages_per_s``: as OSU and IMB print them, by each benchmark's
    own definition. Of non-blocking collectives ``overall_s`` is the time with the compute that runs
    beside it, ``compute_s`` that compute alone, ``overlap`` the share of the communication that
    it hides (below 0 where it costs more).
    """

    run: Run
    line: int
    collective: str
    size: int | None
    placement: str = "out"
    algorithm: str = ""
    transport: str = ""
    ranks: int | None = None
    message: int | None = None
    count: int | None = None
    dtype: str = ""
    op: str = ""
    root: int | None = None
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
    wrong: int | None = None
    error: float | None = None
    iterations: int | None = None
    stopped: str = ""
    skipped: str = ""
    times_s: tuple[float, ...] = ()
    limit_s: float | None = None
    schedule: str = ""
    per_rank_s: tuple[tuple[float, ...], ...] = ()
    clock_core_hz: float | None = None
    clock_memory_hz: float | None = None
    energy_per_op_j: float | None = None
    timing: str = ""
    across: str = ""
    checked: str = ""
    ranks_per_core: float | None = None
    worksharing: bool = False
    sent_bytes: int | None = None
    received_bytes: int | None = None
    total_bytes: int | None = None
    time_of: str = ""
    bandwidth_bytes_per_s: float | None = None
    messages_per_s: float | None = None
    overall_s: float | None = None
    compute_s: float | None = None
    overlap: float | None = None

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


#: How ranks' own durations become one time.
OWN = ("max", "avg", "min", "rank0")


def grouped(items: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """Items by their key, in order of first appearance."""
    found: dict[K, list[T]] = {}
    for item in items:
        found.setdefault(key(item), []).append(item)
    return found


def level_of(row: Row) -> str:
    """MPI's thread level of a row over MPI; empty for any other, and where it is not known."""
    return str(row.run.environment.get("mpi_threads", "")) if row.transport == "mpi" else ""


def flat(environment: Mapping[str, Any], between: str) -> dict[str, Any]:
    """An environment with the facts of its objects as its own: name, ``between``, inner name."""
    found: dict[str, Any] = {}
    for name, value in environment.items():
        inner = flat(value, between) if isinstance(value, Mapping) else {}
        found |= {f"{name}{between}{key}": one for key, one in inner.items()}
        if not isinstance(value, Mapping):
            found[name] = value
    return found


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

    rows: Sequence[Row]
    notes: Sequence[Note] = ()


#: The columns that come from a row's run, and the fields that they are.
OF_RUN: dict[str, str] = {
    name: "number" if name == "run" else name
    for name in ("source", "run", "format", "program", "version", "library", "hosts", "devices")
}
_OF_ROW = tuple(f.name for f in fields(Row) if f.name != "run")
#: What a row's columns hold, as its fields are annotated: ``str``, ``int | None``.
KINDS: dict[str, str] = {f.name: str(f.type) for f in fields(Row) if f.name != "run"}
TEXTS = tuple(name for name, kind in KINDS.items() if kind == "str")
FIGURES = tuple(name for name, kind in KINDS.items() if kind == "float | None")
COUNTS = tuple(name for name, kind in KINDS.items() if kind == "int | None")
RATES = tuple(name for name in FIGURES if name.endswith("_per_s"))
TIMES = tuple(name for name in FIGURES if name.endswith("_s") and name not in RATES)
#: Fields that only other benchmarks fill: our records have raw times instead.
OTHERS = (
    "time_of", "error", "bandwidth_bytes_per_s", "messages_per_s", "overall_s", "compute_s",
    "overlap",
)  # fmt: skip

#: The columns of ``reports.load``, in order: those of the run, then those of the row.
COLUMNS: tuple[str, ...] = (*OF_RUN, *_OF_ROW)


def record(row: Row) -> dict[str, Any]:
    """A row as a flat mapping of ``COLUMNS``."""
    of_run = [getattr(row.run, name) for name in OF_RUN.values()]
    return dict(zip(COLUMNS, of_run + [getattr(row, name) for name in _OF_ROW], strict=True))


class Expected(NamedTuple):
    """A model's times for a row, in seconds: the prediction, and the bound of any algorithm."""

    predicted: float | None = None
    bound: float | None = None
