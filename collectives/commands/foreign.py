"""Schedules in files: verify FILE, import, export."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from busbar.arguments import number, whole
from busbar.commands import Command
from busbar.errors import ScheduleError, Unsupported
from busbar.files import write_all
from busbar.options import option
from busbar.units import MOST_BYTES, format_bytes
from collectives.commands.command import ScheduleOptions, one
from collectives.formats.convert import convert
from collectives.formats.load import build, from_file, plan_of, proven, proven_plan
from collectives.formats.msccl import MOST_GPUS, PROTOCOLS, Algorithm
from collectives.formats.msccl import parse as parse_xml
from collectives.formats.mscclpp import ExecutionPlan
from collectives.formats.mscclpp_prove import PlanProof
from collectives.formats.proof import Proof, prove
from collectives.formats.table import FORMATS, Order
from collectives.predict.compare import estimate_moves
from collectives.schedule.catalogue import spec
from collectives.schedule.cost import cost
from collectives.schedule.layout import Layout

# As many as NCCL has.
_MOST_CHANNELS = 64
# Messages of a schedule that is written; one of MSCCL's is also proven again.
_MOST_MOVES: Mapping[str, float] = {"chakra": 4e6, "goal": 4e6, "msccl": 5e5}
_SAY_EVERY_S = 2.0
_PLACEMENTS: Mapping[str, bool | None] = {"both": None, "in": True, "out": False}


class ImportCommand(Command):
    """Prove an MSCCL XML file and make it a schedule."""

    file: Path = option("FILE")

    def run(self) -> int:
        """Print what was proven, and what the schedule costs."""
        plan = plan_of(self.file)
        if plan is None:
            algorithm, proof = proven(self.file)
            try:
                schedule = convert(algorithm, proof)
            except Unsupported as error:
                raise Unsupported(f"{self.file}: {error}") from None
            where, head = proof.layout, _head(self.file, algorithm, proof)
        else:
            checked = proven_plan(self.file, plan)
            where, schedule = checked.layout, checked.schedule
            head = _plan_head(self.file, plan, checked)
        found = cost(schedule, where.spec)
        room = max((len(schedule.scratch_chunks(r)) for r in range(schedule.nranks)), default=0)
        print("\n".join(head))
        print(
            f"as a schedule: {found.steps} steps with messages, {len(schedule.steps)} in all,"
            f" {schedule.nchunks} chunks, {room} scratch chunks a rank; proven out of place"
            + (" and in place" if where.spec.in_place else "")
        )
        print(
            f"in units of the collective's total: {found.total:.4g} moved, a rank sends up to"
            f" {found.out:.4g}, receives {found.into:.4g}, adds {found.reduced:.4g}"
        )
        print(f"run it: python -m bench.{where.spec.name} --ranks {where.nranks} -A {self.file}")
        return 0


class ExportCommand(ScheduleOptions, Command):
    """Write a schedule as MSCCL XML, GOAL or Chakra execution traces."""

    name: str = option("NAME  an algorithm, perhaps chain:segments=4; or a file")
    collective: str | None = option(
        "-c --collective  collective of the algorithm; an XML file states its own"
    )
    ranks: str = option("-n --ranks  rank count (default 8); an XML file states its own", "8")
    grid: str | None = None
    segments: str | None = None
    format: str = option("-F --format", "msccl", choices=sorted(FORMATS))
    output: Path | None = option("-o --output FILE  default: standard output")
    bytes: int = option(
        "--bytes  goal and chakra: size of the collective (default 1M)",
        1 << 20,
        whole(1, "bytes", MOST_BYTES),
    )
    placement: str = option("--placement  msccl: default both", "both", choices=_PLACEMENTS)
    proto: str = option("--proto  msccl: default Simple", "Simple", choices=PROTOCOLS)
    channels: int = option(
        "--channels  msccl: channels per pair of ranks", 1, whole(1, "channels", _MOST_CHANNELS)
    )
    ns_per_byte: float = option(
        "--ns-per-byte  goal: time of an addition, in nanoseconds per byte",
        0.0,
        number(0, 1e6, "ns a byte"),
    )

    def run(self) -> int:
        """Write the files, or the one to standard output."""
        if self.collective is None and not from_file(self.name):
            raise Unsupported(f"export {self.name}: give its --collective")
        options, name, given = self.algorithm()
        nranks, root = one(options.ranks, MOST_GPUS), options.root
        what = spec(options.collective or "")
        most = _MOST_MOVES[options.format]
        about = estimate_moves(what.name, name, nranks)
        if about > most:
            raise Unsupported(
                f"{name} on {nranks} ranks has about {about:.1e} messages; at most {most:.1e} are"
                f" written as {options.format}"
            )
        schedule = build(what.name, name, nranks, root=root, **given)
        order = Order(
            schedule,
            Layout.of(schedule, what, root),
            options.bytes,
            _PLACEMENTS[options.placement],
            options.proto,
            options.channels,
            options.ns_per_byte,
        )
        files = FORMATS[options.format](order)
        _put(_checked(files) if options.format == "msccl" else files, options.output)
        return 0


def _plan_head(path: Path, plan: ExecutionPlan, proof: PlanProof) -> list[str]:
    blocks = sum(len(gpu.threadblocks) for gpu in plan.gpus)
    counts = ", ".join(f"{number} {name}" for name, number in plan.counts().most_common())
    return [
        f"{path}: {plan.name or 'unnamed'}: MSCCL++ plan, {proof.layout.spec.name} on {plan.ngpus}"
        f" gpus, {proof.layout.nchunks} chunks, {blocks} threadblocks, {plan.protocol}",
        f"operations: {counts}",
        f"proven {'in place' if plan.inplace else 'out of place'}: the result is right, free of"
        " deadlocks and races",
        *(f"note: {note}" for note in proof.notes),
    ]


def _head(path: Path, algorithm: Algorithm, proof: Proof) -> list[str]:
    where = proof.layout
    steps = sum(1 for _ in algorithm.steps())
    blocks = sum(len(gpu.threadblocks) for gpu in algorithm.gpus)
    kinds = " and ".join("in place" if p else "out of place" for p in proof.placements)
    return [
        f"{path}: {algorithm.name or 'unnamed'}: {where.spec.name} on {algorithm.ngpus} gpus,"
        f" {algorithm.nchunksperloop} chunks, {blocks} threadblocks, {steps} steps,"
        f" {algorithm.proto}",
        f"proven {kinds}: the result is right, free of deadlocks and races",
        *(f"note: {note}" for note in proof.notes),
    ]


def verify(options: ScheduleOptions) -> int:
    """Prove the file in the place of NAME; gives the exit status: 0, or 1 for one that is wrong."""
    path = Path(options.name)
    plan = plan_of(path)
    try:
        if plan is None:
            algorithm, proof = proven(path)
            where, head = proof.layout, _head(path, algorithm, proof)
        else:
            checked = proven_plan(path, plan)
            where, head = checked.layout, _plan_head(path, plan, checked)
    except ScheduleError as error:
        print(f"collectives: {error}", file=sys.stderr)
        return 1
    options.check_layout(path, where)
    print("\n".join(head))
    return 0


def _checked(files: Iterable[tuple[str, bytes]]) -> Iterator[tuple[str, bytes]]:
    """Read the written file back and prove it, and print notes on it."""
    for suffix, text in files:
        for note in prove(parse_xml(text, "export")).notes:
            print(f"note: {note}", file=sys.stderr)
        yield suffix, text


def _put(files: Iterator[tuple[str, bytes]], output: Path | None) -> None:
    """Write all files or none, or the one to standard output."""
    if output is None:
        _, text = next(files)
        if next(files, None) is not None:
            raise Unsupported("several files do not go to standard output; give -o NAME")
        sys.stdout.write(text.decode())
        return
    sizes: dict[Path, int] = {}

    def places() -> Iterator[tuple[Path, bytes]]:
        said = time.monotonic()
        for suffix, data in files:
            path = output.with_name(output.name + suffix)
            sizes[path] = len(data)
            yield path, data
            if time.monotonic() - said > _SAY_EVERY_S:
                said = time.monotonic()
                print(
                    f"{len(sizes)} files, {format_bytes(sum(sizes.values()))} so far",
                    file=sys.stderr,
                )

    write_all(places())
    for path, size in sizes.items():
        print(f"{path}: {size} bytes", file=sys.stderr)
