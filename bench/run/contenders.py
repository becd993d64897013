"""The rows of a sweep, and what is measured: algorithms with proven schedules, or pair tests."""

from __future__ import annotations

import csv
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from msgspec import structs

from bench.links.exchange import ExchangePattern, exchange
from bench.options.options import (
    BESIDE,
    NONBLOCKING,
    TWO_SIDED,
    Choice,
    Options,
    Pairing,
    RunOptions,
    parse_choice,
)
from bench.run.tuning_file import load, lookup
from busbar.errors import ScheduleError, Unsupported
from busbar.files import read_text
from collectives.execution.registry import auto_order
from collectives.execution.transport import OneSidedAccess
from collectives.execution.world import World
from collectives.formats.load import build, parameters
from collectives.schedule.catalogue import spec
from collectives.schedule.cost import traffic
from collectives.schedule.counts import busiest, matrix, spread
from collectives.schedule.digest import digest
from collectives.schedule.dtypes import dtype
from collectives.schedule.layout import Elements
from collectives.schedule.schedule import Schedule
from collectives.schedule.spec import ALIGN_BYTES, Collective, Unit
from collectives.schedule.verify import verify
from reports.records.measurement import GpuSample, Record

# Enough for a matrix of four thousand ranks.
_MOST_BYTES = 1 << 26


class SizeRow(NamedTuple):
    """One row: ``elements`` of each part, and what the size and count columns show.

    ``op`` is "none" and ``shown_root`` is -1 if the collective has none, as nccl-tests prints.
    """

    dtype: str
    op: str
    root: int
    shown_root: int
    elements: Elements
    size: int
    count: int  # type: ignore[assignment]


def read_counts(path: Path, nranks: int) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    """A counts matrix (elements) from a CSV file. Raises Unsupported with file and line."""
    table: list[list[int]] = []
    text = read_text(path, _MOST_BYTES)
    try:
        for number, line in enumerate(csv.reader(text.splitlines()), 1):
            if not line or line[0].lstrip().startswith("#"):
                continue
            if len(table) >= 65536:
                raise Unsupported(f"{path}: more than 65536 lines")
            try:
                table.append([int(cell) for cell in line if cell.strip()])
            except ValueError:
                raise Unsupported(
                    f"{path}, line {number}: {','.join(line)[:60]!r} is not whole numbers"
                ) from None
    except csv.Error as error:
        raise Unsupported(f"{path}: cannot be read: {error}") from None
    if len({len(line) for line in table}) > 1 or not table:
        raise Unsupported(f"{path}: the lines must have one number a rank each")
    return matrix(table, nranks)


def roots(spec: Collective, options: RunOptions, nranks: int) -> range:
    """The roots to sweep: all for ``-r all``, else the one given.

    If a collective has no root, the given one is still passed to algorithms that use one. Raises
    Unsupported if the root is not a rank.
    """
    if options.root is None:
        return range(nranks) if spec.rooted else range(1)
    if options.root >= nranks:
        raise Unsupported(f"--root {options.root}: there are only ranks 0 to {nranks - 1}")
    return range(options.root, options.root + 1)


def rows(spec: Collective, options: Options, nranks: int) -> Iterator[SizeRow]:
    """All rows of a sweep, in nccl-tests' order. Sizes that are too small to divide have no row."""
    ops = options.ops if spec.reduces else ("none",)
    if spec.unit is Unit.NOTHING:
        yield SizeRow("uint8", "none", 0, -1, 1, 0, 0)
        return
    for kind in options.dtypes:
        for op in ops:
            for root in roots(spec, options, nranks):
                shown = root if spec.rooted else -1
                for size in _sizes(spec, options, nranks, dtype(kind).itemsize):
                    yield SizeRow(kind, op, root, shown, *size)


