"""The rows of a sweep in their order, each with its time limit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from bench.options.arrival import ArrivalPattern
from bench.options.options import Options
from bench.run.catalogue import BySize, Chosen, Job
from bench.run.memory import Room
from bench.run.pace import Pace, limits
from bench.run.work import SizeRow, rows
from collectives.execution.world import World


class PlannedRow(NamedTuple):
    """A row to measure, and the table that it is of.

    ``slower``: by what share of itself an iteration is made longer; None times plans as they are.
    """

    job: Job
    chosen: BySize | Chosen
    line: SizeRow
    arrival: ArrivalPattern
    slower: float | None

    @property
    def table(self) -> tuple[object, ...]:
        """Properties that the rows of a table share."""
        return id(self.job), self.chosen, self.arrival, self.slower

    @property
    def block(self) -> tuple[object, ...]:
        """Properties of rows that stand together where a launch draws their order."""
        return self.job.spec.name, self.line.dtype, self.line.op, self.line.root, self.line.size


def all_work(jobs: Sequence[Job], nranks: int) -> list[PlannedRow]:
    """The rows of all tables, a pattern of arrivals after the other."""
    return [
        PlannedRow(job, chosen, line, arrival, slower)
        for arrival in jobs[0].options.arrivals
        for slower in jobs[0].options.inject or (None,)
        for job in jobs
        for chosen in job.chosen
        for line in rows(job.spec, job.options, nranks)
    ]


def order(options: Options, work: Sequence[PlannedRow], cycle: int) -> Sequence[int]:
    """The order in which rows are measured: as they stand, or as a launch draws it."""
    if options.launch is None:
        return range(len(work))
    return options.launch.order([row.block for row in work], cycle)


def planned(jobs: Sequence[Job], world: World, room: Room) -> Pace:
    """Time limits of the rows. Rank 0 computes them and decides."""
    seen, options = room.seen(), jobs[0].options
    width, every = len(options.placements), list[float]()
    if world.rank == 0:
        work, found = all_work(jobs, world.size), limits(jobs, world.size, seen)
        found *= len(options.arrivals) * len(options.inject or (None,))
        for cycle in range(max(1, options.cycles)):
            for at in order(options, work, cycle):
                every += found[at * width : (at + 1) * width]
    return Pace(every, bounded=options.iterations is None)
