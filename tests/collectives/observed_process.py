"""One rank of test_observed.py, under mpirun: who touches whose memory, and who sends to whom.

Prints on rank 0 how many plans did exactly what their schedule says, and what work sharing was seen
to do instead.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from collectives.execution.mpi.transport import MpiTransport
from collectives.execution.mpi.world import MpiWorld
from collectives.execution.plan import Plan
from collectives.execution.shm.bound import Bound
from collectives.execution.shm.transport import ShmTransport
from collectives.execution.transport import Action, LibraryCall
from collectives.schedule.catalogue import build, spec
from collectives.schedule.layout import Layout
from collectives.schedule.moves import Buffer
from collectives.schedule.ops import op
from tests.collectives.executing import sent

CASES = [
    ("allreduce", name)
    for name in ("ring", "ps", "sharded_ps", "tree", "recursive_doubling", "one_shot")
] + [
    ("allgather", "ring"),
    ("reduce_scatter", "direct"),
    ("broadcast", "binomial"),
    ("reduce", "chain"),
]
ELEMENTS = 1 << 19
Pairs = Counter[tuple[int, int]]


def wanted(collective: str, name: str, nranks: int, elements: int) -> Pairs:
    """Bytes from rank to rank, as the schedule's own programs say."""
    found = sent(build(collective, name, nranks), spec(collective), elements)
    return Counter({pair: 4 * size for pair, size in found.items()})


def counted(action: Bound) -> Pairs:
    """Bytes from rank to rank, as the executors counted what they loaded and stored."""
    counts = action.counts
    nranks = len(counts.loads)
    return +Counter(
        {
            (a, b): int(counts.loads[b, a] + counts.stores[a, b])
            for a in range(nranks)
            for b in range(nranks)
        }
    )


def referenced(starts: dict[int, int]) -> set[int]:
    """Whose mappings this process has touched since `watch`; ``starts``: the rank of an address."""
    found: set[int] = set()
    rank = None
    for line in Path("/proc/self/smaps").read_text().splitlines():
        words = line.split()
        if "-" in words[0] and not words[0].endswith(":"):
            low, high = (int(part, 16) for part in words[0].split("-"))
            rank = next((r for at, r in starts.items() if low <= at < high), None)
        elif words[0] == "Referenced:" and int(words[1]) and rank is not None:
            found.add(rank)
    return found


def watch() -> None:
    """Forget which pages this process has touched."""
    Path("/proc/self/clear_refs").write_text("1")


def touched(world: MpiWorld, action: Action) -> set[int]:
    """The ranks whose buffers this process touches in an iteration, as the kernel saw it."""
    assert isinstance(action, Bound)
    starts = {
        int(segment.ctypes.data): rank
        for rank, segments in enumerate(action.segments)
        for segment in segments.values()
        if rank != world.rank
    }
    action()
    world.barrier()
    watch()
    world.barrier()
    action()
    found = referenced(starts)
    world.barrier()
    return found


def recorded(comm: Any) -> Any:
    """The communicator, remembering whom persistent messages go to and come from, in bytes."""

    class Recorded(type(comm)):  # type: ignore[misc]
        def Send_init(self, what: Any, peer: int, tag: int) -> Any:  # noqa: N802
            self.sent[peer] += what[0].nbytes
            return super().Send_init(what, peer, tag)

        def Recv_init(self, what: Any, peer: int, tag: int) -> Any:  # noqa: N802
            self.received[peer] += what[0].nbytes
            return super().Recv_init(what, peer, tag)

    found = Recorded(comm)
    found.sent, found.received = Counter[int](), Counter[int]()
    return found


def bound(transport: Any, rank: int, collective: str, name: str, nranks: int) -> Plan:
    """A plan of so many elements of float over fresh buffers."""
    what = spec(collective)
    schedule = build(collective, name, nranks)
    layout = Layout.of(schedule, what)
    n = ELEMENTS // max(1, what.parts(nranks))
    buffers = [
        transport.allocate(4 * layout.elements(rank, b, n)).view(np.float32)
        for b in (Buffer.IN, Buffer.OUT)
    ]
    for array in buffers:
        array[:] = 1
    used = op("sum") if what.reduces else None
    return Plan(schedule, what, transport, rank, *buffers, used, n)


def shm(world: MpiWorld) -> str:
    """Every case on shared memory; how many there were, and what work sharing was seen to do."""
    transport, me = ShmTransport(world), world.rank
    for collective, name in CASES:
        with bound(transport, me, collective, name, world.size) as plan:
            n = ELEMENTS // max(1, spec(collective).parts(world.size))
            pairs = wanted(collective, name, world.size, n)
            action = plan.action
            assert isinstance(action, Bound)
            base = counted(action)
            world.barrier()
            plan()
            world.barrier()
            assert counted(action) - base == pairs, (collective, name, counted(action), pairs)
            partners = {a if b == me else b for a, b in pairs if me in (a, b)}
            world.barrier()
            seen = touched(world, action)
            assert seen <= partners, f"{name}: rank {me} touched {seen}, not only {partners}"
            others = world.gather(sorted(seen))
            for a, b in pairs:  # one of both ends has touched the other's memory
                assert b in others[a] or a in others[b], (name, a, b, others)
    source, target = (transport.allocate(4 * ELEMENTS).view(np.float32) for _ in range(2))
    buffers = {Buffer.IN: source, Buffer.OUT: target}
    pooled = transport.worksharing(LibraryCall(spec("allreduce"), buffers, op("sum"), ELEMENTS))
    pooled()
    world.barrier()
    assert isinstance(pooled, Bound)
    told = counted(pooled) == wanted("allreduce", "ring", world.size, ELEMENTS)
    world.barrier()
    # Where whoever has a core does the work of others, some ranks may touch nothing.
    everyone = any(world.gather(len(touched(world, pooled)) == world.size - 1))
    pooled.close()
    transport.close()
    return f"{len(CASES)} {'as a ring' if told else 'no ring'} {'all' if everyone else 'few'}"


def messages(world: MpiWorld) -> str:
    """Every case over MPI; how many there were."""
    for collective, name in CASES:
        real = world.comm
        world.comm = comm = recorded(real)
        plan = bound(MpiTransport(world), world.rank, collective, name, world.size)
        world.comm = real
        n = ELEMENTS // max(1, spec(collective).parts(world.size))
        pairs = wanted(collective, name, world.size, n)
        me = world.rank
        assert comm.sent == {b: size for (a, b), size in pairs.items() if a == me}
        assert comm.received == {a: size for (a, b), size in pairs.items() if b == me}
        plan()
        plan.close()
    return str(len(CASES))


if __name__ == "__main__":
    the_world = MpiWorld()
    said = {"mpi": messages, "shm": shm}[sys.argv[1]](the_world)
    everyone_ = the_world.gather(said)
    if the_world.rank == 0:
        print("; ".join(sorted(set(everyone_))))
