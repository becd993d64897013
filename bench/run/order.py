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
    """A row to measure, and the table that it is of."""

    job: Job
    chosen: BySize | Chosen
    line: SizeRow
    arrival: ArrivalPattern

    @property
    def table(self) -> tuple[object, ...]:
        """Properties that the rows of a table share."""
        return id(self.job), self.chosen, self.arrival


def all_work(jobs: Sequence[Job], nranks: int) -> list[PlannedRow]:
    """The rows of all tables, a pattern of arrivals after the other."""
    return [
        PlannedRow(job, chosen, line, arrival)
        for arrival in jobs[0].options.arrivals
        for job in jobs
        for chosen in job.chosen
        for line in rows(job.spec, job.options, nranks)
    ]


def order(options: Options, n: int, cycle: int) -> Sequence[int]:
    """The order in which n rows are measured: as they stand, or as a launch draws it."""
    return range(n) if options.launch is None else options.launch.order(n, cycle)


def planned(jobs: Sequence[Job], world: World, room: Room) -> Pace:
    """Time limits of the rows. Rank 0 computes them and decides."""
    seen, options = room.seen(), jobs[0].options
    found = limits(jobs, world.size, seen) if world.rank == 0 else []
    found *= len(options.arrivals)
    width, every = len(options.placements), list[float]()
    for cycle in range(max(1, options.cycles)):
        for at in order(options, len(found) // width, cycle):
            every += found[at * width : (at + 1) * width]
    return Pace(every, bounded=options.iterations is None)
