"""``--dry-run``: show what would run, its memory and its bytes. Nothing is allocated or started."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import numpy as np

from bench.options.options import Options
from bench.run.contenders import Contender, Job, SizeDependentContender, SizeRow, rows
from bench.run.memory import SHARE, beside, buffers, free_memory, pools
from bench.run.pace import at_most, longest, waits
from busbar.host import cores
from busbar.tables import render_lines
from busbar.units import format_bytes, format_count
from collectives.execution.lower import lower
from collectives.schedule.cost import cost
from collectives.schedule.dtypes import dtype
from collectives.schedule.layout import Layout
from collectives.schedule.moves import Buffer
from collectives.schedule.spec import Collective

# Most ranks for which programs are lowered to find out which scratch they use.
_LOWERED = 128
# The columns of the plan, and the sides to which they are aligned.
_COLUMNS: tuple[tuple[str, Literal["left", "right"]], ...] = (
    ("algorithm", "left"), ("steps", "right"), ("size", "right"), ("place", "left"),
    ("memory", "right"), ("busiest out", "right"), ("busiest in", "right"), ("", "left"),
)  # fmt: skip


def dry_run(job: Job, nranks: int) -> Iterator[str]:
    """The lines to print, as if all ranks were on this host."""
    spec, options, chosen, notes = job
    free = int(free_memory() * SHARE)
    yield (
        f"# dry run: {spec.name} on {format_count(nranks, 'rank')} of this host,"
        f" which has {format_bytes(free)} to give"
    )
    yield from (f"# {note}" for note in notes)
    most = at_most(
        longest([job], nranks, [pools()] * nranks) + waits(options),
        crowded=nranks > len(cores()),
        each=len(options.launch_counts) * options.launches > 1,
    )
    yield f"# op {','.join(options.ops)}  type {','.join(options.dtypes)}" + (
        f"  {options.iterations} iterations"
        if options.iterations
        else f"  iterations until precise, --budget {options.budget:g} s a row and placement;"
        f" {most}"
    )
    if nranks > _LOWERED:
        yield "# memory: with all scratch that the schedules name, of which they may need less"
    rows = [row for one in chosen for row in _algorithm(spec, options, one, nranks, free)]
    cells = [list(column) for column in zip(*rows, strict=True)] or [[] for _ in _COLUMNS]
    columns = [(name, side, column) for (name, side), column in zip(_COLUMNS, cells, strict=True)]
    head, *lines = render_lines(columns)
    yield f"# {head}"
    yield from (f"  {line}" for line in lines)


def _algorithm(
    spec: Collective,
    options: Options,
    wanted: SizeDependentContender | Contender,
    nranks: int,
    free: int,
) -> Iterator[tuple[str, ...]]:
    """The rows of ``--dry-run`` for one algorithm: the texts of the columns `_COLUMNS`.

    ``wanted``: the algorithm, or several by size. ``free``: bytes of free memory; rows that need
    more are marked.
    """
    idle: Idle = set()
    counts: dict[int, str] = {}
    for row in rows(spec, options, nranks):
        chosen = wanted.at(row.size)
        schedule = chosen.schedule(row.root)
        if id(schedule) not in counts:
            counts[id(schedule)] = "" if schedule is None else str(cost(schedule, spec).steps)
        steps = counts[id(schedule)]
        itemsize = dtype(row.dtype).itemsize
        out, into = "unknown", "unknown"
        if schedule is not None:
            sent, got = chosen.traffic(row.elements, itemsize, row.root)
            out, into = f"{sent} B", f"{got} B"
        for placement in options.placements:
            if placement == "in" and not spec.in_place:
                continue
            need = _need(spec, chosen, row, nranks, itemsize, placement == "in", idle)
            fits = "" if need <= free else "would be skipped: does not fit"
            size, memory = format_bytes(row.size), format_bytes(need)
            yield chosen.label, steps, size, placement, memory, out, into, fits


Idle = set[tuple[int, int, bool]]
"""(schedule, rank, in place) of programs that use no scratch, whatever the size."""


def _need(
    spec: Collective,
    chosen: Contender,
    row: SizeRow,
    nranks: int,
    itemsize: int,
    in_place: bool,
    idle: Idle,
) -> int:
    """Bytes of all ranks' buffers and scratch, or of a library's copies; staging is not included.

    Which chunks a program uses does not depend on their size. So ranks that use no scratch are
    added to ``idle``, and their programs are not lowered again for the next size.
    """
    sizes = buffers(spec, nranks, row.root, row.elements, itemsize, in_place)
    total = sum(map(sum, sizes.values()))
    if chosen.library:
        return total + sum(beside(spec, sizes, rank) for rank in range(nranks))
    schedule = chosen.schedule(row.root)
    if schedule is None:
        return total
    layout = Layout.of(schedule, spec, row.root)
    for rank in range(nranks):
        if nranks > _LOWERED:
            total += layout.elements(rank, Buffer.SCRATCH, row.elements) * itemsize
        elif (id(schedule), rank, in_place) not in idle and len(schedule.scratch_chunks(rank)):
            program = lower(schedule, layout, rank, row.elements, in_place=in_place)
            scratch = program.elements[Buffer.SCRATCH]
            total += scratch * itemsize
            if not scratch and np.min(row.elements) >= schedule.nchunks:  # no chunk is empty
                idle.add((id(schedule), rank, in_place))
    return total
