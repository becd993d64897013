"""One rank of test_shm_mpi.py under mpirun, on hosts that are pretended.

``right N`` carries out N random schedules on each of several ways to put the ranks on hosts, and
algorithms with every element type and operation; ``hidden N``: the same where no process may look
into another's files; ``rest``: traces, refusals and waits that end.
"""

from __future__ import annotations

import gc
import signal
import sys
import time
from itertools import islice

import numpy as np

import native
from busbar.errors import RankFailure, ScheduleError, Unavailable, Unsupported
from collectives.execution.lower import lower
from collectives.execution.mpi.transport import Segments
from collectives.execution.mpi.world import MpiWorld
from collectives.execution.plan import Plan
from collectives.execution.shm_mpi.transport import ShmMpiTransport
from collectives.execution.transport import TracedMessage
from collectives.schedule.dtypes import dtype
from collectives.schedule.layout import Layout
from collectives.schedule.ops import op
from tests.collectives.drawn import OVERLAP, fill, overlapping, right
from tests.collectives.executing import allreduce, carry_out, in_turn, judge
from tests.collectives.shm_process import hide

#: The hosts of up to eight ranks: packed, spread, of several sizes, and each alone.
HOSTS = ("00001111", "01010101", "01223333", "00112233", "01234567", "00000000")


def transport_on(
    world: MpiWorld, hosts: str, segment: int, deadline: float = 60.0
) -> ShmMpiTransport:
    """The transport where the ranks are on these hosts."""
    world.nodes = tuple(map(int, hosts[: world.size]))
    return ShmMpiTransport(world, Segments(segment), deadline=deadline)


def drawn(world: MpiWorld, transport: ShmMpiTransport, random: np.random.Generator) -> bool:
    """One random schedule, three times; False where lowering refuses it."""
    n, elements = world.size, int(random.choice([1, 100, 5000]))
    steps, in_place = int(random.integers(1, 8)), bool(random.integers(2))
    moves = random.integers(0, [n, n, 3, 3, 3, 2], (steps, int(random.integers(2, 3 * n)), 6))
    schedule, before, after = overlapping(n, moves.tolist(), in_place)
    memory = transport.allocate(4 * elements * 8).view(np.int64)
    source, target = memory[: 2 * elements], memory[(1 if in_place else 2) * elements :]
    target = target[: 2 * elements]
    layout = Layout.of(schedule, OVERLAP)
    try:
        for rank in range(n):
            lower(schedule, layout, rank, elements, in_place=in_place)
    except ScheduleError:
        return False
    with Plan(
        schedule,
        OVERLAP,
        transport,
        world.rank,
        source,
        target,
        op("sum"),
        elements,
        in_place=in_place,
    ) as plan:
        for _ in range(3):
            memory[:] = -1
            fill(world.rank, source, before, elements, in_place)
            world.barrier()
            plan()
            assert right(world.rank, target, after, elements), (n, world.nodes, schedule)
    return True


def check_right(world: MpiWorld, each: int) -> int:
    """See the module; gives how many cases were right."""
    random, checked = np.random.default_rng(99), 0
    whole = world.nodes
    for number, hosts in enumerate(HOSTS):
        transport = transport_on(world, hosts, (64, 4096, 1 << 19)[number % 3])
        checked += sum(drawn(world, transport, random) for _ in range(each))
        cases = in_turn(world.size, (5000, 0, 37), kinds=native.TYPES)
        for case in islice(cases, number, None, 15):
            carry_out(world, transport, judge(case, world.size))
            checked += 1
        transport.close()
    world.nodes = whole
    return checked


