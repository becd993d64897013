"""Starts ranks, as threads or MPI processes, and runs the sweeps on them."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from bench.launch.control_socket import ControlSocket, Phase, patience
from bench.launch.segments import writable
from bench.options.nccl_flags import unread
from bench.options.options import NONBLOCKING, TWO_SIDED, Options, RunOptions
from bench.run.contenders import Job, RankSetup, build_jobs, prove
from bench.run.environment import RunContext, load
from bench.run.recorder import refuse_results
from bench.run.screen import Group, GroupScreen, Screen, of_group, split
from bench.run.session import Session
from bench.run.watchdog import end_all
from busbar.errors import BusbarError, ProbeError, Unavailable, Unsupported
from busbar.launchers import check_library, check_world, launched, local_size
from busbar.mpi import NEEDED, library_version, load_mpi
from busbar.status import INTERRUPTED, RANK_LOST
from busbar.terminal import print_note
from collectives.execution.gpu import take
from collectives.execution.registry import TransportRequest, open_transports, transports

if TYPE_CHECKING:
    from collectives.execution.mpi.world import MpiWorld
    from collectives.execution.transport import Transport
    from collectives.execution.world import World
    from reports.records.cores import Load

T = TypeVar("T")
Body = Callable[[RunContext], int]
"""What all ranks run alike once everything is open; gives the exit status."""


def transport_request(options: RunOptions) -> TransportRequest:
    """The requirements on transports that follow from a run's options."""
    if not isinstance(options, Options):
        return TransportRequest(options.transport, options.deadline, {}, best_gpus)
    one_sided = any(choice.name != TWO_SIDED for choice in options.algorithms)
    return TransportRequest(
        name=options.transport,
        deadline=options.deadline,
        chosen=options.chosen,
        best_gpus=best_gpus,
        gpus=options.gpus,
        asks_for_gpus=options.asks_for_gpus,
        oversubscribe_gpu=options.oversubscribe_gpu,
        pairs=options.pairing is not None,
        reached=options.pairing is not None and one_sided,
    )


def best_gpus(k: int, files: Sequence[str] = ()) -> list[str]:
    """PCI addresses of this machine's k best GPUs (or of a machine in files), in ring order.

    Raises ProbeError if no source works, or if there are fewer GPUs.
    """
    from topology.placement.pick import pick as rank
    from topology.sources.gather import gather

    topology, _ = gather(files)
    order = rank(topology, k).picks[0].order
    address = {gpu.id: gpu.busid for gpu in topology.gpus}
    addresses = [address[gpu] for gpu in order]
    if None in addresses:
        raise ProbeError("pick", "no source says at which PCI address the GPUs are")
    return [str(bus) for bus in addresses]


def _opened(world: World, options: RunOptions, runs_in: str, line: ControlSocket) -> RunContext:
    """Open the transports of a run. ``runs_in``: a text such as "threads of one process"."""
    both = open_transports(world, transport_request(options))
    library = both.baseline.library_version
    named = f"{library}, {runs_in}" if library else runs_in
    return RunContext(world, *both, named, line)


def threads(first: RunOptions, run_it: Body) -> int:
    """Run with threads of this process as ranks, on GPUs or on the host. Returns the status."""
    from collectives.execution.inproc.world import InprocWorld, run

    joining = [name for name, entry in transports().items() if "inproc" in entry.worlds]
    if first.transport not in ("auto", *joining):
        raise Unsupported(
            f"--transport {first.transport} joins processes; threads have {', '.join(joining)}"
        )
    if first.affinity != "none":
        print_note(
            f"--affinity {first.affinity} has no effect: threads of a process are not pinned"
        )
    deadline = 3600.0 if first.timeout is None else 10 * first.timeout

    def body(world: InprocWorld) -> int:
        try:
            return _run(_opened(world, first, "threads of one process", ControlSocket()), run_it)
        except (Unsupported, take.NoGpu) as error:
            return _said(world, error)

    return max(run(first.threads or first.ranks or 1, body, deadline=deadline))


