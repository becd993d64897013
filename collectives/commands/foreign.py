"""``import`` and ``export``: read and write schedules as files of other programs."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from busbar.arguments import number, whole
from busbar.commands import Command
from busbar.errors import Unsupported
from busbar.files import write_all
from busbar.options import option
from busbar.terminal import print_note
from busbar.units import MOST_BYTES, format_bytes
from collectives.commands.command import (
    ScheduleOptions,
    complete_collective,
    complete_name,
    parse_rank_count,
)
from collectives.formats import own
from collectives.formats.export import export
from collectives.formats.load import build, prove_file
from collectives.formats.msccl import MOST_GPUS, PROTOCOLS, parse, write
from collectives.formats.proof import prove
from collectives.formats.simulators import chakra, goal, turns
from collectives.predict.compare import estimate_moves
from collectives.schedule.catalogue import spec
from collectives.schedule.cost import cost
from collectives.schedule.layout import Layout
from collectives.schedule.schedule import Schedule

# As many as NCCL has.
_MOST_CHANNELS = 64
# The most messages of a schedule to write; fewer for MSCCL, whose file is also proven.
_MOST_MOVES: Mapping[str, float] = {"chakra": 4e6, "goal": 4e6, "msccl": 5e5, "busbar": 5e5}
_REPORT_EVERY_S = 2.0
_PLACEMENTS: Mapping[str, bool | None] = {"both": None, "in": True, "out": False}


class ImportCommand(Command):
    """Prove an MSCCL XML file and make it a schedule."""

    file: Path = option("FILE")

    def run(self) -> int:
        """Print what was proven, and the costs of the schedule."""
        proof = prove_file(self.file, print_note)
        where, schedule = proof.layout, proof.schedule()
        counts = cost(schedule, where.spec)
        room = max((len(schedule.scratch_chunks(r)) for r in range(schedule.nranks)), default=0)
        print("\n".join(proof.summary))
        print(
            f"as a schedule: {counts.steps} steps with messages, {len(schedule.steps)} in all,"
            f" {schedule.nchunks} chunks, {room} scratch chunks a rank; proven out of place"
            + (" and in place" if where.spec.in_place else "")
        )
        print(
            f"in units of the collective's total: {counts.total:.4g} moved, a rank sends up to"
            f" {counts.out:.4g}, receives {counts.into:.4g}, adds {counts.reduced:.4g}"
        )
        print(f"run it: busbar {where.spec.name} --ranks {where.nranks} -A {self.file}")
        return 0


class ExportCommand(ScheduleOptions, Command):
    """Write a schedule as MSCCL XML, GOAL, Chakra execution traces, or as Busbar keeps it."""

    name: str = option(
        "NAME  an algorithm, perhaps chain:segments=4; or a file", completes=complete_name
    )
    collective: str | None = option(
        "-c --collective  collective of the algorithm; an XML file states its own",
        completes=complete_collective,
    )
    ranks: str = option("-n --ranks  number of ranks (default 8); an XML file states its own", "8")
    grid: str | None = None
    segments: str | None = None
    format: str = option("-F --format", "msccl", choices=sorted(_MOST_MOVES))
    out: Path | None = option("-o --out FILE  default: standard output")
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
        """Write the files, or a single file to standard output."""
        options, name, parameters = self.algorithm()
        nranks, root = parse_rank_count(options.ranks, MOST_GPUS), options.root
        what = spec(options.collective_of(name))
        most = _MOST_MOVES[options.format]
        about = estimate_moves(what.name, name, nranks)
        if about > most:
            raise Unsupported(
                f"{name} on {nranks} ranks has about {about:.1e} messages; at most {most:.1e} are"
                f" written as {options.format}"
            )
        schedule = build(what.name, name, nranks, root=root, **parameters)
        _put(_files(options, schedule, Layout.of(schedule, what, root)), options.out)
        return 0


def _files(
    options: ExportCommand, schedule: Schedule, layout: Layout
) -> Iterator[tuple[str, bytes]]:
    """For each file the ending of its name and its bytes, one file at a time."""
    if options.format == "msccl":
        placement = _PLACEMENTS[options.placement]
        algorithm = export(
            schedule, layout, in_place=placement, proto=options.proto, channels=options.channels
        )
        text = write(algorithm)
        # The text is read back and proven before it is written.
        for note in prove(parse(text, "export")).notes:
            print(f"note: {note}", file=sys.stderr)
        yield "", text
        return
    if options.format == "busbar":
        yield "", own.write(schedule, layout.spec, layout.root)
        return
    ranks = turns(schedule, layout, options.bytes)
    if options.format == "goal":
        yield "", goal(ranks, options.ns_per_byte)
    else:
        yield from ((f".{rank}.et", trace) for rank, trace in enumerate(chakra(ranks)))


def _put(files: Iterator[tuple[str, bytes]], output: Path | None) -> None:
    """Write all files or none; without ``output`` a single file to standard output."""
    if output is None:
        _, text = next(files)
        if next(files, None) is not None:
            raise Unsupported("several files do not go to standard output; give -o NAME")
        sys.stdout.write(text.decode())
        return
    sizes: dict[Path, int] = {}

    def places() -> Iterator[tuple[Path, bytes]]:
        reported = time.monotonic()
        for suffix, data in files:
            path = output.with_name(output.name + suffix)
            sizes[path] = len(data)
            yield path, data
            if time.monotonic() - reported > _REPORT_EVERY_S:
                reported = time.monotonic()
                print(
                    f"{len(sizes)} files, {format_bytes(sum(sizes.values()))} so far",
                    file=sys.stderr,
                )

    write_all(places())
    for path, size in sizes.items():
        print(f"{path}: {size} bytes", file=sys.stderr)
