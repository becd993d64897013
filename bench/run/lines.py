"""The lines of a table: heading, remarks above it, rows, and notes under a row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from bench.options.options import Options
from bench.run.groups import Group
from bench.run.layout import TableLayout
from bench.run.noise import cause, noted
from busbar.installation import busbar_version
from busbar.mpi import ThreadLevel
from busbar.mpi import remarks as level_remarks
from busbar.units import format_seconds
from collectives.execution.transport import Transport
from reports.exports.nccl_table import Banner
from reports.records.cores import Load
from reports.records.gpus import warnings
from reports.records.record import Result
from reports.records.shown import PLACEMENT


class People(NamedTuple):
    """The ranks in the heading: processes, and their GPUs if they have any."""

    devices: list[tuple[int, int, str, str]]
    slots: list[tuple[int, str]]

    @classmethod
    def of(cls, places: Sequence[Mapping[str, Any]]) -> People:
        """From `bench.run.environment.place` of every rank."""
        return cls(
            [(n, p["pid"], p["host"], p["device"] or p["cpu"]) for n, p in enumerate(places)],
            [(p["index"], p["gpu"]) for p in places if p["index"] is not None and p["gpu"]],
        )


def banner(
    program: str,
    options: Options,
    library: str,
    people: People,
    group: Group | None,
    above: bool,
    graph: bool,
) -> Banner:
    """The heading of a table; ``program`` is what its rows run.

    ``above``: the list of ranks stands above an earlier table.
    """
    return Banner(
        program=program,
        version=f"busbar version {busbar_version()} {library}",
        minimum=min(options.sizes),
        maximum=max(options.sizes),
        step=int(options.factor or 2) if options.step is None else options.step,
        factor=options.step is None,
        warmup=options.warmup,
        iterations=options.iterations,
        validation=options.check.iterations,
        devices=people.devices,
        slots=people.slots,
        group=0 if group is None else group.number,
        above=above,
        graph=graph,
    )


def remarks(
    group: Group | None,
    crowd: Load | None,
    ranks: int,
    transport: Transport,
    mpi: ThreadLevel | None,
    library: str,
) -> list[str]:
    """The remarks above a table: its group, shared cores, MPI's level, the transport's remarks.

    ``mpi``: the thread level of a table with rows over MPI; None of any other.
    """
    found = [] if group is None else [group.title]
    shared = crowd is not None and crowd.per_core > 1
    if crowd is not None and shared:
        found.append(crowd.remark(ranks if group is None else group.every))
    if mpi is not None:
        found += level_remarks(mpi, library, shared)
    return [*found, *transport.remarks]


def shown(result: Result, layout: TableLayout) -> list[str]:
    """A row and what is to be said of it, a line each."""
    lines = layout.row(result)
    if "algorithm" in result.parameters:
        chosen = f"{result.parameters['algorithm']} over {result.transport}"
        lines.append(f"# at {result.size} B {result.algorithm} is {chosen}")
    said = set[str]()
    for placement in ("out", "in"):
        sample = result.sample(placement)
        if sample is not None and sample.skipped and sample.skipped not in said:
            what = "" if result.out == result.in_place else f"{PLACEMENT[placement]} "
            lines.append(f"# skipped {what}at {result.size} B: {sample.skipped}")
            said.add(sample.skipped)
    for placement, told in result.parameters.get("said", {}).items():
        words = "  ".join(f"{name} {value}" for name, value in told.items())
        lines.append(f"# {PLACEMENT[placement]}: {words}")
    for placement, found in result.parameters.get("overlap", {}).items():
        lines.append(f"# {PLACEMENT[placement]}: {_overlapped(found)}")
    lines += [
        f"# {PLACEMENT[placement]}: waited for a core: {noted(shares)}"
        for placement, shares in result.core_wait.items()
    ]
    lines += [
        f"# {PLACEMENT[placement]}: meanwhile {text}"
        for placement, found in result.noise.items()
        if (text := cause(found))
    ]
    lines += [
        f"# {PLACEMENT[placement]}: {sample.sync['lost']} of {sample.sync['begun']} iterations do"
        " not count, for some rank was late; windows up to"
        f" {format_seconds(sample.sync['widest_s'])}"
        for placement in ("out", "in")
        if (sample := result.sample(placement)) is not None and sample.sync.get("lost")
    ]
    return lines + [f"# at {result.size} B: {text}" for text in warnings(result.gpus)]


def _overlapped(found: Mapping[str, float]) -> str:
    """The overlap of a collective with computation, in words."""
    return (
        f"with {format_seconds(found['computing'])} of computing"
        f" {format_seconds(found['together'])}:"
        f" overlap {100 * found['share']:.0f} %, exposed {format_seconds(found['exposed'])}"
    )