def _sizes(
    spec: Collective, options: Options, nranks: int, itemsize: int
) -> Iterator[tuple[Elements, int, int]]:
    if spec.name == "alltoallv":
        yield from _uneven(options, nranks, itemsize)
        return
    for wanted in options.sizes:
        size = spec.size(nranks, wanted, itemsize)
        if size.shown_count > 0:
            yield size.elements, size.shown_bytes, size.shown_count


def _uneven(options: Options, nranks: int, itemsize: int) -> Iterator[tuple[Elements, int, int]]:
    """All-to-all-v: the counts of a file, or nccl-tests' spread of every size."""
    if options.counts is not None:
        counts = read_counts(options.counts, nranks)
        most = busiest(counts)
        yield counts.ravel(), most * itemsize, most
        return
    for wanted in options.sizes:
        counts = spread(nranks, wanted, itemsize, options.spread)
        most = busiest(counts)
        if most > 0:
            yield counts.ravel(), most * itemsize, most


def check(spec: Collective, options: Options, nranks: int) -> list[str]:
    """Enumerate all rows without running any. Returns a note for each type with sizes left out.

    Raises Unsupported if a row is not possible, or if no row is left.
    """
    roots(spec, options, nranks)
    if spec.unit is Unit.NOTHING or options.counts is not None:
        deque(rows(spec, options, nranks), maxlen=0)
        return []
    notes: list[str] = []
    for kind in options.dtypes:
        itemsize = dtype(kind).itemsize
        few = len(options.sizes) - sum(1 for _ in _sizes(spec, options, nranks, itemsize))
        if few:
            # Sizes rise, so those that are too small come first.
            below = options.sizes[few - 1]
            note = (
                f"{below} bytes are less than one element of {itemsize} bytes"
                if spec.unit is Unit.PART
                else f"{below} bytes leave each of {nranks} ranks less than the {ALIGN_BYTES} that"
                " nccl-tests rounds to"
            )
            if few == len(options.sizes):
                raise Unsupported(f"{note}; give larger sizes (--sizes, or -b and -e)")
            notes.append(f"left out: sizes up to {below} B: {note}")
    return notes


class RankSetup(NamedTuple):
    """The ranks that algorithms are chosen for, and the transport between them.

    ``missing``: the names from `BESIDE` that are not available here, with the reason.
    ``oversubscribed``: True if ranks share cores; None if this is unknown or does not matter.
    """

    nranks: int
    transport: str
    missing: Mapping[str, str] = MappingProxyType({})
    oversubscribed: bool | None = None


class Contender:
    """One algorithm to measure on ``nranks`` ranks, with a schedule for each root.

    ``holds``: operations in one iteration; a row's time is that of one operation. ``reach``: how
    ranks access each other's memory, if no messages are sent.

    Raises Unsupported if the algorithm does not support this number of ranks.
    """

    holds: int = 1
    reach: OneSidedAccess | None = None

    def __init__(self, spec: Collective, options: RunOptions, choice: Choice, nranks: int) -> None:
        self.label, self._name = choice.label, choice.name
        self._spec, self._nranks = spec, nranks
        self._schedules: dict[int, Schedule] = {}
        self._digests: dict[int, str] = {}
        self._traffic: dict[tuple[bytes, int, int], tuple[int, int]] = {}
        self.parameters: dict[str, Any] = dict(choice.parameters)
        if not self.scheduled:
            return
        if options.grid is not None and "grid" in parameters(spec.name, choice.name):
            self.parameters.setdefault("grid", options.grid)
        for root in roots(spec, options, nranks):
            self.schedule(root)

    @property
    def library(self) -> bool:
        """True if this is the library's own collective, which has no schedule."""
        return self._name in ("library", NONBLOCKING)

    @property
    def nonblocking(self) -> bool:
        """True if this is the library's own collective in its non-blocking form."""
        return self._name == NONBLOCKING

    @property
    def scheduled(self) -> bool:
        """True if this is a schedule that the ranks execute."""
        return self._name not in (*BESIDE, NONBLOCKING)

    def at(self, nbytes: int) -> Contender:
        """The algorithm used at a size: always this one."""
        return self

    def schedule(self, root: int) -> Schedule | None:
        """The placed schedule for a root; None for the library and for work sharing."""
        if not self.scheduled:
            return None
        if root not in self._schedules:
            schedule = build(
                self._spec.name, self._name, self._nranks, root=root, **self.parameters
            )
            self._schedules[root] = schedule
        return self._schedules[root]

    def prove(self) -> None:
        """Prove every schedule, out of place and in place. Raises ScheduleError."""
        for root, schedule in self._schedules.items():
            for in_place in (False, True)[: 1 + self._spec.in_place]:
                verify(schedule, self._spec, root=root, in_place=in_place)

    def digests(self) -> list[str]:
        """The hashes of all schedules, ordered by root."""
        return [self.digest(root) for root in self._schedules]

    def digest(self, root: int) -> str:
        """The hash of the schedule for a root; empty without a schedule."""
        schedule = self.schedule(root)
        if schedule is None:
            return ""
        if root not in self._digests:
            self._digests[root] = digest(schedule)
        return self._digests[root]

    def traffic(self, elements: Elements, itemsize: int, root: int) -> tuple[int, int]:
        """Bytes that the busiest rank sends and receives, computed from the schedule."""
        schedule = self.schedule(root)
        assert schedule is not None, f"{self.label} has no schedule to count"
        key = np.asarray(elements).tobytes(), itemsize, root
        if key not in self._traffic:
            sent, received = traffic(schedule, self._spec, elements, itemsize, root)
            self._traffic[key] = int(sent.max()), int(received.max())
        return self._traffic[key]


