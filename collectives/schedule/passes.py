"""Functions from schedules to schedules, to compose algorithms from others."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from math import lcm

import numpy as np

from busbar.errors import ScheduleError, Unsupported
from collectives.schedule.moves import Column, Moves
from collectives.schedule.schedule import Schedule, Step, StepRun, Steps

#: The most segments of a pipeline: more would cost more latency than they save.
MOST_SEGMENTS = 4096


def named(schedule: Schedule, name: str, **parameters: object) -> Schedule:
    """The same schedule with an algorithm's name and parameters."""
    return replace(schedule, name=name, parameters=tuple(parameters.items()))


def _map(schedule: Schedule, change: Callable[[Moves], Moves], **fields: object) -> Schedule:
    def changed(step: Step) -> Step:
        parts = tuple(map(changed, step.parts))
        return Step(lambda: change(step.make()), step.signature, parts)

    def changed_run(run: StepRun) -> StepRun:
        return StepRun(run.count, lambda i: change(run.make(i)), run.signature)

    steps: Sequence[Step] = (
        Steps(map(changed_run, schedule.steps.runs))
        if isinstance(schedule.steps, Steps)
        else tuple(map(changed, schedule.steps))
    )
    return replace(schedule, steps=steps, **fields)  # type: ignore[arg-type]


def _within(numbers: Column, n: int, what: str) -> Column:
    """Return the numbers, or raise ScheduleError for one that is negative or not below n."""
    bad = (numbers < 0) | (numbers >= n)
    if bad.any():
        raise ScheduleError(f"{what} {numbers[bad][0]} is out of range; there are {n}, from 0")
    return numbers


def _at(new: Column, numbers: Column, what: str) -> Column:
    return new[_within(numbers, len(new), what)]


def refine(schedule: Schedule, k: int) -> Schedule:
    """The same transfers with every chunk cut into ``k``: chunk c becomes c·k … c·k+k−1."""
    if k == 1:
        return schedule

    def change(m: Moves) -> Moves:
        return m.replace(src_chunk=m.src_chunk * k, dst_chunk=m.dst_chunk * k, count=m.count * k)

    return _map(schedule, change, nchunks=schedule.nchunks * k, scratch=schedule.scratch * k)


def _common(schedules: Sequence[Schedule]) -> int:
    """The least number of chunks into which every schedule's chunks can be cut."""
    counts = [schedule.nchunks for schedule in schedules]
    if min(counts) < 1:
        raise ScheduleError(f"a schedule of {min(counts)} chunks moves nothing; at least 1")
    return lcm(*counts)


