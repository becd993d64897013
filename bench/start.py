"""Opens a world and runs the sweeps in it: ranks as threads, or as MPI's processes."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from bench import launch
from bench.catalogue import jobs
from bench.options import Options
from bench.session import Session
from bench.watch import catch_signals
from collectives.errors import BusbarError, Unavailable, Unsupported
from collectives.mpi import library_version, load_mpi

if TYPE_CHECKING:
    import socket

    from collectives.transport import Transport
    from collectives.world import World
    from collectives.worlds.mpi import MpiWorld

__all__ = ["mpi", "threads"]


def threads(wanted: Sequence[Options]) -> int:
    """Ranks as threads of this process; gives the exit status."""
    from collectives.transports.inproc import InprocTransport
    from collectives.worlds.inproc import InprocWorld, run

    signals = catch_signals()
    timeout = wanted[0].timeout
    deadline = 3600.0 if timeout is None else 10 * timeout

    def body(world: InprocWorld) -> int:
        mine = signals if world.rank == 0 else None
        transport = InprocTransport(world)
        return _session(world, transport, transport, "threads of one process", wanted, mine)

    return max(run(wanted[0].ranks or 1, body, deadline=deadline))


def mpi(wanted: Sequence[Options]) -> int:
    """Ranks as MPI's processes; gives the exit status. Without an MPI, ``auto`` means threads."""
    from collectives.worlds.mpi import MpiWorld

    first = wanted[0]
    try:
        launch.check_library(library_version(load_mpi(initialize=False)))
        world = MpiWorld()
    except Unavailable:
        if first.transport == "auto" and launch.launched() is None:
            print(
                "busbar: no MPI here, so ranks are threads of this process (--transport inproc)",
                file=sys.stderr,
            )
            return threads(wanted)
        raise
    launch.check_world(world.size, world.library())
    if first.ranks is not None and first.ranks != world.size:
        raise Unsupported(f"--ranks {first.ranks}, but the launcher started {world.size}")
    from collectives.transports.mpi import MpiTransport

    try:
        baseline = MpiTransport(world)
        transport = _transport(world, baseline, first)
        signals = catch_signals()
        return _session(world, transport, baseline, world.library(), wanted, signals)
    except Unsupported as error:
        # The same on every rank: nothing has been exchanged that another rank still waits for.
        if world.rank == 0:
            print(f"busbar: {error}", file=sys.stderr)
        return error.exit_status
    except BaseException as error:
        _leave(world, error)
        raise


def _transport(world: MpiWorld, baseline: Transport, options: Options) -> Transport:
    """The transport that was asked for; ``auto`` is shm where all ranks share a host and memory."""
    from collectives.shared.bind import bind
    from collectives.transports.shm import ShmTransport, why_not

    local = [rank for rank, node in enumerate(world.nodes) if node == world.nodes[world.rank]]
    bind(options.bind, local.index(world.rank), len(local))
    if options.transport == "mpi":
        return baseline
    deadline = 60.0 if options.timeout is None else 2 * options.timeout
    if options.transport == "shm":
        return ShmTransport(world, deadline=deadline)
    missing = sorted({str(reason) for reason in world.gather(why_not()) if reason})
    if max(world.nodes) > 0 or world.size == 1 or missing:
        if missing and max(world.nodes) == 0 and world.rank == 0:
            print(f"busbar: {missing[0]}; --transport auto takes mpi", file=sys.stderr)
        return baseline
    try:
        return ShmTransport(world, deadline=deadline)
    except Unavailable as error:
        if world.rank == 0:
            print(f"busbar: {error}; --transport auto takes mpi", file=sys.stderr)
        return baseline


def _leave(world: MpiWorld, error: BaseException) -> None:
    """Say which rank failed and how, and end all ranks."""
    said = str(error) if isinstance(error, BusbarError) else f"{type(error).__name__}: {error}"
    print(f"busbar: rank {world.rank}: {said}", file=sys.stderr, flush=True)
    with suppress(BrokenPipeError):
        sys.stdout.flush()
    world.abort(error.exit_status if isinstance(error, BusbarError) else 4)


def _session(
    world: World,
    transport: Transport,
    baseline: Transport,
    library: str,
    wanted: Sequence[Options],
    signals: socket.socket | None,
) -> int:
    todo = jobs(wanted, world.size, transport.name, library=world.name == "mpi")
    session = Session(world, transport, baseline, library, todo, signals)
    if world.rank == 0:
        notes = [note for job in todo for note in job.notes]
        if world.size == 1:
            notes.append("with one rank nothing crosses a link: busbw is 0 by definition")
        for note in dict.fromkeys(notes):
            print(f"busbar: {note}", file=sys.stderr)
    return session.run()