class SizeDependentContender:
    """An entry of the comparison that uses another algorithm for each range of sizes (``auto``).

    Its methods are those of `Contender`. ``ranges``: the smallest size and the algorithm of each
    range, in rising order. Sizes below the first range use its algorithm. ``every``: the
    algorithms, each once.
    """

    library = False

    def __init__(self, label: str, ranges: Sequence[tuple[int, Contender]]) -> None:
        self.label, self._lows = label, [low for low, _ in ranges]
        self._made = [chosen for _, chosen in ranges]
        self.every = list(dict.fromkeys(self._made))

    def at(self, nbytes: int) -> Contender:
        """The algorithm used at a size."""
        return self._made[max(0, bisect_right(self._lows, nbytes) - 1)]

    def prove(self) -> None:
        """Prove every schedule of every size."""
        for one in self.every:
            one.prove()

    def digests(self) -> list[str]:
        """The hashes of all schedules, ordered by size range."""
        return [text for one in self._made for text in one.digests()]


def auto(spec: Collective, options: RunOptions, ranks: RankSetup) -> SizeDependentContender:
    """``-A auto``: for each size the algorithm from a tuning file for these ranks and transport.

    Raises Unsupported if the file cannot be read, or has no rules for them.
    """
    path, nranks = options.tuning, ranks.nranks
    # A dry run does not know yet which of these transports ``auto`` will choose.
    transports = [ranks.transport]
    if ranks.transport == "auto":
        transports = [one.name for one in auto_order("mpi", on_gpu=False)]
    rules = lookup(load(path), path, spec.name, nranks, transports, ranks.oversubscribed)
    contenders = {
        choice: Contender(spec, options, parse_choice(choice.algorithm), nranks)
        for choice in {one.choice for one in rules.ranges}
    }
    return SizeDependentContender(
        "auto", [(one.low, contenders[one.choice]) for one in rules.ranges]
    )


class Job(NamedTuple):
    """One collective's sweep: collective, options, algorithms, and notes on what was left out."""

    spec: Collective
    options: Options
    chosen: Sequence[Contender | SizeDependentContender]
    notes: list[str]


