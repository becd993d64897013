"""Streams, gates and waiting, on stand-ins as strict as CUDA: what is timed, who waits for what."""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from busbar.errors import RankFailure
from collectives.execution.gpu import action as actions
from collectives.execution.gpu import device as drivers
from collectives.execution.gpu import lane as lanes
from collectives.execution.gpu.action import StreamAction
from collectives.execution.gpu.device import GpuDevice
from collectives.execution.gpu.lane import Lane
from collectives.execution.inproc.world import InprocWorld, run
from collectives.execution.transport import Start
from collectives.schedule.ops import op
from tests.gpu_standin import Cupy, Machine, alone

FLOAT = np.dtype(np.float32)


def _lane(world: InprocWorld, machine: Machine, **given: Any) -> Lane:
    return Lane(GpuDevice(Cupy(machine), 0), world, **given)


# -- waiting


def test_waiting_sleeps_between_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: who waits lets go of the interpreter with every poll: other ranks' threads need it."""

    def body(lane: Lane) -> None:
        polls, naps = iter((False, False, False, True)), list[float]()
        monkeypatch.setattr(lane.device, "idle", lambda stream: next(polls))
        frozen = SimpleNamespace(monotonic=lambda: 0.0, sleep=naps.append)
        monkeypatch.setattr(lanes, "time", frozen)
        lane.wait()
        assert len(naps) == 3 and min(naps) > 0

    alone(body)


def test_an_illegal_access_is_an_error_at_once_and_by_name() -> None:
    """Rule: what CUDA reports of a stream is raised by its name, and is no reason to wait on."""

    def body(lane: Lane) -> None:
        there = lane.device.wrap(1 << 40, 64, None).view(FLOAT)
        lane.enqueue(lane.kernels.reduce(there, there, [there], op("sum")))
        with pytest.raises(RankFailure, match="rank 0: cudaErrorIllegalAddress"):
            lane.wait()

    alone(body, deadline=30.0)


def test_a_stream_is_asked_without_holding_the_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: on CuPy itself the driver is asked by ctypes, and its answers are told apart."""
    cupy, asked = Cupy(Machine(1)), list[int]()

    class Library:
        def cuStreamQuery(self, stream: ctypes.c_void_p) -> int:  # noqa: N802
            asked.append(int(stream.value or 0))
            return (600, 0, 700)[len(asked) - 1]

    monkeypatch.setitem(sys.modules, "cupy", cupy)  # type: ignore[arg-type]
    monkeypatch.setattr(drivers.ctypes, "CDLL", lambda name: Library())
    device = GpuDevice(cupy, 0)
    stream = device.stream()
    assert [device.idle(stream), device.idle(stream)] == [False, True]
    with pytest.raises(cupy.runtime.CUDARuntimeError, match="IllegalAddress"):
        device.idle(stream)
    assert asked == [stream.ptr] * 3


# -- gates


def test_threads_are_let_go_by_one_store() -> None:
    """Rule: the gates of ranks that are threads open together, whoever of them comes first."""
    machine, opened = Machine(1), threading.Event()

    def body(world: InprocWorld) -> None:
        lane = _lane(world, machine)
        world.barrier()
        lane.close_gate()
        world.barrier()
        if world.rank == 0:
            lane.open_gate()
        else:
            assert opened.wait(30)
        lane.wait()
        opened.set()  # rank 0 is through; rank 1 never opened, and is through, too
        if world.rank:
            lane.open_gate()

    run(2, body)
    assert len(machine.gates) == 4  # with one each when the lanes were made


def test_a_gate_that_opens_by_itself_is_an_error() -> None:
    """Rule: times from behind a gate whose time was over are never given."""

    def body(lane: Lane) -> None:
        lane.close_gate()
        with pytest.raises(RankFailure, match=r"gate opened by itself after 0\.05 s.*void"):
            lane.wait(10.0)

    alone(body, deadline=0.05)


# -- actions


class _Meeting:
    """Calls after which no rank's stream goes on before all have come; on the stand-in."""

    def __init__(self, machine: Machine, size: int) -> None:
        self.machine, self.size, self.come = machine, size, dict[int, int]()

    def calls(self, lane: Lane) -> list[Callable[[], None]]:
        from tests.gpu_machine import Item

        meeting, count = self, [0]

        class Here(Item):
            def __init__(self) -> None:
                count[0] += 1
                self.number, self.said = count[0], False

            def advance(self) -> bool:
                if not self.said:
                    self.said = True
                    meeting.come[self.number] = meeting.come.get(self.number, 0) + 1
                return meeting.come[self.number] == meeting.size

        return [lambda: self.machine.push(lane.stream.ptr, Here)]


def _times(loop: bool) -> tuple[Machine, list[Any]]:
    """Three iterations on two ranks; the second opens its gate after the first has gone on."""
    machine, begins = Machine(1), list[Any]()
    meeting = _Meeting(machine, 2)
    gone = threading.Event()

    def body(world: InprocWorld) -> None:
        lane = _lane(world, machine)
        action = StreamAction(lane, [[]], (0, 0), meet=meeting.calls(lane), graph=False)
        action._begun()
        event, opens, own = lane.event, lane.open_gate, list[Any]()

        def first() -> Any:
            own.append(event())
            return own[-1]

        def late() -> None:
            if world.rank:
                for _ in range(20):  # rank 0 goes as far as it comes without this one
                    machine.pump()
                assert gone.wait(30)
            opens()
            gone.set()

        lane.event, lane.open_gate = first, late  # type: ignore[method-assign]
        machine.gates.clear()
        world.barrier()
        action.spans(3, Start(world.barrier, loop=loop))
        world.barrier()
        begins.append([one.when for one in own[:: 1 if loop else 2]])

    run(2, body)
    return machine, begins


