"""Opens a world and runs the sweeps in it: ranks as threads, or as MPI's processes."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, cast

from bench.gpu import devices
from bench.launch import launch
from bench.launch.line import Hotline, Phase, patience
from bench.options.nccl_flags import unread
from bench.options.options import Options, on_gpus
from bench.options.pairs import TWO_SIDED
from bench.run.catalogue import prove
from bench.run.environment import load
from bench.run.groups import Group, Recorder, of_group, split
from bench.run.paired import todo
from bench.run.screen import Screen
from bench.run.session import Session
from bench.run.watchdog import end_all
from busbar.errors import BusbarError, Unavailable, Unsupported
from busbar.mpi import library_version, load_mpi
from busbar.status import INTERRUPTED, RANK_LOST
from collectives.execution.registry import transports

if TYPE_CHECKING:
    from collectives.execution.mpi.world import MpiWorld
    from collectives.execution.transport import Transport
    from collectives.execution.world import World
    from reports.records.cores import Load

    Remake = Callable[[World], tuple[Transport, Transport]]


class Opened(NamedTuple):
    """What a run finds open on its rank.

    ``transport`` as asked for; ``baseline``: the one whose library it is compared with, perhaps the
    same; ``library``: that one's name and version. ``line``: to whoever started this rank.
    ``again`` makes both transports for the ranks of a group.
    """

    world: World
    transport: Transport
    baseline: Transport
    library: str
    line: Hotline
    again: Remake


Body = Callable[[Opened], int]
"""What all ranks run alike once everything is open; gives the exit status."""


def _of_group(whole: Transport, options: Options, inner: World) -> tuple[Transport, Transport]:
    """The transports of a group: split from the whole's where it can be, else made again."""
    one = whole.split(inner)
    return _transports(cast("MpiWorld", inner), options) if one is None else (one, one)


def _gpu_memory(options: Options) -> bool:
    """Whether a transport of GPUs was asked for by its name."""
    entry = transports().get(options.transport)
    return entry is not None and entry.on_gpu


def threads(first: Options, run_it: Body) -> int:
    """Ranks as threads of this process, over GPUs or on the host; gives the exit status.

    Without a transport that was asked for, GPUs are taken where ``--threads`` was given and there
    is one a rank, or ranks may share.
    """
    from collectives.execution.inproc.world import InprocWorld, run

    joining = [name for name, entry in transports().items() if "inproc" in entry.worlds]
    if first.transport not in ("auto", *joining):
        raise Unsupported(
            f"--transport {first.transport} joins processes; threads have {', '.join(joining)}"
        )
    on_gpus = _gpu_memory(first) or (
        first.transport == "auto" and (first.asks_for_gpus or devices.driver_here())
    )
    deadline = 3600.0 if first.timeout is None else 10 * first.timeout

    def body(world: InprocWorld) -> int:
        try:
            made = _gpu(world, first, on_gpus)
            name = "threads of one process"
            if made is not None:
                library = f"{made[1].library_version}, {name}"
                again = partial(_of_group, made[0], first)
                return _run(Opened(world, *made, library, Hotline(), again), run_it)

            def on_host(world: World) -> tuple[Transport, Transport]:
                transport = InprocTransport(cast("InprocWorld", world))
                return transport, transport

            return _run(Opened(world, *on_host(world), name, Hotline(), on_host), run_it)
        except (Unsupported, devices.NoGpu) as error:
            return _said(world, error)

    from collectives.execution.inproc.transport import InprocTransport

    return max(run(first.threads or first.ranks or 1, body, deadline=deadline))


def _said(world: World, error: BusbarError) -> int:
    """What is the same on every rank, said by one; gives the exit status."""
    # Nothing has been exchanged that another rank still waits for.
    if world.rank == 0:
        print(f"busbar: {error}", file=sys.stderr)
    return error.exit_status