def jobs(wanted: Sequence[Options], ranks: RankSetup) -> list[Job]:
    """The sweeps to run on these ranks, with notes on collectives and algorithms left out.

    Raises Unsupported if an algorithm that was named does not support these ranks. With ``-A all``,
    or if there are several collectives, it is left out with a note instead.
    """
    sweeps: list[Job] = []
    refused: list[str] = []
    for options in wanted:
        one = spec(options.collective)
        try:
            notes = check(one, options, ranks.nranks)
            chosen, left_out = _choose(one, options, ranks)
        except Unsupported as error:
            if len(wanted) == 1:
                raise
            refused.append(f"left out: {options.collective}: {error}")
            continue
        sweeps.append(Job(one, options, chosen, [*notes, *left_out]))
    if not sweeps:
        raise Unsupported(refused[0])
    sweeps[0].notes.extend(refused)
    return sweeps


def prove(todo: Sequence[Job], world: World) -> None:
    """Prove every schedule once, on rank 0. Other ranks only compare the hashes of theirs.

    All ranks call this together. Raises Unsupported on all ranks if a schedule is wrong, or if
    ranks have different schedules, for example from a file that differs between hosts.
    """
    chosen = [one for job in todo for one in job.chosen]
    fault = ""
    if world.rank == 0:
        try:
            for one in chosen:
                one.prove()
        except ScheduleError as error:
            fault = str(error)
    mine = [text for one in chosen for text in one.digests()]
    fault, wanted = world.broadcast([fault, mine])
    if fault:
        raise Unsupported(f"a schedule is wrong: {fault}")
    if not world.combine(np.array([float(mine == wanted)]), "min")[0]:
        same = world.gather(mine == wanted)
        raise Unsupported(
            f"rank {same.index(False)} has another schedule than rank 0, which was proven; give all"
            " hosts the same Busbar and the same files"
        )


def _choose(
    spec: Collective, options: Options, ranks: RankSetup
) -> tuple[list[Contender | SizeDependentContender], list[str]]:
    """The algorithms to run, and a note for each that is not possible."""
    contenders: list[Contender | SizeDependentContender] = []
    reasons: list[str] = []
    for choice in options.algorithms:
        if choice.name in ranks.missing:
            reasons.append(f"{choice.name}, {ranks.missing[choice.name]}")
            continue
        if choice.name == "auto":
            contenders.append(auto(spec, options, ranks))
            continue
        try:
            contenders.append(Contender(spec, options, choice, ranks.nranks))
        except Unsupported as error:
            if not options.every_algorithm:
                raise
            reasons.append(str(error))
    if not contenders:
        raise Unsupported(f"nothing is left to run: {reasons[0]}")
    return contenders, [f"left out: {reason}" for reason in reasons]


#: OSU makes 10,000 round trips up to SMALL_BYTES and 1,000 above. Here one iteration makes TRIPS or
#: LARGE_TRIPS, and there are many iterations.
SMALL_BYTES, TRIPS, LARGE_TRIPS = 8192, 100, 10
_TITLES: Mapping[str, str] = {
    "latency": "one way between two ranks",
    "bandwidth": "windows of messages one way between two ranks",
    "bidirectional_bandwidth": "windows of messages both ways between two ranks",
}


def build_jobs(wanted: Sequence[Options], ranks: RankSetup) -> list[Job]:
    """What a command measures: the jobs of the pair tests, or those of collectives (`jobs`)."""
    first = wanted[0]
    if first.pairing is not None:
        return pair_jobs(first, first.pairing, ranks.nranks)
    return jobs(wanted, ranks)