@pytest.mark.parametrize("loop", [False, True])
def test_no_iteration_begins_before_the_last_gate_is_open(loop: bool) -> None:
    """Rule: how late a host opens its gate is in nobody's times."""
    machine, begins = _times(loop)
    assert min(begin for own in begins for begin in own) > max(machine.gates[:2])


@pytest.mark.parametrize(
    ("loop", "wanted"),
    [
        (False, "close meet event launch event meet event launch event barrier open"),
        (True, "close meet event launch launch event barrier open"),
    ],
)
def test_what_stands_behind_a_gate_and_in_which_order(loop: bool, wanted: str) -> None:
    """Rule: all is enqueued behind a closed gate, and the gate opens when every rank has come."""
    found = list[str]()

    def noted(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def named(*arguments: Any) -> Any:
            found.append(name)
            return call(*arguments)

        return named

    def body(lane: Lane) -> None:
        meet, launch = (noted(name, lambda: None) for name in ("meet", "launch"))
        action = StreamAction(lane, [[launch]], (0, 0), meet=[meet], graph=False)
        action._begun()
        found.clear()
        patched: Any = lane
        patched.close_gate = noted("close", lane.close_gate)
        patched.open_gate = noted("open", lane.open_gate)
        patched.event = noted("event", lane.event)
        patched.world.barrier = noted("barrier", lane.world.barrier)
        spans = action.spans(2, Start(lane.world.barrier, loop=loop))
        assert not spans.absolute and len(spans.seconds) == (1 if loop else 2)

    alone(body)
    assert found == wanted.split()


def test_a_graph_holds_as_much_of_the_queue_as_what_it_replays() -> None:
    """Rule: behind a gate no more is enqueued than a stream takes; graphs count by content."""
    machine = Machine(1)

    def body(lane: Lane) -> None:
        kernel = lane.kernels.divide(lane.device.allocate(4).view(FLOAT), 1)
        action = StreamAction(lane, [[kernel] * 100], (0, 0), meet=[], graph=True)
        action.spans(20, Start(lane.world.barrier))
        action.spans(20, Start(lane.world.barrier, loop=True))

    alone(body, machine)
    assert "graph" in machine.launched and 400 < machine.deepest <= actions.QUEUE


@pytest.mark.parametrize("loop", [False, True])
def test_what_no_gate_can_hold_is_timed_without_one(loop: bool) -> None:
    """Rule: an iteration with more launches than a queue takes does not block, and the row says so.

    A full queue behind a closed gate would block for ever.
    """
    machine, said = Machine(1), dict[str, str]()

    def body(lane: Lane) -> None:
        kernel = lane.kernels.divide(lane.device.allocate(4).view(FLOAT), 1)
        action = StreamAction(
            lane, [[kernel] * 2000], (0, 0), meet=[], graph=False, refused=said.__setitem__
        )
        spans = action.spans(3, Start(lane.world.barrier, loop=loop))
        assert len(spans.ends) == (1 if loop else 3)

    alone(body, machine)
    assert "2000 entries" in said["unheld"] and not machine.stuck


def test_connecting_says_nothing_of_how_long_iterations_take(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rule: many iterations hang when they take long for the second one, not for the first."""
    clock = iter([0.0, 50.0, 50.001])
    monkeypatch.setattr(actions, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    waited = list[float]()

    def body(lane: Lane) -> None:
        wait = lane.wait

        def expecting(expected: float = 0.0) -> None:
            waited.append(expected)
            wait(expected)

        lane.wait = expecting  # type: ignore[method-assign]
        action = StreamAction(lane, [[]], (0, 0), meet=[], graph=False)
        action.spans(100, Start(lane.world.barrier, loop=True))

    alone(body)
    assert waited[-1] == pytest.approx(0.1)


def test_nobody_captures_while_another_rank_has_still_to_launch() -> None:
    """Rule: a rank whose first iteration is over waits for the others' before it makes a graph."""
    machine = Machine(1)
    meeting, fired = _Meeting(machine, 2), threading.Event()

    def body(world: InprocWorld) -> None:
        lane = _lane(world, machine)
        # Rank 0 needs nobody; rank 1's first iteration waits for a third stream, fed late.
        other = lane.device.stream()
        calls = [] if world.rank == 0 else meeting.calls(lane)
        action = StreamAction(lane, [calls], (0, 0), meet=[], graph=True)
        world.barrier()
        if world.rank == 0:
            action()
            threading.Timer(0.2, lambda: _feed(machine, meeting, other, fired)).start()
            action()
        else:
            action()
            fired.wait(30)
            meeting.come.clear()
            meeting.size = 1
            action()

    run(2, body)
    assert not machine.stuck


def _feed(machine: Machine, meeting: _Meeting, stream: Any, fired: threading.Event) -> None:
    """What rank 1 waits for, launched by a third thread."""
    machine.here.device = 0
    there = SimpleNamespace(stream=stream)
    for call in meeting.calls(there):  # type: ignore[arg-type]
        call()
    fired.set()