def then(*schedules: Schedule) -> Schedule:
    """Join schedules one after the other; their chunks are refined to a common number."""
    ranks = {schedule.nranks for schedule in schedules}
    if len(ranks) != 1:
        raise ScheduleError(f"then: schedules for different rank counts {sorted(ranks)}")
    if len({schedule.vector for schedule in schedules}) != 1 or not schedules[0].vector:
        raise ScheduleError("then: only schedules in vector form follow one another")
    nchunks = _common(schedules)
    parts = [refine(schedule, nchunks // schedule.nchunks) for schedule in schedules]
    return Schedule(
        ranks.pop(),
        nchunks,
        _joined([part.steps for part in parts]),
        max(part.scratch for part in parts),
        packed=any(part.packed for part in parts),
    )


def _joined(parts: Sequence[Sequence[Step]]) -> Sequence[Step]:
    """Concatenate steps, with signatures that are unique to their part."""

    def tag(part: int, signature: Hashable) -> Hashable:
        return None if signature is None else (part, signature)

    if any(isinstance(part, Steps) for part in parts):
        return Steps(
            replace(run, signature=tag(i, run.signature))
            for i, part in enumerate(parts)
            for run in _runs(part)
        )
    return tuple(
        replace(step, signature=tag(i, step.signature))
        for i, part in enumerate(parts)
        for step in part
    )


def _runs(steps: Sequence[Step]) -> Sequence[StepRun]:
    if isinstance(steps, Steps):
        return steps.runs
    return [StepRun(1, lambda i, one=step: one.make(), step.signature) for step in steps]  # type: ignore[misc]


def reverse(schedule: Schedule, reduce: bool = False) -> Schedule:
    """The steps from last to first, with each move reversed, all plain or all reducing.

    The reverse of a reduce-scatter is an all-gather (``reduce=False``), that of a broadcast a
    reduce (``reduce=True``).
    """

    def change(m: Moves) -> Moves:
        return Moves(m.table[[1, 0, 4, 5, 2, 3, 6, 7]]).replace(reduce=reduce)

    turned = _map(schedule, change)
    steps = turned.steps
    if isinstance(steps, Steps):
        return replace(turned, steps=Steps(run.reversed() for run in steps.runs[::-1]))
    return replace(turned, steps=steps[::-1])


def relabel(schedule: Schedule, order: Sequence[int]) -> Schedule:
    """Rename ranks: rank i becomes rank ``order[i]``; chunks stay as they are."""
    new = np.asarray(order, np.int32)
    if sorted(order) != list(range(schedule.nranks)):
        raise ScheduleError(f"relabel: {list(order)} is no order of {schedule.nranks} ranks")

    def change(m: Moves) -> Moves:
        return m.replace(src=_at(new, m.src, "rank"), dst=_at(new, m.dst, "rank"))

    return _map(schedule, change)


def rechunk(schedule: Schedule, order: Sequence[int]) -> Schedule:
    """Rename chunks: chunk c becomes chunk ``order[c]``; moves of several chunks are split."""
    new = np.asarray(order, np.int32)

    def change(m: Moves) -> Moves:
        m = m.unit()
        return m.replace(
            src_chunk=_at(new, m.src_chunk, "chunk"), dst_chunk=_at(new, m.dst_chunk, "chunk")
        )

    return _map(schedule, change)


def rotate(schedule: Schedule, root: int, *, chunks: bool = False) -> Schedule:
    """Rename ranks: rank i becomes rank i + ``root``; with ``chunks`` also the chunks.

    Turns a schedule for root 0 into one for any root. ``chunks`` is for collectives in which chunk
    i belongs to rank i; there must be one chunk per rank then.
    """
    n = schedule.nranks
    if not 0 <= root < n:
        raise Unsupported(f"root {root} is not a rank; there are {n}, from 0")
    if root == 0:
        return schedule
    order = [(i + root) % n for i in range(n)]
    turned = relabel(schedule, order)
    return rechunk(turned, order) if chunks else turned


def _window(schedule: Schedule, nchunks: int, offset: int) -> Schedule:
    """The schedule on a part of a longer vector, from chunk ``offset`` on."""

    def change(m: Moves) -> Moves:
        return m.replace(src_chunk=m.src_chunk + offset, dst_chunk=m.dst_chunk + offset)

    return _map(schedule, change, nchunks=nchunks)


def _union(
    nranks: int, nchunks: int, lanes: Sequence[Sequence[Step]], scratch: int, behind: int = 0
) -> Schedule:
    """Join lanes of steps over disjoint chunks, each ``behind`` steps after the one before."""
    length = max((len(lane) + j * behind for j, lane in enumerate(lanes)), default=0)
    together: list[list[tuple[int, Step]]] = [[] for _ in range(length)]
    for j, lane in enumerate(lanes):
        for i, one in enumerate(lane, j * behind):
            together[i].append((j, one))

    def step(at_once: list[tuple[int, Step]]) -> Step:
        signatures = tuple((j, s.signature) for j, s in at_once)
        return Step(
            lambda: Moves.concat(s.make() for _, s in at_once),
            None if any(tag is None for _, tag in signatures) else signatures,
            tuple(s for _, s in at_once),
        )

    return Schedule(nranks, nchunks, tuple(map(step, together)), scratch)


def beside(*schedules: Schedule) -> Schedule:
    """Join schedules side by side: schedule j works on the j-th share of the vector."""
    ranks = {schedule.nranks for schedule in schedules}
    if len(ranks) != 1:
        raise ScheduleError(f"beside: schedules for different rank counts {sorted(ranks)}")
    share = _common(schedules)
    total = share * len(schedules)
    lanes = [
        _window(refine(s, share // s.nchunks), total, j * share).steps
        for j, s in enumerate(schedules)
    ]
    return _union(ranks.pop(), total, lanes, max(s.scratch for s in schedules))


def pipeline(schedule: Schedule, segments: int) -> Schedule:
    """The schedule on ``segments`` shares of the vector, each one step behind the one before.

    A schedule of d steps becomes one of d + segments − 1 (Träff, Ripke 2008, among others).
    """
    if segments < 1:
        raise ScheduleError(f"pipeline: {segments} segments; at least 1 is needed")
    if segments > MOST_SEGMENTS:
        raise Unsupported(f"{segments} segments; at most {MOST_SEGMENTS} are pipelined")
    total = schedule.nchunks * segments
    lanes = [_window(schedule, total, j * schedule.nchunks).steps for j in range(segments)]
    return _union(schedule.nranks, total, lanes, schedule.scratch, behind=1)


def on_groups(
    schedule: Schedule,
    groups: Sequence[Sequence[int]],
    *,
    nranks: int,
    nchunks: int,
    offsets: Sequence[int] | None = None,
    scale: int = 1,
) -> Schedule:
    """The schedule inside every group of ranks at once.

    Local rank i of group g is rank ``groups[g][i]``; local chunk c is the ``scale`` chunks from
    ``offsets[g] + c·scale`` on, of ``nchunks`` in total. Groups must not share a rank.
    """
    table = np.asarray(groups, np.int32)
    start = np.zeros(len(groups), np.int32) if offsets is None else np.asarray(offsets, np.int32)
    if table.ndim != 2 or table.shape[1] != schedule.nranks:
        raise ScheduleError(f"on_groups: every group must have {schedule.nranks} ranks")
    if len(np.unique(table)) != table.size:
        raise ScheduleError("on_groups: a rank is in two groups")

    def everywhere(m: Moves) -> Moves:
        group = np.repeat(np.arange(len(table)), len(m))
        every = Moves(np.tile(m.table, len(table)))
        return every.replace(
            src=table[group, _within(every.src, table.shape[1], "rank")],
            dst=table[group, _within(every.dst, table.shape[1], "rank")],
            src_chunk=start[group] + every.src_chunk * scale,
            dst_chunk=start[group] + every.dst_chunk * scale,
            count=every.count * scale,
        )

    steps = _map(schedule, everywhere).steps
    return Schedule(nranks, nchunks, steps, schedule.scratch * scale)