def check_trace(world: MpiWorld) -> None:
    """Every message is told once: one in shared memory by its reader, others by both ends."""
    # Few ranks are on two hosts as well.
    hosts = HOSTS[0] if world.size > 6 else HOSTS[0][:2] + HOSTS[0][4:]
    transport = transport_on(world, hosts, 1 << 19)
    n, elements = world.size, 40 * world.size
    plan, source, target = allreduce(transport, world, "ring", elements)
    found: list[TracedMessage] = []
    with plan:
        plan()
        plan.traced(found.append)
        assert (target == n).all()
        for turn in range(2, 5):  # a traced iteration counts as any other
            source[:] = turn
            world.barrier()
            plan()
            assert (target == turn * n).all()
        nodes, steps = world.nodes, plan.program.steps
        sends = [(one.peer, 4 * one.span.size) for step in steps for one in step.sends]
        far = [one for one in sends if nodes[one[0]] != nodes[world.rank]]
        wanted = [
            ("from", one.peer, 4 * one.span.size) for step in steps for one in step.receives
        ] + [("to", *one) for one in far]
        told = sorted(one[:3] for one in found)
        assert told == sorted(wanted), (told, wanted)
        assert all(one.start <= one.end for one in found)
        counts = world.gather([sum(nbytes for _, nbytes in one) for one in (sends, far)])
        everything, over_mpi = (sum(one) for one in zip(*counts, strict=True))
        assert transport.action_facts == {"shm_bytes": everything - over_mpi, "mpi_bytes": over_mpi}
        assert over_mpi and everything > over_mpi
        assert plan.sent == 5 * sum(nbytes for _, nbytes in sends)
    transport.close()


def check_refusals(world: MpiWorld) -> None:
    """A type without kernels, and a rank without the extension, are refused on all ranks."""
    transport = transport_on(world, HOSTS[0], 1 << 19)
    try:
        allreduce(transport, world, "ring", 64, dtype("f8e4m3"))
        raise AssertionError("not refused")
    except Unsupported as error:
        assert "no kernels for float8" in str(error)
    transport.close()
    there = native.why_not
    if world.rank == world.size - 1:
        native.why_not = lambda: "not built"  # type: ignore[assignment]
    try:
        transport_on(world, HOSTS[0], 1 << 19)
        raise AssertionError("not refused")
    except Unavailable as error:
        assert str(error) == "not built"
    native.why_not = there  # type: ignore[assignment]


def ring_plan(world: MpiWorld, transport: ShmMpiTransport) -> Plan:
    """An all-reduce by ring, of one element for each rank."""
    return allreduce(transport, world, "ring", world.size)[0]


def check_waits(world: MpiWorld) -> None:
    """A rank that waits for a neighbour's word names it, and a signal ends the wait."""
    transport = transport_on(world, "0" * 8, 1 << 19)
    plan = ring_plan(world, transport)
    if world.rank == 0:
        seen: list[int | None] = []

        def ring(number: int, frame: object) -> None:
            seen.append(plan.waiting())
            raise KeyboardInterrupt

        signal.signal(signal.SIGALRM, ring)
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        begin = time.monotonic()
        try:
            plan()  # no other rank calls it
            raise AssertionError("it came to an end")
        except KeyboardInterrupt:
            assert time.monotonic() - begin < 20
        assert seen == [world.size - 1]
    world.barrier()
    transport.close()


def check_late(world: MpiWorld) -> None:
    """A rank that waits for a neighbour longer than the deadline names it by its rank of all."""
    transport = transport_on(world, "10000000", 1 << 19, deadline=0.3)
    plan = ring_plan(world, transport)
    if world.rank == 2:
        try:
            plan()  # no other rank calls it
            raise AssertionError("it came to an end")
        except RankFailure as error:
            said = "rank 2 waited 0.3 s for rank 1, which did not arrive"
            assert str(error) == said, error
    world.barrier()
    transport.close()


def check_kept(world: MpiWorld) -> None:
    """A plan keeps what it needs of a transport that nobody holds any more."""
    plan = ring_plan(world, transport_on(world, "0" * 8, 1 << 19))
    gc.collect()
    world.barrier()
    if world.rank == 0:
        time.sleep(0.5)  # the others look meanwhile whether it has left
    plan()
    world.barrier()
    plan.close()


def main() -> None:
    """Do what the arguments say; rank 0 prints ``right N``."""
    world = MpiWorld()
    checked = 0
    try:
        if sys.argv[1] == "hidden":
            hide()
        if len(sys.argv) > 2:
            checked = check_right(world, int(sys.argv[2]))
        else:
            check_trace(world)
            check_refusals(world)
            check_waits(world)
            check_late(world)
            check_kept(world)
    except BaseException as error:  # noqa: BLE001  (any failure must end every rank)
        print(f"rank {world.rank}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        world.abort(1)
    if world.rank == 0:
        print(f"right {checked}")


if __name__ == "__main__":
    main()
