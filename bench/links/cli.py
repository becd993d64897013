"""The ``measure`` command: options, who does what among the ranks, and what rank 0 shows."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from bench.links import racks
from bench.links.exchange import BUILT_IN, Exchange, find
from busbar.arguments import whole
from busbar.cpulist import members
from busbar.errors import BusbarError, ProbeError
from busbar.files import check
from busbar.printable import printable_lines
from busbar.sizes import parse_size
from busbar.status import BAD
from topology.measured.matrix import QUANTITIES, Pair, RankPlace, matrix, slow
from topology.measured.sweep import Samples
from topology.model.merge import merge
from topology.model.topology import Topology
from topology.sources import own_json
from topology.views import measured as view

if TYPE_CHECKING:
    from mpi4py import MPI

    from bench.links.measuring import Measured, Settings

T = TypeVar("T")
_MOST = 1 << 28


def options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``measure``."""
    parser.add_argument(
        "--isolated",
        action="store_true",
        help="one pair at a time instead of as many disjoint pairs as there are CPUs for",
    )
    parser.add_argument(
        "--bytes",
        type=_size,
        default=1 << 20,
        metavar="N",
        help="a bandwidth message (default: 1M)",
    )
    parser.add_argument(
        "--repetitions",
        type=whole(1, "windows", 100_000),
        default=30,
        metavar="N",
        help="windows timed (default: 30)",
    )
    parser.add_argument(
        "--transport",
        default=BUILT_IN,
        metavar="NAME",
        help="what moves the bytes: mpi (default), or what installed packages provide, as shm",
    )
    parser.add_argument(
        "--sweep",
        type=_size,
        default=0,
        metavar="N",
        help="also time messages of 8 bytes, 16, 32 … up to this size, which is what cost models "
        "are fitted on (python -m collectives fit)",
    )
    parser.add_argument(
        "--racks",
        action="store_true",
        help="also find which hosts share an uplink that is narrower than their links, by all of"
        " them talking at once",
    )
    parser.add_argument("-o", "--output", metavar="FILE", help="save as JSON that --from reads")
    parser.add_argument("--json", action="store_true", help="print that JSON instead of matrices")


def _size(word: str) -> int:
    try:
        size = parse_size(word)
    except BusbarError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if not 8 <= size <= _MOST:
        raise argparse.ArgumentTypeError(f"{word!r} is no size from 8 to 256M, such as 64K")
    return size


def run(
    args: argparse.Namespace, gather: Callable[[], Topology], write: Callable[[str, str], None]
) -> int:
    """Measure, or show what the files of --from hold. Returns the exit status."""
    from bench.links import measuring as measure_mpi

    try:
        comm = measure_mpi.world()
    except BusbarError:
        if not args.files:
            raise
        _report(args, _only_measured(gather()), write)
        return 0
    settings = measure_mpi.Settings(
        args.bytes,
        args.repetitions,
        alone=args.isolated,
        transport=args.transport,
        sweep=args.sweep,
    )
    try:
        machine = _together(comm, lambda: _machine(args, gather) if comm.rank == 0 else None)
        opened = _together(comm, lambda: _opener(comm, settings))
        exchange = _together(comm, opened)
    except _Elsewhere:
        return BAD
    try:
        places = measure_mpi.places_of(comm)
        schedule = measure_mpi.schedule_of(places, settings)
        found = measure_mpi.measure(comm, places, schedule, exchange, settings, _progress)
        accused = _accused(found, settings)
        found = measure_mpi.second_look(comm, schedule, exchange, settings, found, accused)
        swept = _swept(comm, schedule, exchange, settings)
        loaded = racks.measure(comm, places, exchange) if args.racks else None
    except BusbarError as error:
        # The others wait for this rank and cannot be told otherwise.
        sys.stderr.write(f"rank {comm.rank}: {error}\n")
        sys.stderr.flush()
        # A launcher throws away what it has not read yet when it is told of an abort.
        time.sleep(0.3)
        comm.Abort(error.exit_status)
        raise
    exchange.close()
    if found is not None and machine is not None:
        from bench.links.as_map import as_topology, with_racks

        measured = as_topology(found, settings, swept or {})
        if args.racks:
            measured = with_racks(measured, found.places, racks.grouped(loaded or {}))
        whole = measured
        # A machine that cannot be the one of the ranks says nothing of them.
        with suppress(ProbeError):
            whole = merge([measured, machine])
        for host, ranks, cpus in crowded(found.places):
            sys.stderr.write(
                f"note: {ranks} ranks share {cpus} CPUs of {printable_lines(host)}: pairs took turns"
            )
            sys.stderr.write(" on them, and what was measured is the scheduler as well\n")
        _report(args, whole, write)
    return 0


