"""Each rank does its own moves, seen from outside the executors: by pages, by messages, by threads.

Three observers, none of which asks the schedule's code what it did. The kernel tells which ranks'
pages a process has touched (``Referenced`` in /proc/self/smaps), executors count what they load and
store, and message transports are seen through a communicator and a mailbox that remember.
"""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import native
from collectives.execution.inproc.transport import InprocTransport
from collectives.execution.inproc.world import InprocWorld
from collectives.execution.inproc.world import run as on_threads
from collectives.execution.plan import Plan
from collectives.schedule.catalogue import build, spec
from collectives.schedule.ops import op
from tests.collectives.executing import sent
from tests.conftest import REPO, Mpi, Run, thorough, under

SCRIPT = str(REPO / "tests/collectives/observed_process.py")
watched = pytest.mark.skipif(
    not Path("/proc/self/clear_refs").exists(), reason="this kernel does not watch pages"
)


@watched
@pytest.mark.skipif(native.load() is None, reason=native.why_not() or "")
@pytest.mark.parametrize("mpi", ["mpich", *thorough("openmpi")], indirect=True)
def test_on_shared_memory_a_process_touches_its_partners_alone(mpi: Mpi, run: Run) -> None:
    """Rule: of 4 ranks, whatever the cores, each touches only memory of ranks it has moves with.

    And the bytes from rank to rank are the schedule's. Work sharing, which is what rings were
    carried out by before, is told from a ring by both observers.
    """
    done = run(*under(mpi, 4, SCRIPT, "shm"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["10", "no", "ring", "all"]


@pytest.mark.parametrize("mpi", ["openmpi", *thorough("mpich")], indirect=True)
def test_over_mpi_messages_go_where_the_schedule_says(mpi: Mpi, run: Run) -> None:
    """Rule: a rank's process binds a message for each of its own moves, and no others."""
    done = run(*under(mpi, 4, SCRIPT, "mpi"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["10"]


@pytest.mark.parametrize("name", ["ring", "ps", "sharded_ps", "tree"])
def test_among_threads_each_sends_its_own(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: a rank's thread puts what it sends in the mailbox; the receiver's takes it out."""
    schedule, what, n = build("allreduce", name, 4), spec("allreduce"), 400
    put: Counter[tuple[int, int, int]] = Counter()
    owner: dict[int, int] = {}

    def body(world: InprocWorld) -> None:
        owner[threading.get_ident()] = world.rank
        transport = InprocTransport(world)
        source, target = np.ones(n, np.float32), np.zeros(n, np.float32)
        world.barrier()
        if world.rank == 0:
            post = world.shared.data.put
            monkeypatch.setattr(
                world.shared.data,
                "put",
                lambda src, dst, item: (
                    put.update({(owner[threading.get_ident()], src, dst): item.nbytes}),
                    post(src, dst, item),
                ),
            )
        world.barrier()
        with Plan(schedule, what, transport, world.rank, source, target, op("sum"), n) as plan:
            plan()
            assert (target == 4).all()

    on_threads(4, body, deadline=60)
    assert put == {(a, a, b): 4 * size for (a, b), size in sent(schedule, what, n).items()}