def _said(world: World, error: BusbarError) -> int:
    """Print an error that all ranks raise, once. Returns the exit status."""
    # No rank waits for another one here, so every rank can return.
    if world.rank == 0:
        print_note(str(error))
    return error.exit_status


def check_gpus(options: RunOptions) -> None:
    """Raise Unavailable if the transport of a run needs GPUs, and there is none here."""
    entry = transports().get(options.transport)
    if entry is not None and entry.on_gpu:
        take.visible()


def mpi(first: RunOptions, line: ControlSocket, run_it: Body, needed: str = NEEDED) -> int:
    """Run with MPI processes as ranks (with threads for ``auto`` without MPI). Returns the status.

    ``line``: see `bench.run.environment.RunContext`. ``run_it``: what each rank runs. ``needed``:
    the lowest sufficient MPI thread level.
    """
    from collectives.execution.mpi.world import MpiWorld
    from collectives.execution.shm.affinity import set_affinity

    if launched() is None:
        check_gpus(first)  # before MPI is loaded
    try:
        library = library_version(load_mpi())
        check_library(library)
        if launched() is not None:
            writable(library)
        if (sign := launched()) is not None:
            line.limit = patience(first.timeout, local_size() or sign.size, sign.size)
        line.stage(Phase.STARTING)
        world = MpiWorld(threads=first.mpi_threads, needed=needed)
    except Unavailable:
        if first.transport == "auto" and launched() is None:
            print_note("no MPI here, so ranks are threads of this process (--threads)")
            return threads(first, run_it)
        raise
    check_world(world.size, world.library())
    wanted = first.ranks or first.expected_ranks or world.size
    if wanted != world.size:
        raise Unsupported(f"--ranks {wanted}, but the launcher started {world.size}")
    if first.on_hosts and first.expected_ranks is None:
        flag = "--host" if first.hosts else "--hostfile"
        raise Unsupported(
            f"{flag} starts ranks, but a launcher has started these: name the hosts in its options,"
            " or leave the launcher out"
        )
    try:
        local = [rank for rank, node in enumerate(world.nodes) if node == world.nodes[world.rank]]
        set_affinity(first.affinity, local.index(world.rank), len(local))
        return _run(_opened(world, first, world.library(), line), run_it)
    except (Unsupported, take.NoGpu) as error:
        return _said(world, error)
    except BaseException as error:
        _leave(world, error, line)
        raise


def _leave(world: MpiWorld, error: BaseException, line: ControlSocket) -> None:
    """Print which rank failed and why, unless it was interrupted, and end all ranks."""
    status = error.exit_status if isinstance(error, BusbarError) else RANK_LOST
    if isinstance(error, KeyboardInterrupt):
        status = INTERRUPTED
    else:
        text = str(error) if isinstance(error, BusbarError) else f"{type(error).__name__}: {error}"
        if isinstance(error, OSError) and error.errno == errno.EMFILE:
            text = f"{error.strerror}: raise ulimit -n, or start fewer ranks on a host"
        print_note(f"rank {world.rank}: {text}")
        with suppress(BrokenPipeError):
            sys.stdout.flush()
    end_all(world, line, status)


def _run(opened: RunContext, run_it: Body) -> int:
    """Call ``run_it`` on all ranks, then close the transports.

    An error on one rank must not leave another rank waiting inside its library. So transports that
    can give up do so before the error is raised again.
    """
    with ExitStack() as ends:
        for one in {id(one): one for one in (opened.transport, opened.baseline)}.values():
            ends.enter_context(_let_go(opened.world, one))
        return run_it(opened)


def sweep(wanted: Sequence[Options], opened: RunContext) -> int:
    """Run the sweep on all ranks, or with ``--split`` in all groups at once. Returns the status."""
    rule = wanted[0].split
    if rule is None:
        crowd = load(opened.world, opened.transport)
        return _session(_jobs(wanted, opened, crowd), opened, crowd)
    return _groups(wanted, opened, split(opened.world, rule))


