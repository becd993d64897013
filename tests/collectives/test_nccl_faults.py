"""What goes wrong on GPUs: all end, the failing rank is named, and nothing is left running."""

from __future__ import annotations

import re
import threading
from typing import Any

import numpy as np
import pytest

from busbar.errors import RankFailure, Unavailable, Unsupported
from collectives.execution.gpu import lane as lanes
from collectives.execution.gpu.device import GpuDevice
from collectives.execution.gpu.take import gpu_number, nccl_variables, sharing_refusal, version_text
from collectives.execution.inproc.world import InprocWorld, run
from collectives.execution.nccl import transport as transports
from collectives.execution.nccl.transport import NcclTransport, grouped
from collectives.execution.plan import Plan
from collectives.execution.transport import LibraryCall
from collectives.schedule.catalogue import spec
from collectives.schedule.moves import Buffer
from collectives.schedule.ops import op
from tests.collectives.executing import allreduce
from tests.gpu_standin import Cupy, Machine
from tests.nccl_standin import Nccl, NcclError


def _open(world: InprocWorld, machine: Machine, nccl: Nccl, **given: Any) -> NcclTransport:
    gpu = GpuDevice(Cupy(machine), world.rank % machine.gpus)
    return NcclTransport(world, gpu, nccl, **{"deadline": 60.0, **given})


def _ring(transport: NcclTransport) -> Plan:
    return allreduce(transport, transport.world, "ring", 16)[0]


def _ends(nranks: int, body: Any, machine: Machine | None = None, **given: Any) -> dict[int, str]:
    """What each rank's body ended with, and that no communicator of theirs is left alive."""
    machine = machine or Machine(nranks)
    nccl = Nccl(machine)
    said: dict[int, str] = {}

    def rank(world: InprocWorld) -> None:
        transport = _open(world, machine, nccl, **given)
        try:
            body(transport, machine)
        except RankFailure as error:
            said[world.rank] = str(error)
            # Whoever fails for another reason than its peers must still let go.
            transport.give_up()

    run(nranks, rank, deadline=120)
    assert all(comm.gone for comm in nccl.communicators)
    return said


def test_an_asynchronous_error_ends_all_ranks_and_names_one() -> None:
    """Rule: NCCL's error on one rank aborts the communicators of all, naming that rank."""

    def body(transport: NcclTransport, machine: Machine) -> None:
        plan, rank = _ring(transport), transport.world.rank
        plan()
        plan()  # captures, on which ranks agree
        transport.world.barrier()
        if rank == 2:
            machine.faults[2] = 6
        if rank == 0:
            transport.lane.close_gate()  # so that everyone waits in the library
        plan()

    said = _ends(4, body)
    assert said[2] == "rank 2: NCCL_ERROR 6: injected"
    for rank in (0, 1, 3):
        assert said[rank] == f"rank {rank} stopped because rank 2 failed: NCCL_ERROR 6: injected"


def test_who_does_not_arrive_is_named_by_those_who_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: at the deadline the ranks that wait find out who does not, and abort."""
    over = threading.Event()
    monkeypatch.setattr(lanes, "GRACE_S", 1.0)

    def body(transport: NcclTransport, machine: Machine) -> None:
        plan = _ring(transport)
        plan()
        plan()  # captures, on which ranks agree
        if transport.world.rank == 1:
            assert over.wait(60)
            transport.give_up()
            return
        try:
            plan()
        finally:
            over.set()

    said = _ends(3, body, deadline=0.5)
    assert set(said) == {0, 2}
    for rank, one in said.items():
        # On a starved machine a rank that waits, too, may be too late to say so.
        found = re.fullmatch(
            rf"rank {rank} waited 0\.5 s for ranks? (.*), which did not arrive", one
        )
        assert found and "1" in found[1].split(", ") and str(rank) not in found[1].split(", ")


def test_a_group_that_is_no_group_deadlocks_and_is_found_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rule: sends and receives outside a group hang, here as in NCCL; the deadline ends it."""
    monkeypatch.setattr(lanes, "GRACE_S", 20.0)  # over as soon as both have spoken

    def body(transport: NcclTransport, machine: Machine) -> None:
        def one_by_one(messages: list[Any]) -> None:
            for message in messages:
                message()

        monkeypatch.setattr(transport, "_group", one_by_one)
        _ring(transport)()

    said = _ends(2, body, deadline=0.5)
    assert set(said) == {0, 1}
    assert all("all ranks were inside; the exchange itself hangs" in one for one in said.values())


def test_a_group_is_ended_also_when_a_call_in_it_fails() -> None:
    """Rule: groupStart has its groupEnd whatever happens; the first error is reported."""
    nccl = Nccl(Machine(1))
    with pytest.raises(ValueError, match="first"), grouped(nccl):
        raise ValueError("first")
    assert nccl.depth == 0
    with pytest.raises(NcclError):
        nccl.groupEnd()