def pair_jobs(options: Options, pairing: Pairing, nranks: int) -> list[Job]:
    """The pair tests that were requested; within each test, one job for each transfer method.

    Times are defined as in OSU's benchmarks (docs/pt2pt.md): half a ping-pong; a window of messages
    and its answer; windows both ways at once. An iteration holds several of these operations, and a
    row's time is that of one. Raises Unsupported for fewer ranks than the pairs need.
    """
    most = nranks // 2
    count = most if pairing.pairs is None else pairing.pairs
    if not 0 < count <= most:
        count = max(1, count)
        what = "a pair" if pairing.pairs is None else f"--pairs {count}"
        few = "there is 1" if nranks == 1 else f"there are {nranks}"
        start = f"--ranks {2 * count} (or mpirun -n {2 * count}) starts them"
        raise Unsupported(f"{what} takes {2 * count} ranks, and {few}; {start}")
    # As osu_mbw_mr: with ranks in blocks by host, each pair crosses between two halves.
    pairs = [(rank, rank + most) for rank in range(count)]
    sweeps = []
    for test in pairing.tests:
        for way in options.algorithms:
            parameters = {} if pairing.pairs is None else {"pairs": pairing.pairs}
            if test != "latency" and pairing.window != Pairing.window:
                parameters["window"] = pairing.window
            named = replace(way, parameters=tuple(parameters.items()))
            small, large = (
                _Exchange(options, pairing, pairs, test, named, nranks, trips)
                for trips in (TRIPS, LARGE_TRIPS)
            )
            chosen = SizeDependentContender(small.label, [(0, small), (SMALL_BYTES + 1, large)])
            notes = check(small.spec, options, nranks)
            one = chosen if test == "latency" else small
            sweeps.append(Job(small.spec, replace(options, collective=test), [one], notes))
    return sweeps


class _Exchange(Contender):
    """A transfer method in a pair test. Latency tests make ``trips`` round trips in each iteration.

    ``spec``: the test, described as a collective.
    """

    def __init__(
        self,
        options: Options,
        pairing: Pairing,
        pairs: list[tuple[int, int]],
        test: str,
        way: Choice,
        nranks: int,
        trips: int,
    ) -> None:
        both, alone = test == "bidirectional_bandwidth", test == "latency"
        if way.name != TWO_SIDED:
            self.reach = OneSidedAccess(way.name, trips if alone else 1)
        if alone and self.reach is None:
            self._made, spec = exchange(ExchangePattern(chained=True), pairs, nranks, trips)
            self.holds = 2 * trips
        else:
            n = 1 if alone else pairing.window
            # After its flush a rank that puts knows that all data has arrived: no answer needed.
            answered = self.reach is None and not both
            # The first rank of a pair is the one that gets, puts or sends.
            ends = [(b, a) for a, b in pairs] if way.name == "get" else pairs
            how = ExchangePattern(both=both, messages=n, answered=answered)
            self._made, spec = exchange(how, ends, nranks)
            self.holds = trips if alone else n
        ways = 1 if alone else len(pairs) * (1 + both)
        self.spec = replace(spec, name=test, title=_TITLES[test], bus_factor=lambda n: float(ways))
        super().__init__(self.spec, options, way, nranks)

    def schedule(self, root: int) -> Schedule:
        """The exchange, which is the same for every root."""
        self._schedules[root] = self._made
        return self._made

    def traffic(self, elements: Elements, itemsize: int, root: int) -> tuple[int, int]:
        sent, received = super().traffic(elements, itemsize, root)
        times = 1 if self.reach is None else self.reach.times
        return sent * times, received * times


def each(record: Record, holds: int) -> Record:
    """Convert a record of iterations with ``holds`` operations each into times per operation.

    So is the energy of GPUs. Byte counts are those of whole iterations, and so are left out.
    """
    if holds == 1:
        return record

    def sample(gpu: GpuSample) -> GpuSample:
        joules = gpu.energy_per_op_j
        return structs.replace(
            gpu,
            operations=gpu.operations * holds,
            energy_per_op_j=None if joules is None else joules / holds,
        )

    def one(times: Sequence[float]) -> tuple[float, ...]:
        return tuple(round(t / holds, 12) for t in times)  # to the picosecond, as measured

    return structs.replace(
        record,
        times_s=one(record.times_s),
        warm_up_s=one(record.warm_up_s),
        per_rank_s=tuple(map(one, record.per_rank_s)),
        also={name: one(times) for name, times in record.also.items()},
        gpus=tuple(map(sample, record.gpus)),
        sent_bytes=None,
        received_bytes=None,
        total_bytes=None,
        per_iteration=holds,
    )