def _gpu(world: World, options: Options, on_gpus: bool) -> tuple[Transport, Transport] | None:
    """What was asked for, or NCCL where ``auto`` finds a GPU for every rank; else None."""
    if not on_gpus:
        return None
    try:
        if options.transport == "ipc":
            return devices.ipc_transports(world, options)
        nccl = devices.nccl_transport(world, options)
        return nccl, nccl
    except (Unsupported, Unavailable) as error:
        if options.transport != "auto" or options.asks_for_gpus:
            raise
        if world.rank == 0:
            print(f"busbar: not on GPUs: {error}", file=sys.stderr)
        return None


def mpi(first: Options, line: Hotline, run_it: Body) -> int:
    """Ranks as MPI's processes; gives the exit status. Without an MPI, ``auto`` means threads.

    ``line``: to whoever started this rank.
    """
    from collectives.execution.mpi.world import MpiWorld

    if _gpu_memory(first) and launch.launched() is None:
        devices.visible()  # what is missing is said before MPI is looked for
    try:
        launch.check_library(library_version(load_mpi(initialize=False)))
        if (sign := launch.launched()) is not None:
            line.limit = patience(first.timeout, sign.size)
        line.stage(Phase.STARTING)
        world = MpiWorld()
    except Unavailable:
        if first.transport == "auto" and launch.launched() is None:
            print(
                "busbar: no MPI here, so ranks are threads of this process (--threads)",
                file=sys.stderr,
            )
            return threads(first, run_it)
        raise
    launch.check_world(world.size, world.library())
    if first.ranks is not None and first.ranks != world.size:
        raise Unsupported(f"--ranks {first.ranks}, but the launcher started {world.size}")
    try:
        both = _transports(world, first)
        library = both[1].library_version
        library = f"{library}, {world.library()}" if library else world.library()
        again = partial(_of_group, both[0], first)
        return _run(Opened(world, *both, library, line, again), run_it)
    except (Unsupported, devices.NoGpu) as error:
        return _said(world, error)
    except BaseException as error:
        _leave(world, error, line)
        raise


def _transports(world: MpiWorld, options: Options) -> tuple[Transport, Transport]:
    """The transport that was asked for, and the one whose library it is compared with.

    ``auto`` is nccl where every rank has a GPU, shm where all ranks share a host and memory.
    """
    from collectives.execution.mpi.transport import MpiTransport
    from collectives.execution.shm.affinity import bind

    local = [rank for rank, node in enumerate(world.nodes) if node == world.nodes[world.rank]]
    bind(options.bind, local.index(world.rank), len(local))
    if options.transport == "mpi":
        if options.buffers != "host":
            staged = devices.mpi_transport(world, options)
            return staged, staged
        return _messages(world, options), MpiTransport(world)
    here = options.transport == "auto" and (
        options.asks_for_gpus or all(world.gather(devices.driver_here()))
    )
    device = _gpu(world, options, here or _gpu_memory(options))
    if device is not None:
        return device
    baseline = _messages(world, options)
    return _on_host(world, baseline, options), baseline


def _messages(world: MpiWorld, options: Options) -> Transport:
    """MPI's messages, in memory that other ranks reach into where that is asked for."""
    from collectives.execution.mpi.transport import MpiTransport

    reached = options.pairing is not None and any(
        choice.name != TWO_SIDED for choice in options.algorithms
    )
    return MpiTransport(world, reached=reached)


def _on_host(world: MpiWorld, baseline: Transport, options: Options) -> Transport:
    """The shm transport where it was asked for, or where ``auto`` finds all ranks on one host.

    Else mpi, and between pairs, whose users ask how fast MPI is.
    """
    from collectives.execution.shm.transport import ShmTransport, why_not

    if options.transport == "shm":
        return ShmTransport(world, deadline=options.deadline)
    if options.pairing is not None:
        return baseline
    missing = sorted({str(reason) for reason in world.gather(why_not()) if reason})
    if max(world.nodes) > 0 or world.size == 1 or missing:
        if missing and max(world.nodes) == 0 and world.rank == 0:
            print(f"busbar: {missing[0]}; --transport auto takes mpi", file=sys.stderr)
        return baseline
    try:
        return ShmTransport(world, deadline=options.deadline)
    except Unavailable as error:
        if world.rank == 0:
            print(f"busbar: {error}; --transport auto takes mpi", file=sys.stderr)
        return baseline