def _accused(found: Measured | None, settings: Settings) -> list[Pair]:
    """The pairs that are slow for their class, on rank 0."""
    if found is None:
        return []
    from bench.links.as_map import as_topology

    seen = as_topology(found, settings)
    number = {f"RANK{rank}": rank for rank in range(len(found.places))}
    return sorted(
        {
            (number[one.a], number[one.b])
            for name, more_is_better in QUANTITIES.items()
            for one in slow(seen, matrix(seen, name), more_is_better)
        }
    )


def _swept(
    comm: MPI.Intracomm,
    schedule: Sequence[Sequence[Pair]],
    exchange: Exchange,
    settings: Settings,
) -> Samples | None:
    """The sweep's samples on rank 0, where one was asked for."""
    if not settings.sweep:
        return None
    from bench.links.sweep import sweep

    return sweep(comm, schedule, exchange, settings, _progress)


class _Elsewhere(Exception):
    """Another rank says what is wrong."""


def _together(comm: MPI.Intracomm, action: Callable[[], T]) -> T:
    """Do it on all ranks: where any fails, the first of them raises its error, others _Elsewhere."""
    from bench.links.measuring import first_in_trouble

    trouble = None
    try:
        result = action()
    except BusbarError as error:
        trouble = error
    speaker = first_in_trouble(comm, trouble is None)
    if speaker is None:
        return result
    if trouble is not None and speaker == comm.rank:
        raise trouble
    raise _Elsewhere


def _machine(args: argparse.Namespace, gather: Callable[[], Topology]) -> Topology:
    if args.output and args.output != "-":
        check(Path(args.output))
    return gather()


def _opener(comm: MPI.Intracomm, settings: Settings) -> Callable[[], Exchange]:
    """What opens the exchange; looked up before any rank waits for another in it."""
    if settings.transport == BUILT_IN:
        from bench.links.mpi_exchange import MpiExchange

        return lambda: MpiExchange(comm, max(settings.nbytes, settings.sweep, racks.BYTES))
    return find(settings.transport)


def crowded(places: Sequence[RankPlace]) -> list[tuple[str, int, int]]:
    """Hosts with more ranks than CPUs that these ranks may use: (host, ranks, CPUs)."""
    found = []
    for host in dict.fromkeys(place.host for place in places):
        here = [place for place in places if place.host == host]
        cpus = {cpu for place in here for cpu in members(place.cpus) or ()}
        if 0 < len(cpus) < len(here):
            found.append((host, len(here), len(cpus)))
    return found


def _only_measured(topology: Topology) -> Topology:
    if not any(matrix(topology, name) for name in QUANTITIES):
        reason = (
            "no measured matrix in these files; start it as mpirun -n 4 python -m topology measure"
        )
        raise ProbeError("measure", reason)
    return topology


def _report(
    args: argparse.Namespace, topology: Topology, write: Callable[[str, str], None]
) -> None:
    if args.output:
        write(args.output, own_json.dump(topology))
    if args.json:
        sys.stdout.write(own_json.dump(topology))
    else:
        for name in ("mpi_library", "transport", "message_bytes", "racks"):
            value = topology.get(name)
            if value is not None:
                shown = printable_lines(str(value))
                sys.stdout.write(f"{name.replace('_', ' ')}: {shown}\n")
        sys.stdout.write(f"\n{view.text(topology)}")


def _progress(done: int, total: int) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(f"\rround {done + 1} of {total}" + ("\n" if done + 1 == total else ""))