@contextmanager
def _let_go(world: World, transport: Transport) -> Iterator[None]:
    """Close a transport when the context ends; after an error, call its ``give_up``."""
    try:
        yield
    except BaseException:
        transport.give_up()
        raise
    world.barrier()
    transport.close()
    world.barrier()  # in closing, ranks may write into each other's memory


def _groups(wanted: Sequence[Options], opened: RunContext, group: Group) -> int:
    """Run the sweep in all groups at once. At the end, rank 0 prints the other groups' tables."""
    world, inner = opened.world, group.world
    # A part of the run's transport if it can be split, else a new one.
    one = opened.transport.split(inner)
    both = open_transports(inner, transport_request(wanted[0])) if one is None else (one, one)
    mine = opened._replace(world=inner, transport=both[0], baseline=both[1])
    with _let_go(inner, mine.transport):
        crowd = load(world, mine.transport)  # of all groups: they share the cores
        own = of_group(wanted, group.number)
        jobs = _agreed(world, group, lambda: _jobs_of_group(own, mine, crowd))
        status = _session(jobs, mine, crowd, group)
    held = group.screen.held if isinstance(group.screen, GroupScreen) else []
    everyone = world.gather([group.number, status, held])
    for _, _, lines in sorted(everyone, key=lambda one: one[0]) if world.rank == 0 else ():
        Screen(0).lines(lines)
    return max(int(one[1]) for one in everyone)


def _jobs_of_group(wanted: Sequence[Options], opened: RunContext, crowd: Load | None) -> list[Job]:
    """As `_jobs`; the group's rank 0 also checks that no results would be replaced unasked."""
    jobs = _jobs(wanted, opened, crowd)
    if opened.world.rank == 0:
        refuse_results(wanted[0])
    return jobs


def _agreed(world: World, group: Group, make: Callable[[], T]) -> T:
    """What ``make`` returns on this rank; an error of one group of ranks ends all groups.

    Otherwise the other groups would wait for it. ``world``: the ranks of all groups. Raises
    Unsupported with the first error.
    """
    made, text = None, ""
    try:
        made = make()
    except BusbarError as error:
        text = f"group {group.number}: {error}"
    for one in world.gather(text):
        if one:
            raise Unsupported(one)
    assert made is not None
    return made


def _jobs(wanted: Sequence[Options], opened: RunContext, crowd: Load | None) -> list[Job]:
    """The jobs of these ranks, proven. Raises Unsupported on all of them."""
    world, transport, baseline = opened.world, opened.transport, opened.baseline
    if transport.on_gpu:
        wanted = [replace(options, on_gpu=True) for options in wanted]
    missing = dict[str, str]()
    if not baseline.has_library:
        remedy = f"use --ranks {world.size}, which starts processes"
        missing["library"] = f"since threads of one process have none; {remedy}"
    if not baseline.has_nonblocking:
        missing[NONBLOCKING] = f"since {baseline.name} has no non-blocking collectives; MPI has"
    if not transport.shares_memory:
        missing["worksharing"] = f"since --transport {transport.name} has no memory of all ranks"
    crowded = None if crowd is None else crowd.per_core > 1
    ranks = RankSetup(world.size, transport.name, missing, crowded)
    jobs = world.once(lambda: build_jobs(wanted, ranks))
    prove(jobs, world)
    return jobs


def _session(
    jobs: Sequence[Job], opened: RunContext, crowd: Load | None, group: Group | None = None
) -> int:
    world, options = opened.world, jobs[0].options
    session = Session(opened, jobs, crowd, group)
    if world.rank == 0:
        notes = [text for job in jobs for text in job.notes]
        if world.size == 1:
            count = options.ranks or options.threads
            more = "" if count else "; --ranks N (or mpirun -n N) starts more"
            notes.append(f"with one rank nothing crosses a link: busbw is 0 by definition{more}")
        if group is None or group.number == 0:
            notes += unread(os.environ)
        for one in dict.fromkeys(notes):
            print_note(one)
    return session.run()