def _leave(world: MpiWorld, error: BaseException, line: Hotline) -> None:
    """Say which rank failed and how, and end all ranks; of an interrupt there is nothing to say."""
    status = error.exit_status if isinstance(error, BusbarError) else RANK_LOST
    if isinstance(error, KeyboardInterrupt):
        status = INTERRUPTED
    else:
        said = str(error) if isinstance(error, BusbarError) else f"{type(error).__name__}: {error}"
        if isinstance(error, OSError) and error.errno == errno.EMFILE:
            said = f"{error.strerror}: raise ulimit -n, or start fewer ranks on a host"
        print(f"busbar: rank {world.rank}: {said}", file=sys.stderr, flush=True)
        with suppress(BrokenPipeError):
            sys.stdout.flush()
    end_all(world, line, status)


def _run(opened: Opened, run_it: Body) -> int:
    """What all ranks run, and the end of what is open.

    What fails on one rank must not leave another waiting inside its library: a transport that can
    give up does so before the error goes on.
    """
    with ExitStack() as ends:
        for one in {id(one): one for one in (opened.transport, opened.baseline)}.values():
            ends.enter_context(_let_go(opened.world, one))
        return run_it(opened)


def sweep(wanted: Sequence[Options], opened: Opened) -> int:
    """The sweep on all ranks, or with ``--split`` in every group at once; gives the exit status."""
    world, both = opened.world, (opened.transport, opened.baseline)
    rule = wanted[0].split
    if rule is None:
        return _session(world, both, opened.library, wanted, opened.line, load(world, both[0]))
    return _groups(world, opened.library, wanted, opened.line, split(world, rule), opened.again)


@contextmanager
def _let_go(world: World, transport: Transport) -> Iterator[None]:
    """At the end close a transport; after an error let it give up."""
    try:
        yield
    except BaseException:
        transport.give_up()
        raise
    world.barrier()
    transport.close()
    world.barrier()  # in closing, ranks may write into each other's memory


def _groups(
    world: World,
    library: str,
    wanted: Sequence[Options],
    line: Hotline,
    group: Group,
    again: Remake,
) -> int:
    """The sweep in every group at once; rank 0 prints the other groups' tables at the end."""
    mine = of_group(wanted, group.number)
    both = again(group.world)
    with _let_go(group.world, both[0]):
        crowd = load(world, both[0])  # of all groups: they run at once, on the same cores
        status = _session(group.world, both, library, mine, line, crowd, group)
    kept = group.screen.kept if isinstance(group.screen, Recorder) else []
    everyone = world.gather([group.number, status, kept])
    for _, _, lines in sorted(everyone, key=lambda one: one[0]) if world.rank == 0 else ():
        Screen(0).lines(lines)
    return max(int(one[1]) for one in everyone)


def _session(
    world: World,
    both: tuple[Transport, Transport],
    library: str,
    wanted: Sequence[Options],
    line: Hotline,
    crowd: Load | None,
    group: Group | None = None,
) -> int:
    transport, baseline = both
    if transport.on_gpu:
        wanted = [on_gpus(options) for options in wanted]
    missing = {} if baseline.has_library else {"library": "since threads of one process have none"}
    if not transport.shares_memory:
        missing["worksharing"] = f"since --transport {transport.name} has no memory of all ranks"
    crowded = None if crowd is None else crowd.per_core > 1
    jobs = world.once(
        lambda: todo(wanted, world.size, transport.name, missing, oversubscribed=crowded)
    )
    prove(jobs, world)
    session = Session(world, transport, baseline, library, jobs, line, crowd, group)
    if world.rank == 0:
        notes = [note for job in jobs for note in job.notes]
        if world.size == 1:
            notes.append("with one rank nothing crosses a link: busbw is 0 by definition")
        if group is None or group.number == 0:
            notes += unread(os.environ)
        for note in dict.fromkeys(notes):
            print(f"busbar: {note}", file=sys.stderr)
    return session.run()
