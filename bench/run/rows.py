"""Measure one row on one rank: memory and buffers, times, check of the result, record."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
from msgspec.structs import replace

from bench.options.argument_types import Checks
from bench.run.data import Checked, Inputs, ResultCheck, poison
from bench.run.environment import RunContext
from bench.run.memory import (
    Arena,
    MemoryGrowth,
    Need,
    Room,
    Sizes,
    beside,
    buffers,
    in_place_starts,
    taken,
)
from bench.run.noise import NoiseCounters
from bench.run.pace import Pace
from bench.run.roofline import Rooflines
from bench.run.sampler import Gauges
from bench.timing.measure import Timing, measure
from bench.timing.starts import Arrived, HowToStart
from busbar.errors import Unavailable
from busbar.units import format_bytes, format_count
from collectives.execution.lower import lower
from collectives.execution.plan import Plan, memory
from collectives.execution.program import Program
from collectives.execution.transport import (
    Action,
    Array,
    LibraryCall,
    OneSidedAccess,
    Start,
    Wrapper,
)
from collectives.execution.world import World
from collectives.schedule.layout import Elements, Layout
from collectives.schedule.moves import Buffer
from collectives.schedule.ops import Op
from collectives.schedule.schedule import Schedule
from collectives.schedule.spec import Collective, Unit
from reports.records.measurement import Overlap, Record


@dataclass(frozen=True)
class Case:
    """What a row measures: a collective by one schedule, at one size.

    ``schedule``: None for the library's own collective, and for the bound ``worksharing``.
    ``elements``: of each part. ``reach``: how ranks access each other's memory, if no messages are
    sent. ``nonblocking``: the library's non-blocking form.
    """

    spec: Collective
    schedule: Schedule | None
    dtype: np.dtype[Any]
    op: Op | None
    elements: Elements
    root: int
    worksharing: bool = False
    reach: OneSidedAccess | None = None
    nonblocking: bool = False

    def layout(self, nranks: int) -> Layout:
        """The layout of parts on ``nranks`` ranks."""
        if self.schedule is not None:
            return Layout.of(self.schedule, self.spec, self.root)
        return Layout(self.spec, nranks, self.spec.parts(nranks), self.root)

    def fitting(self, nranks: int, need: int, free: int) -> int:
        """The largest size in bytes, a power of two, that would fit into ``free`` bytes of memory.

        ``need``: the bytes that a row of the present size needs; the estimate is proportional.
        """
        size = self.spec.total(nranks) * int(np.max(self.elements)) * self.dtype.itemsize
        bound = max(1, size * free // need)
        return 1 << (int(bound).bit_length() - 1)


_FEWEST, _MOST, _WARMUP, _BUDGET_S = 3, 30, 2, 2.0
# Elements of a vector that stays in the nearest cache, and multiplications that measure its speed.
_ELEMENTS, _TRIAL = 512, 200


def measure_overlap(action: Action, world: World, alone: float, most: int) -> Overlap:
    """Measure the overlap of a non-blocking collective with computation; all ranks get the same.

    As IMB-NBC: a rank starts the library's collective, computes for about as long as the collective
    takes by itself, and waits for it to complete. Intel MPI Benchmarks, User Guide, "Measuring
    Communication and Computation Overlap". ``alone``: seconds of the collective by itself. Each
    round counts the rank that took longest; the result is the median over rounds. There are at most
    ``most`` rounds, 3 to 30, in about two seconds.
    """
    both = _Overlapped(action, alone)
    rounds = max(_FEWEST, min(most, _MOST, int(_BUDGET_S / (2 * alone)) if alone > 0 else _MOST))
    spans = both.spans(rounds + _WARMUP, Start(world.barrier))
    together, computing = (
        median(world.combine(seconds[_WARMUP:], "max").tolist())
        for seconds in (spans.seconds, np.array(both.computing))
    )
    return Overlap(alone, computing, together)


class _Overlapped(Wrapper):
    """A non-blocking collective with computing inside; `computing`: seconds of each computation."""

    def __init__(self, action: Action, seconds: float) -> None:
        self.action, self.computing = action, list[float]()
        self._vector, self._times = np.ones(_ELEMENTS), _TRIAL
        best = min([self._compute() for _ in range(4)][1:])
        self._times = max(1, round(seconds / best * _TRIAL))
        # Made once: nothing but the collective and the computing is inside the clock.
        self._work = lambda: self.computing.append(self._compute())

    def __call__(self) -> None:
        self.action.over(self._work)

    def _compute(self) -> float:
        """Compute for about the requested seconds, in cache. Returns the seconds really taken."""
        start, vector = time.perf_counter(), self._vector
        for _ in range(self._times):
            np.multiply(vector, 1.0, out=vector)
        return time.perf_counter() - start


_LOST = (
    "none of {} iterations in windows counts, as some rank began late in each: use --sync barrier"
)


class Bench:
    """Measures rows on one rank; every method must be called by all ranks alike."""

    def __init__(
        self,
        opened: RunContext,
        rules: Timing,
        arrived: Arrived,
        *,
        check: Checks,
        room: Room,
        rooflines: Rooflines,
        gauges: Gauges,
        pace: Pace,
        follow: Callable[[Action | None], object] = lambda action: None,
    ) -> None:
        """``room``: the memory that rows may use.

        ``pace``: the time that rows may use; rank 0's decides. ``follow``: called with the action
        that runs next, and with None when it is closed.
        """
        self._follow = follow
        self._rooflines, self._gauges = rooflines, gauges
        self._world, self._transport = opened.world, opened.transport
        self._baseline = opened.baseline
        self._rules, self._arrived, self._check = rules, arrived, check
        self._room, self.pace = room, pace
        self._arena = Arena(opened.transport, opened.world.rank)
        #: The first wrong element of the last placement; empty if there was none.
        self.complaint = ""
        # Vectors that the library has taken for itself, by collective: the most so far.
        self._vectors: dict[str, float] = {}

    def measure(self, case: Case, in_place: bool, how: HowToStart | None = None) -> Record:
        """Measure one placement; ``how``: see `bench.timing.measure.measure`."""
        self.complaint = ""
        if in_place and not case.spec.in_place:
            return Record(skipped=f"{case.spec.name} has no in-place form")
        nranks, rank, each = self._world.size, self._world.rank, case.elements
        layout, itemsize, program = case.layout(nranks), case.dtype.itemsize, None
        sizes = buffers(case.spec, nranks, case.root, each, itemsize, in_place)
        if case.schedule is not None:
            program = lower(case.schedule, layout, rank, each, in_place=in_place)
        refusal = self._refusal(case, program, sizes, in_place) or self._taken(sizes)
        if refusal:
            return Record(skipped=refusal)
        source, target = self._buffers(case, layout, in_place)
        own = {Buffer.IN: source, Buffer.OUT: target}
        about = (case.op, case.elements, case.root, in_place, case.nonblocking)
        call = LibraryCall(case.spec, own, *about)
        limit = self._rooflines.limit(layout, call)
        inputs = Inputs(layout, case.dtype, case.op, case.elements)
        start = time.perf_counter()
        inputs.fill(rank, source)
        # Each check fills the inputs again, and reads about as much.
        proving = 2 * (time.perf_counter() - start) * max(1, self._check.iterations)
        growth = MemoryGrowth()
        action = self._action(case, program, call)
        proof = self._proof(case, inputs, source, target)
        self._follow(action)
        try:
            timing: Action = action
            if self._check.timed:
                proof.fresh()
                meet, reached = self._world.barrier, case.reach is not None
                meet()
                timing = Checked(action, proof, meet, self._arrived, reached=reached)
            self._gauges.begin()
            noise, overlapped = NoiseCounters(self._world), None
            within = (how, self._arrived, lambda: self.pace.left() - proving)
            timed = measure(timing, self._world, self._rules, *within)
            noise.stop()
            if case.nonblocking and timed.times_s:
                alone = median(timed.times_s)
                overlapped = measure_overlap(action, self._world, alone, timed.iterations or 0)
            more = self._gauges.more(timed)
            for _ in range(more):
                action()
            gpus = self._gauges.end((timed.runs or 0) + more)
            moved = self._prove(case, action, proof)
            if case.schedule is None and not case.worksharing and self._room.on_host:
                most = taken(sizes, rank, growth.nbytes())
                self._vectors[case.spec.name] = max(self._vectors.get(case.spec.name, 0), most)
        finally:
            self._follow(None)
            action.close()
        others, waits = noise.gather()
        return replace(
            self._record(case, timed, proof, moved),
            limit_s=limit,
            noise=others if timed.times_s else None,
            core_wait=waits if timed.times_s else (),
            gpus=gpus,
            overlapped=overlapped,
        )

    # -- memory

    def _need(self, case: Case, program: Program | None, sizes: Sizes, in_place: bool) -> int:
        """Bytes that this rank needs for the row in total."""
        rank, size = self._world.rank, case.dtype.itemsize
        if program is not None:
            return memory(program, self._transport, size, in_place)
        own = sum(of[rank] for of in sizes.values())
        if case.worksharing:
            return own
        vectors = self._vectors.get(case.spec.name, 0)
        return own + beside(case.spec, sizes, rank, vectors) + self._baseline.rotation(own)

    def _refusal(self, case: Case, program: Program | None, sizes: Sizes, in_place: bool) -> str:
        """The reason why the row does not fit into memory; empty if it does."""
        held = self._arena.keep(sizes)
        need = self._need(case, program, sizes, in_place)
        self._transport.trim()
        self._world.barrier()  # from here on, memory that other ranks released is free
        mapped = self._room.mapped and (case.schedule is not None or case.worksharing)
        lack = self._room.lack(Need(need, held, mapped))
        if lack is None:
            return ""
        fits = f"sizes up to {format_bytes(case.fitting(self._world.size, lack.need, lack.free))}"
        if fewer := lack.ranks * lack.free // lack.need:
            fits += f" or with {fewer} of these ranks there"
        return (
            f"{format_count(lack.ranks, 'rank')} x {format_bytes(lack.need / lack.ranks)} ="
            f" {format_bytes(lack.need)} {lack.name}, which has {format_bytes(lack.free)} to give;"
            f" it would fit with {fits}"
        )

    def _taken(self, sizes: Sizes) -> str:
        """Allocate the buffers. If a rank cannot, returns the reason, and all ranks free theirs."""
        problem = ""
        try:
            self._arena.take(sizes)
        except (Unavailable, MemoryError) as error:
            problem = str(error) or "no memory"
        if not self._world.combine(np.array([float(bool(problem))]), "max")[0]:
            return ""
        self._arena.keep({})
        problems = self._world.gather(problem)
        return next(f"rank {rank}: {reason}" for rank, reason in enumerate(problems) if reason)

    # -- running

    def _buffers(self, case: Case, layout: Layout, in_place: bool) -> tuple[Array, Array]:
        both, size = (Buffer.IN, Buffer.OUT), case.dtype.itemsize
        counts = [layout.elements(self._world.rank, b, case.elements) for b in both]
        if not in_place:
            source, target = (
                self._arena[b][: n * size].view(case.dtype)
                for b, n in zip(both, counts, strict=True)
            )
        else:
            whole = self._arena[Buffer.OUT][: max(counts) * size].view(case.dtype)
            starts = in_place_starts(layout, self._world.rank, case.elements)
            source, target = (whole[at : at + n] for at, n in zip(starts, counts, strict=True))
        poison(target)
        return source, target

    def _action(self, case: Case, program: Program | None, call: LibraryCall) -> Action:
        if case.reach is not None and program is not None:
            return self._transport.one_sided(program, call.buffers, case.reach)
        if case.schedule is None:
            how = self._transport.worksharing if case.worksharing else self._baseline.library
            return how(call)
        what = (case.schedule, case.spec, self._transport, self._world.rank)
        ends = (call.buffers[Buffer.IN], call.buffers[Buffer.OUT], case.op, case.elements)
        return Plan(*what, *ends, root=case.root, in_place=call.in_place, program=program)

    def _proof(self, case: Case, inputs: Inputs, source: Array, target: Array) -> ResultCheck:
        library = case.schedule is None and not case.worksharing
        # A library's barrier leaves no data to compare.
        nothing = not self._check.iterations or (library and case.spec.unit is Unit.NOTHING)
        rounds = library and case.op is not None and case.op.mean
        return ResultCheck(
            inputs,
            self._world.rank,
            source,
            target,
            ulps=self._baseline.average_ulps if rounds else 0,
            compares=not nothing,
            digests=self._check.timed,
        )

    def _prove(self, case: Case, action: Action, proof: ResultCheck) -> tuple[int, int]:
        """Run the iterations to check, and compare every element of their results.

        At least one iteration runs. Returns the bytes that it sends and receives.
        """
        moved = None
        for number in range(max(1, self._check.iterations)):
            self._arrived(number)
            before = action.sent, action.received
            proof.fresh()
            self._world.barrier()
            action()
            # A rank whose memory is accessed by put or get learns from the barrier that the
            # iteration is over. Any other iteration is complete when it returns.
            if case.reach is None:
                proof.look()
            self._world.barrier()  # accesses by other ranks are now counted completely, too
            moved = moved or (action.sent - before[0], action.received - before[1])
            if case.reach is not None:
                proof.look()
        assert moved is not None
        return moved

    def _record(
        self, case: Case, timed: Record, proof: ResultCheck, moved: tuple[int, int]
    ) -> Record:
        """Add the check's result and the bytes moved, combined over ranks, to the timed record."""
        # Whole numbers below 2⁵³, exact as floats. A reduction is enough: no gather is needed.
        wrong = proof.wrong
        mine = np.array([wrong[0] if wrong else 0, *moved], float)
        count, total, _ = map(int, self._world.combine(mine, "sum"))
        _, sent, received = map(int, self._world.combine(mine, "max"))
        if count and not self.complaint:
            for rank, one in enumerate(self._world.gather(list(wrong or ()))):
                if one and one[0] and not self.complaint:
                    self.complaint = f"rank {rank}: out[{one[1]}] is {one[2]}, expected {one[3]}"
        ours = case.schedule is not None or case.worksharing
        return replace(
            timed,
            wrong=None if wrong is None else count,
            checked="" if wrong is None else str(self._check),
            sent_bytes=sent if ours else None,
            received_bytes=received if ours else None,
            total_bytes=total if ours else None,
            skipped="" if timed.times_s else _LOST.format(timed.runs),
        )
