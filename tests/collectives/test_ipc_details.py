"""The ipc transport where hardware is stricter than schedules are: meeting, leaving, residency."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from bench.cli import start
from busbar.errors import Unsupported
from collectives.execution.gpu.device import GpuDevice
from collectives.execution.inproc.world import InprocWorld
from collectives.execution.ipc.memory import PeerMemory
from collectives.execution.ipc.plan import BLOCKS, STATUS, PeerWatch
from collectives.execution.ipc.transport import IpcTransport
from collectives.execution.transport import Start
from collectives.schedule.ops import op
from tests.collectives.executing import allreduce
from tests.collectives.ipc_stand_in import IpcCupy, IpcMachine, ranks


@pytest.mark.parametrize("loop", [False, True])
def test_no_rank_begins_before_all_streams_have_met(loop: bool) -> None:
    """Rule: on processes, whose gates are their own, a late gate is in no rank's times."""
    machine, begins = IpcMachine(1), list[int]()

    def body(world: InprocWorld, transport: IpcTransport) -> None:
        lane = transport.lane
        plan, *_ = allreduce(transport, world, "one_shot", 10)
        for _ in range(2):
            plan()
        lane._word = transport.device.pinned(4).view(np.uint32)
        lane._word[0] = lane._gates
        event, opens, own = lane.event, lane.open_gate, list[Any]()

        def noted() -> Any:
            own.append(event())
            return own[-1]

        def late() -> None:
            if world.rank:
                for _ in range(30):  # rank 0 goes as far as it comes without this one
                    machine.pump()
            opens()

        lane.event, lane.open_gate = noted, late  # type: ignore[method-assign]
        machine.gates.clear()
        world.barrier()
        plan.spans(2, Start(world.barrier, loop=loop))
        begins.append(own[0].when)
        world.barrier()

    ranks(body, 2, machine)
    assert min(begins) > max(machine.gates[:2])


def test_one_rank_meets_nobody() -> None:
    """Rule: a meeting of one is no launch."""

    def body(world: InprocWorld, transport: IpcTransport) -> None:
        assert transport.meet == []

    ranks(body, 1)


def test_ranks_end_only_when_all_have_said_that_they_leave() -> None:
    """Rule: closing writes into peers' memory, so nobody goes on before all have closed."""
    order = list[str]()

    class World:
        rank = 0

        def barrier(self) -> None:
            order.append("barrier")

    class Transport:
        def give_up(self) -> None:
            order.append("give up")

        def close(self) -> None:
            order.append("close")

    with start._let_go(World(), Transport()):  # type: ignore[arg-type]
        pass
    assert order == ["barrier", "close", "barrier"]


def test_trimming_gives_memory_back() -> None:
    """Rule: what ranks have let go of is the device's again once they trim, and not before."""

    def body(world: InprocWorld, transport: IpcTransport) -> None:
        machine = transport.device.xp.machine
        transport.trim()
        world.barrier()
        before = machine.used(0)
        world.barrier()
        array = transport.allocate(4)
        world.barrier()
        del array
        world.barrier()
        assert machine.used(0) > before
        world.barrier()
        transport.trim()
        world.barrier()
        assert machine.used(0) == before

    ranks(body)


def test_allocations_may_go_while_one_is_looked_for() -> None:
    """Rule: another rank's thread may let go of this rank's memory at any time, even mid-lookup."""
    device = GpuDevice(IpcCupy(IpcMachine(1)), 0)
    memory = PeerMemory(device)
    held = [memory.allocate(8) for _ in range(3)]

    class Asked:
        address = held[2].address

        @property
        def nbytes(self) -> int:
            del held[:1]  # as another thread may
            return 8

    asked: Any = Asked()
    # The first one begins below, so that it is looked at, and goes, before the one that it is.
    memory._own[0] = asked.address - 1, 0
    assert memory.locate(asked)[0] == 2