def test_two_ranks_on_one_gpu_have_no_communicator(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: where NCCL refuses, every rank gets one line with its reason."""
    monkeypatch.delenv("NCCL_MULTI_RANK_GPU_ENABLE", raising=False)
    machine = Machine(1)
    nccl = Nccl(machine)

    def rank(world: InprocWorld) -> str:
        with pytest.raises(Unavailable) as caught:
            _open(world, machine, nccl)
        return str(caught.value)

    first, second = run(2, rank)
    assert first == second and "Duplicate GPU" in first and "rank 0 on GPU 0000:07:00.0" in first


@pytest.mark.parametrize("what", ["prepare", "library"])
def test_nobody_fires_while_another_rank_still_prepares(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule: ranks on one GPU take memory and load code before any has a kernel that waits."""
    monkeypatch.setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1")
    machine, fired = Machine(1), threading.Event()

    def body(transport: NcclTransport, machine: Machine) -> None:
        enqueue, sets = transport.lane.enqueue, transport.sets

        def told(calls: list[Any]) -> None:
            enqueue(calls)
            fired.set()

        def slowly(buffers: Any) -> Any:
            found = sets(buffers)
            fired.wait(0.5)  # rank 0 is long since prepared
            transport.device.allocate(64)
            return found

        if transport.world.rank:
            monkeypatch.setattr(transport, "sets", slowly)
        else:
            monkeypatch.setattr(transport.lane, "enqueue", told)
        source, target = (transport.allocate(64).view(np.float32) for _ in range(2))
        where = {Buffer.IN: source, Buffer.OUT: target}
        if what == "library":
            action: Any = transport.library(LibraryCall(spec("allreduce"), where, op("sum"), 16))
        else:
            action = _ring(transport)
        action()
        action.close()
        transport.world.barrier()
        transport.close()

    assert _ends(2, body, machine) == {}
    assert not machine.stuck


def test_a_communicator_goes_after_its_graphs() -> None:
    """Rule: NCCL waits for graphs that refer to a communicator, so they go first, closed or not."""

    def body(transport: NcclTransport, machine: Machine) -> None:
        plan = _ring(transport)
        plan()
        plan()
        assert machine.graphs
        transport.world.barrier()
        if transport.world.rank == 0:
            transport.close()
        else:
            transport.give_up()
        plan.close()

    machine = Machine(2)
    assert _ends(2, body, machine) == {} and not machine.stuck


def test_memory_that_is_not_there_is_an_error_with_the_numbers() -> None:
    """Rule: an allocation that fails says what was asked for and what was free."""
    device = GpuDevice(Cupy(Machine(1, total=1000)), 0)
    device.use()
    with pytest.raises(
        Unavailable, match=r"GPU 0 cannot give 2000 bytes \(1000 of 1000 are free\)"
    ):
        device.allocate(2000)
    with pytest.raises(Unavailable, match="no GPU 5; this process sees 1"):
        GpuDevice(Cupy(Machine(1)), 5)


def test_float8_only_where_nccl_and_the_gpu_take_it() -> None:
    """Rule: float8 is refused in a sentence before NCCL 2.24 or compute capability 9.0."""
    import ml_dtypes

    kind = np.dtype(ml_dtypes.float8_e4m3fn)
    for machine, what in (
        (Machine(1, nccl=22304), "NCCL 2.23.4 and 9.0"),
        (Machine(1, capability=(8, 9)), "NCCL 2.32.3 and 8.9"),
    ):

        def rank(world: InprocWorld, machine: Machine = machine, what: str = what) -> None:
            transport = _open(world, machine, Nccl(machine))
            buffers = {b: transport.allocate(16).view(kind) for b in (Buffer.IN, Buffer.OUT)}
            with pytest.raises(Unsupported, match=what):
                transport.library(LibraryCall(spec("allreduce"), buffers, op("sum"), 16))
            transport.close()

        run(1, rank)


def test_which_gpu_a_rank_takes() -> None:
    """Rule: by node-local rank, through --gpus; sharing is told by identity, not by number."""
    assert [gpu_number(rank, 8, ()) for rank in range(3)] == [0, 1, 2]
    assert [gpu_number(rank, 8, (0, 3, 5)) for rank in range(4)] == [0, 3, 5, 0]
    assert gpu_number(5, 1, ()) == 0  # a launcher that shows each rank one GPU
    assert sharing_refusal(["a", "b", "c"]) == ""
    assert sharing_refusal(["a", "b", "a"]).startswith("ranks 0, 2 would share one GPU (a)")


def test_what_nccl_needs_for_ranks_that_share() -> None:
    """Rule: NCCL 2.30's own switch with fewer channels for many; before, a host name a rank."""
    two, four = ["a", "a"], ["a"] * 4
    new, old = 23000, 22907
    kept = {"NCCL_MAX_CTAS": "4"}
    assert nccl_variables(["a", "b"], new, 0, threads=True, env={}) == {}
    on = {"NCCL_MULTI_RANK_GPU_ENABLE": "1"}
    assert nccl_variables(two, new, 0, threads=True, env={}) == on
    assert nccl_variables(four, new, 0, threads=True, env={}) == on | {"NCCL_MAX_CTAS": "16"}
    assert nccl_variables(four, new, 0, threads=True, env=kept) == on
    assert nccl_variables(two, old, 1, threads=False, env={}) == {"NCCL_HOSTID": "busbar-rank-1"}
    with pytest.raises(Unsupported, match=r"since 2\.30"):
        nccl_variables(two, old, 1, threads=True, env={})


def test_versions_are_read_as_nccl_writes_them() -> None:
    """Rule: 23203 is 2.32.3; before 2.9 the digits meant something else."""
    assert [version_text(code) for code in (23203, 22100, 2804)] == ["2.32.3", "2.21.0", "2.8.4"]
    assert transports.BYTES == 1
