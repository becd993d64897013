"""The door of every benchmark: from a command line to an exit status."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NoReturn

from bench import launch
from bench.options import Options, parse
from collectives.catalogue import algorithms, spec
from collectives.errors import BusbarError, Unavailable, Unsupported
from collectives.spec import Collective

if TYPE_CHECKING:
    import socket

    from collectives.transport import Transport
    from collectives.world import World
    from collectives.worlds.mpi import MpiWorld

__all__ = ["door", "main"]


def door(collective: str) -> NoReturn:
    """Run the benchmark of a collective with this process's arguments, and leave."""
    sys.exit(main(collective, sys.argv[1:]))


def main(collective: str, argv: Sequence[str]) -> int:
    """Run a benchmark; gives the exit status. Only rank 0 prints; an error is one line."""
    sign = launch.launched()
    speaks = sign is None or sign.rank == 0
    try:
        options = parse(argv, collective, spec(collective).title, algorithms(collective))
        if options.dry_run:
            return _dry(spec(collective), options, speaks)
        if options.transport == "inproc":
            if sign is not None:
                raise Unsupported("--transport inproc makes its own ranks; run it without mpirun")
            return _threads(spec(collective), options)
        if options.ranks is not None and sign is None:
            return launch.start(f"bench.{collective}", argv, options.ranks)
        return _mpi(spec(collective), options)
    except BusbarError as error:
        if speaks:
            print(f"busbar: {error}", file=sys.stderr)
        return error.exit_status


def _check_sizes(spec: Collective, options: Options, nranks: int) -> None:
    from collectives.dtypes import dtype

    for kind in options.dtypes:
        least = nranks * dtype(kind).itemsize
        if min(options.sizes) < least:
            raise Unsupported(
                f"{min(options.sizes)} bytes are less than one {kind} for each of {nranks} ranks;"
                f" use -b {least} or more"
            )
    if options.root >= nranks:
        raise Unsupported(f"-r {options.root}: there are only ranks 0 to {nranks - 1}")


def _dry(spec: Collective, options: Options, speaks: bool) -> int:
    from bench.catalogue import choose
    from bench.dry import dry_run

    sign = launch.launched()
    nranks = sign.size if sign is not None else options.ranks or 1
    _check_sizes(spec, options, nranks)
    chosen, notes = choose(spec, options, nranks)
    if speaks:
        for line in dry_run(spec, options, chosen, notes, nranks):
            print(line)
    return 0


def _threads(spec: Collective, options: Options) -> int:
    """Ranks as threads of this process."""
    from bench.watch import catch_signals
    from collectives.transports.inproc import InprocTransport
    from collectives.worlds.inproc import InprocWorld, run

    signals = catch_signals()
    deadline = 3600.0 if options.timeout is None else 10 * options.timeout

    def body(world: InprocWorld) -> int:
        mine = signals if world.rank == 0 else None
        transport = InprocTransport(world)
        return _session(world, transport, "threads of one process", spec, options, mine)

    return max(run(options.ranks or 1, body, deadline=deadline))


def _mpi(spec: Collective, options: Options) -> int:
    """Ranks as MPI's processes."""
    from bench.watch import catch_signals
    from collectives.worlds.mpi import MpiWorld

    try:
        world = MpiWorld()
    except Unavailable:
        if options.transport == "auto" and launch.launched() is None:
            print(
                "busbar: no MPI here, so ranks are threads of this process (--transport inproc)",
                file=sys.stderr,
            )
            return _threads(spec, options)
        raise
    launch.check_world(world.size, world.library())
    if options.ranks is not None and options.ranks != world.size:
        raise Unsupported(f"--ranks {options.ranks}, but the launcher started {world.size}")
    from collectives.transports.mpi import MpiTransport

    try:
        transport = MpiTransport(world)
        return _session(world, transport, world.library(), spec, options, catch_signals())
    except Unsupported as error:
        # The same on every rank: nothing has been exchanged that another rank still waits for.
        if world.rank == 0:
            print(f"busbar: {error}", file=sys.stderr)
        return error.exit_status
    except BaseException as error:
        _leave(world, error)
        raise


def _leave(world: MpiWorld, error: BaseException) -> None:
    """Say which rank failed and how, and end all ranks."""
    from bench.session import as_error

    print(f"busbar: rank {world.rank}: {as_error(error)}", file=sys.stderr, flush=True)
    with suppress(BrokenPipeError):
        sys.stdout.flush()
    world.abort(error.exit_status if isinstance(error, BusbarError) else 4)


def _session(
    world: World,
    transport: Transport,
    library: str,
    spec: Collective,
    options: Options,
    signals: socket.socket | None,
) -> int:
    from bench.catalogue import choose
    from bench.session import Session

    _check_sizes(spec, options, world.size)
    chosen, notes = choose(spec, options, world.size, library=world.name == "mpi")
    if world.rank == 0:
        for note in notes:
            print(f"busbar: {note}", file=sys.stderr)
        if world.size == 1:
            print(
                "busbar: with one rank nothing crosses a link: busbw is 0 by definition",
                file=sys.stderr,
            )
    return Session(world, transport, library, spec, options, chosen, signals).run()
