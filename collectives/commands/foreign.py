"""Schedules by name or from files: what NAME means, and verify FILE, import, export."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from busbar.arguments import number, whole
from busbar.errors import ScheduleError, Unsupported
from busbar.files import write_all
from busbar.units import MOST_BYTES, Unsaid, format_bytes, parse_ranks
from collectives.commands.command import Subcommand, one
from collectives.formats.convert import convert
from collectives.formats.load import build, from_file, plan_of, proven, proven_plan, stated
from collectives.formats.msccl import MOST_GPUS, PROTOCOLS, Algorithm
from collectives.formats.msccl import parse as parse_xml
from collectives.formats.mscclpp import ExecutionPlan
from collectives.formats.mscclpp_prove import PlanProof
from collectives.formats.proof import Proof, prove
from collectives.formats.table import FORMATS, Order
from collectives.predict.compare import estimate_moves
from collectives.schedule.catalogue import parse, spec
from collectives.schedule.cost import cost
from collectives.schedule.layout import Layout

# As many as NCCL has.
_MOST_CHANNELS = 64
# Messages of a schedule that is written; one of MSCCL's is also proven again.
_MOST_MOVES: Mapping[str, float] = {"chakra": 4e6, "goal": 4e6, "msccl": 5e5}
_SAY_EVERY_S = 2.0
_PLACEMENTS: Mapping[str, bool | None] = {"both": None, "in": True, "out": False}


def _import_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, metavar="FILE")


def _export_options(parser: argparse.ArgumentParser) -> None:
    option = parser.add_argument
    option("name", metavar="NAME", help="an algorithm, perhaps chain:segments=4; or a file")
    option("-c", "--collective", help="collective of the algorithm; an XML file states its own")
    option(
        "-n",
        "--ranks",
        default=Unsaid("8"),
        help="rank count (default 8); an XML file states its own",
    )
    option("-r", "--root", type=int, default=0, help="root rank (default 0)")
    option("-F", "--format", choices=sorted(FORMATS), default="msccl", help="default msccl")
    option("-o", "--output", type=Path, metavar="FILE", help="default: standard output")
    text = "goal and chakra: size of the collective (default 1M)"
    option("--bytes", type=whole(1, "bytes", MOST_BYTES), default=1 << 20, help=text)
    option("--placement", choices=_PLACEMENTS, default="both", help="msccl: default both")
    option("--proto", choices=PROTOCOLS, default="Simple", help="msccl: default Simple")
    option(
        "--channels",
        type=whole(1, "channels", _MOST_CHANNELS),
        default=1,
        help="msccl: channels per pair of ranks (default 1)",
    )
    text = "goal: time of an addition, in nanoseconds per byte (default 0)"
    option("--ns-per-byte", type=number(0, 1e6, "ns a byte"), default=0.0, help=text)


def describe(options: argparse.Namespace) -> None:
    """Fill in what a file in the place of NAME says itself: collective, ranks and root.

    Raises Unsupported where the options say otherwise.
    """
    where = stated(path := Path(options.name))
    _agreed(options, path, where)
    options.collective = where.spec.name
    options.ranks, options.root = str(where.nranks), where.root


def asked(options: argparse.Namespace) -> tuple[str, dict[str, object]]:
    """The algorithm's name and parameters, from NAME and the options for parameters."""
    if from_file(options.name):
        describe(options)
    extra = [
        f"{key}={getattr(options, key)}" for key in ("grid", "segments") if getattr(options, key)
    ]
    name, given = parse(":".join([options.name, *extra]))
    root = given.pop("root", None)
    if root is not None:
        if not isinstance(root, int):
            raise Unsupported(f"root must be a rank, not {root!r}")
        options.root = root
    return name, given


def _agreed(options: argparse.Namespace, path: Path, where: Layout) -> None:
    """Raise Unsupported where options ask for something else than the file has."""
    what, asked = where.spec, options.collective
    if asked is not None and spec(asked).name != what.name:
        raise Unsupported(f"{path}: it is for {what.name}, not {asked}")
    if not isinstance(options.ranks, Unsaid) and where.nranks not in parse_ranks(options.ranks):
        raise Unsupported(f"{path}: it is for {where.nranks} ranks, not {options.ranks}")
    if what.rooted and options.root not in (0, where.root):
        raise Unsupported(f"{path}: its root is {where.root}, not {options.root}")


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


def verify(options: argparse.Namespace) -> int:
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
    _agreed(options, path, where)
    print("\n".join(head))
    return 0


def _import(options: argparse.Namespace) -> int:
    plan = plan_of(options.file)
    if plan is None:
        algorithm, proof = proven(options.file)
        try:
            schedule = convert(algorithm, proof)
        except Unsupported as error:
            raise Unsupported(f"{options.file}: {error}") from None
        where, head = proof.layout, _head(options.file, algorithm, proof)
    else:
        checked = proven_plan(options.file, plan)
        where, schedule = checked.layout, checked.schedule
        head = _plan_head(options.file, plan, checked)
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
    print(f"run it: python -m bench.{where.spec.name} --ranks {where.nranks} -A {options.file}")
    return 0


def _export(options: argparse.Namespace) -> int:
    if from_file(options.name):
        describe(options)
    elif options.collective is None:
        raise Unsupported(f"export {options.name}: give its --collective")
    name, given = parse(options.name)
    nranks, root = one(options.ranks, MOST_GPUS), options.root
    what = spec(options.collective)
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


IMPORT = Subcommand("prove an MSCCL XML file and make it a schedule", _import_options, _import)
EXPORT = Subcommand(
    "write a schedule as MSCCL XML, GOAL or Chakra execution traces", _export_options, _export
)