@pytest.mark.parametrize("there", [True, False])
def test_a_process_is_watched_with_and_without_pidfds(
    there: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule: Pythons and kernels without pidfd_open watch by asking for the process."""
    if not there:
        monkeypatch.delattr(os, "pidfd_open")
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    status = np.zeros(len(STATUS), np.uint64)
    watch = PeerWatch(0, [os.getpid(), child.pid], status, 1.0)
    watch.look()
    assert not status.any()
    child.communicate(b"\n")
    watch._looked = 0.0
    watch.look()
    watch.close()
    assert status[STATUS.index("Stop")] == 1


# -- residency


def test_blocks_that_do_not_all_fit_are_made_smaller_and_it_is_said() -> None:
    """Rule: what waits for all blocks has them all resident, with fewer threads where it must."""
    machine = IpcMachine(1)
    machine.registers = 70  # of a thread: no two blocks of 512 any more

    def body(world: InprocWorld, transport: IpcTransport) -> None:
        kernels = transport.kernels(np.dtype(np.float32), op("sum"))
        assert kernels.threads == 256
        assert any("blocks of 256 threads, not 512" in remark for remark in transport.remarks)
        allreduce(transport, world, "one_shot", 100)[0]()
        driver = transport.device.xp.cuda.driver
        # 2 blocks of 8 KB and of what each takes beside that, of 228 KB.
        assert driver.carved[kernels.program.ptr] == 8

    ranks(body, 2, machine)
    machine.registers = 300
    with pytest.raises(Unsupported, match="does not hold 2 blocks of 128 threads"):
        ranks(body, 1, machine)


@pytest.mark.parametrize(("blocks", "most"), [(0, 4 * BLOCKS // 2), (1, 1), (256, 4 * BLOCKS // 2)])
def test_blocks_are_what_multiprocessors_hold_or_fewer_on_request(blocks: int, most: int) -> None:
    """Rule: the grid is as many blocks as are resident: 4 multiprocessors' among 2 ranks.

    --blocks limits it, and never adds to what is resident.
    """

    def body(world: InprocWorld, transport: IpcTransport) -> None:
        assert transport.most_teams == most

    ranks(body, blocks=blocks)


# -- how passes add


def _bits(rotated: bool) -> list[bytes]:
    """Each rank's result of a one-shot all-reduce of floats whose sum depends on the order."""
    results: dict[int, bytes] = {}

    def body(world: InprocWorld, transport: IpcTransport) -> None:
        plan, source, target = allreduce(transport, world, "one_shot", 999)
        values = np.random.default_rng(world.rank).standard_normal(999) * 10.0**world.rank
        source[:] = values.astype(np.float32)
        world.barrier()
        plan()
        results[world.rank] = target.host().tobytes()

    ranks(body, 5, rotated=rotated)
    return [results[rank] for rank in sorted(results)]


def test_one_order_gives_the_same_bits_on_all_ranks() -> None:
    """Rule: with --add-order rank a sum has the same bits on all ranks; rotated it need not."""
    assert len(set(_bits(rotated=False))) == 1
    assert len(set(_bits(rotated=True))) > 1


@pytest.mark.parametrize(("name", "launches"), [("one_shot", 0), ("sharded_ps", 0), ("ring", 1)])
def test_an_average_is_divided_where_all_contributions_are_added(name: str, launches: int) -> None:
    """Rule: a pass over all ranks' data divides its own sums; only others need a second pass."""
    machine = IpcMachine(1)

    def body(world: InprocWorld, transport: IpcTransport) -> None:
        plan, source, target = allreduce(transport, world, name, 5_000, operation="avg")
        source[:] = np.full(5_000, 3.0 * world.rank, np.float32)
        world.barrier()
        machine.launched.clear()
        world.barrier()
        plan()
        assert (target.host() == 3.0).all()  # of 0, 3 and 6
        world.barrier()
        assert machine.launched.count("divide") == 3 * launches

    ranks(body, 3, machine, graph=False)


def test_all_kernels_divide_a_multiprocessors_memory_alike() -> None:
    """Rule: no kernel of ours asks for another carve-out: a change may wait for the device."""

    def body(world: InprocWorld, transport: IpcTransport) -> None:
        allreduce(transport, world, "ring", 100, operation="avg")[0]()
        driver = transport.device.xp.cuda.driver
        # Gate, divide, reduce, differ, of two types, and the executor; 2 blocks of 8 KB and more.
        assert len(driver.carved) > 8 and set(driver.carved.values()) == {8}

    ranks(body, 2)


# -- cold caches


def test_cold_iterations_take_turns_as_nccls_do() -> None:
    """Rule: one setting for a table: sets of buffers rotate over ipc, too, and all are right."""
    machine = IpcMachine(1, cache=1 << 16)

    def body(world: InprocWorld, transport: IpcTransport) -> None:
        plan, _, target = allreduce(transport, world, "sharded_ps", 1_000)
        # 8,000 bytes of buffers, and twice 65,536 of cache.
        action = plan.action
        assert len(action._bound) == transport.turns(8_000) == 16
        plan.spans(40, Start(world.barrier))
        assert (target.host() == 2).all()

    ranks(body, 2, machine, cold=True)
    assert not machine.stuck
